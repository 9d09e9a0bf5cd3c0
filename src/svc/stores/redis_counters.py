"""Counters of keys in Redis: what several machines share. One script, run once for a request; `counters.lua` is it.

Who has reached a limit of requests has done so until the window has moved on, whatever others do: until then the
refusal is repeated here, so that a client that hammers costs Redis nothing.

A process counts what it has running under a name, and keeps that name alive; what a name that has died had running is
forgotten. After each loss of Redis it takes a new name, since nobody can say what had arrived. Money that was spent in
the meantime is told when Redis is back, unless it has been told by the database since.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import secrets
import time
from collections.abc import Callable
from importlib import resources

import msgspec

from svc.stores.base import StoreDown
from svc.stores.counting import KINDS, Denied, Limits, Use
from svc.stores.redis import Redis, Script
from svc.stores.resp import Reply

ALIVE_SECONDS, BEAT_SECONDS = 15, 5.0
MAX_KNOWN = 50_000
"""Keys with a budget of which it is known who said what they had spent."""
MAX_REFUSED = 10_000
"""Keys whose refusals are repeated here."""
ASK, FROM_NOTHING = "", -1
"""Instead of what was spent: to be asked for it; to count without, since nobody knows."""


class Held(msgspec.Struct, frozen=True):
    """A reservation in Redis, to be settled once; what was left after it, of requests and tokens."""

    key_id: str
    process: str
    second: int
    tokens: int
    nanos: int
    budget: bool
    requests_left: int
    tokens_left: int
    reset: float
    """Seconds until this request has left the window."""


class _Refused(msgspec.Struct, frozen=True):
    """No request of the key is let through before `until` (monotonic time), if its limit stays the same."""

    limit: int
    until: float
    denied: Denied


class Unsaid(msgspec.Struct, frozen=True):
    """Nobody has said yet what the key has spent: to be asked again with that."""


Then = Callable[[Held | Denied | Unsaid | StoreDown], None]


class RedisCounters:
    """Belongs to one event loop, from `start` to `close`. It does not own the connection."""

    def __init__(self, redis: Redis) -> None:
        self._redis = redis
        self._script = Script(resources.files("svc.stores").joinpath("counters.lua").read_text(encoding="utf-8"))
        self._process = ""
        self._since = 0.0
        self._seeds: dict[str, int] = {}
        self._owed: dict[str, int] = {}
        self._refused: dict[str, _Refused] = {}
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._redis.on_connect(self._begin)
        if not self._redis.down:
            self._begin()
        self._task = asyncio.get_running_loop().create_task(self._beat(), name="redis-counters")

    async def close(self) -> None:
        """What runs in this process does no longer."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
        with contextlib.suppress(StoreDown):
            await self._redis.ask("DEL", f"svc:process:{self._process}")

    @property
    def down(self) -> bool:
        return self._redis.down

    @property
    def age(self) -> float:
        """Seconds since Redis was there (again): of what was before, it may know nothing."""
        return time.monotonic() - self._since

    def take(self, limits: Limits, tokens: int, nanos: int, spent: int | None, then: Then) -> None:
        """Reserves one request, tokens and money. `spent` is the sum of the database, or FROM_NOTHING.

        A request that another limit than `rpm` refuses counts for `rpm`, and reserves nothing else.
        """
        refused = self._refused.get(limits.key_id)
        if refused is not None and (again := self._again(refused, limits)) is not None:
            then(again)
            return
        told, process = ASK if spent is None else spent, self._process

        def answered(reply: Reply | StoreDown) -> None:
            then(reply if isinstance(reply, StoreDown) else self._read(reply, limits, tokens, nanos, process))

        self._redis.run(
            answered,
            self._script,
            (f"svc:key:{limits.key_id}",),
            (
                *("take", process, limits.requests, limits.tokens, limits.concurrency, limits.budget),
                *(KINDS[limits.period], limits.start, tokens, nanos, told, secrets.randbits(48)),
            ),
        )

    def _read(
        self, reply: Reply, limits: Limits, tokens: int, nanos: int, process: str
    ) -> Held | Denied | Unsaid | StoreDown:
        match reply:
            case [1, int(requests_left), int(tokens_left), int(reset), int(second), int(seed)]:
                if limits.budget:
                    self._know(limits.key_id, seed)
                return Held(
                    key_id=limits.key_id,
                    process=process,
                    second=second,
                    tokens=tokens,
                    nanos=nanos,
                    budget=limits.budget > 0,
                    requests_left=requests_left,
                    tokens_left=tokens_left,
                    reset=reset / 1000,
                )
            case [0, bytes(limit), int(retry), int(requests_left), int(tokens_left), int(requests), int(tokens)]:
                resets = requests / 1000, tokens / 1000
                wait = math.inf if retry < 0 else retry / 1000
                denied = Denied(limit.decode(), wait, requests_left, tokens_left, *resets)
                if denied.limit == "rpm":
                    self._refuse(limits, denied)
                return denied
            case [2]:
                return Unsaid()
        return StoreDown("Redis answers in a way that is not understood.")

    def _refuse(self, limits: Limits, denied: Denied) -> None:
        if len(self._refused) >= MAX_REFUSED:
            self._refused.clear()
        until = time.monotonic() + denied.retry_after
        self._refused[limits.key_id] = _Refused(limits.requests, until, denied)

    def _again(self, refused: _Refused, limits: Limits) -> Denied | None:
        """The refusal as it stands now; None when it no longer holds."""
        rest = refused.until - time.monotonic()
        if rest <= 0 or refused.limit != limits.requests:
            del self._refused[limits.key_id]
            return None
        denied = refused.denied
        gone = denied.retry_after - rest
        return msgspec.structs.replace(
            denied,
            retry_after=rest,
            requests_reset=max(0.0, denied.requests_reset - gone),
            tokens_reset=max(0.0, denied.tokens_reset - gone),
        )

    def settle(self, held: Held, tokens: int, nanos: int) -> None:
        """Ends a reservation with what was really used."""

        def answered(reply: Reply | StoreDown) -> None:
            if isinstance(reply, StoreDown) and held.budget:
                self._owe(held.key_id, nanos)

        arguments = ("settle", held.process, held.second, held.tokens, held.nanos, tokens, nanos)
        self._redis.run(answered, self._script, (f"svc:key:{held.key_id}",), arguments)

    def spend(self, key_id: str, nanos: int) -> None:
        """Money that a request has cost of which Redis did not know."""

        def answered(reply: Reply | StoreDown) -> None:
            if isinstance(reply, StoreDown):
                self._owe(key_id, nanos)

        if nanos and key_id in self._seeds:
            arguments = ("spend", nanos, self._seeds[key_id])
            self._redis.run(answered, self._script, (f"svc:key:{key_id}",), arguments)

    async def use(self, limits: Limits) -> Use:
        """What counts now, over all machines. Raises StoreDown."""
        arguments = ("look", KINDS[limits.period], limits.start)
        match await self._redis.ask_script(self._script, (f"svc:key:{limits.key_id}",), arguments):
            case [int(requests), int(tokens), int(running), int(spent), int(reserved)]:
                return Use(requests, tokens, running, None if spent < 0 else spent, reserved)
        raise StoreDown("Redis answers in a way that is not understood.")

    def _know(self, key_id: str, seed: int) -> None:
        if len(self._seeds) >= MAX_KNOWN and key_id not in self._seeds:
            del self._seeds[next(iter(self._seeds))]
        self._seeds[key_id] = seed

    def _owe(self, key_id: str, nanos: int) -> None:
        if key_id in self._seeds:
            self._owed[key_id] = self._owed.get(key_id, 0) + nanos

    def _begin(self) -> None:
        """Redis is there."""
        self._process = secrets.token_hex(8)
        self._since = time.monotonic()
        self._refused.clear()
        self._live()
        owed, self._owed = self._owed, {}
        for key_id, nanos in owed.items():
            self.spend(key_id, nanos)

    def _live(self) -> None:
        self._redis.send(_ignore, "SET", f"svc:process:{self._process}", 1, "EX", ALIVE_SECONDS)

    async def _beat(self) -> None:
        while True:
            await asyncio.sleep(BEAT_SECONDS)
            self._live()


def _ignore(reply: Reply | StoreDown) -> None:
    """The next beat is soon."""
