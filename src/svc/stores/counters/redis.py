"""Counters of keys in Redis, which several machines share. Each request runs the script `counters.lua` once.

A key that reached its request limit stays limited until the window advances. Until then this process repeats the
rejection without a command to Redis.

Each process counts its requests in flight under a process id with a TTL. When the id expires, its requests in flight
no longer count. After each loss of the connection the process takes a new id, since the outcome of pending commands
is unknown. After the reconnect it reports what was spent in between, unless the sum in the database includes it.
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

from svc.stores.counters.base import PERIOD_CODES, KeyLimits, LimitExceeded, LimitUsage
from svc.stores.database.base import StoreUnavailable
from svc.stores.redis.connection import LuaScript, RedisConnection
from svc.stores.redis.protocol import RedisReply

PROCESS_TTL_SECONDS, HEARTBEAT_SECONDS = 15, 5.0
MAX_SPENT_SEEDS = 50_000
"""Maximum number of keys with a budget whose seed (the id of the loaded sum) is remembered."""
MAX_CACHED_REJECTIONS = 10_000
"""Maximum number of keys with a cached rejection."""
ASK_FOR_SPENT, SPENT_UNAVAILABLE = "", -1
"""Values in place of the spent sum: request it from the caller, or count without it because it is unavailable."""


class RedisReservation(msgspec.Struct, frozen=True):
    """A reservation in Redis, to be committed once, with the requests and tokens that remained after it."""

    key_id: str
    process: str
    second: int
    tokens: int
    nano_usd: int
    has_budget: bool
    requests_left: int
    tokens_left: int
    reset_seconds: float
    """Seconds until this request leaves the window."""


class _CachedRejection(msgspec.Struct, frozen=True):
    """The key is rejected until `until` (monotonic seconds), unless its request limit changes."""

    request_limit: int
    until: float
    rejection: LimitExceeded


class SpentRequired(msgspec.Struct, frozen=True):
    """The counters do not have the spent sum of the key. The caller must repeat the reservation with it."""


OnDecision = Callable[[RedisReservation | LimitExceeded | SpentRequired | StoreUnavailable], None]


class RedisCounters:
    """Counters in Redis. They belong to one event loop, from `start` to `close`, and do not own the connection."""

    def __init__(self, redis: RedisConnection) -> None:
        self._redis = redis
        source = resources.files("svc.stores.counters").joinpath("counters.lua")
        self._script = LuaScript(source.read_text(encoding="utf-8"))
        self._process_id = ""
        self._connected_at = 0.0
        self._seeds: dict[str, int] = {}
        self._unreported_nano_usd: dict[str, int] = {}
        self._rejections: dict[str, _CachedRejection] = {}
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._redis.add_connect_callback(self._on_connect)
        if not self._redis.is_down:
            self._on_connect()
        self._task = asyncio.get_running_loop().create_task(self._run_heartbeat(), name="redis-counters")

    async def close(self) -> None:
        """Stop the heartbeat, and release the requests in flight of this process."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
        with contextlib.suppress(StoreUnavailable):
            await self._redis.execute("DEL", f"svc:process:{self._process_id}")

    @property
    def is_down(self) -> bool:
        return self._redis.is_down

    @property
    def connected_seconds(self) -> float:
        """Seconds since the last connect. Redis may have lost the counts from before it."""
        return time.monotonic() - self._connected_at

    def reserve(
        self, limits: KeyLimits, tokens: int, nano_usd: int, spent: int | None, on_decision: OnDecision
    ) -> None:
        """Reserve one request, tokens and nano-USD. `spent` is the database's sum, SPENT_UNAVAILABLE or None (unknown).

        A request that another limit than `rpm` rejects counts for `rpm` only. It reserves nothing.
        """
        cached = self._rejections.get(limits.key_id)
        if cached is not None and (rejection := self._current_rejection(cached, limits)) is not None:
            on_decision(rejection)
            return
        spent_argument, process_id = ASK_FOR_SPENT if spent is None else spent, self._process_id

        def on_reply(reply: RedisReply | StoreUnavailable) -> None:
            on_decision(
                reply
                if isinstance(reply, StoreUnavailable)
                else self._parse_reply(reply, limits, tokens, nano_usd, process_id)
            )

        self._redis.run_script(
            on_reply,
            self._script,
            (f"svc:key:{limits.key_id}",),
            (
                *("reserve", process_id, limits.requests, limits.tokens, limits.concurrency, limits.budget_nano_usd),
                *(
                    PERIOD_CODES[limits.period],
                    limits.period_start,
                    tokens,
                    nano_usd,
                    spent_argument,
                    secrets.randbits(48),
                ),
            ),
        )

    def _parse_reply(
        self, reply: RedisReply, limits: KeyLimits, tokens: int, nano_usd: int, process_id: str
    ) -> RedisReservation | LimitExceeded | SpentRequired | StoreUnavailable:
        match reply:
            case [1, int(requests_left), int(tokens_left), int(reset), int(second), int(seed)]:
                if limits.budget_nano_usd:
                    self._remember_seed(limits.key_id, seed)
                return RedisReservation(
                    key_id=limits.key_id,
                    process=process_id,
                    second=second,
                    tokens=tokens,
                    nano_usd=nano_usd,
                    has_budget=limits.budget_nano_usd > 0,
                    requests_left=requests_left,
                    tokens_left=tokens_left,
                    reset_seconds=reset / 1000,
                )
            case [0, bytes(limit), int(retry), int(requests_left), int(tokens_left), int(requests), int(tokens)]:
                resets = requests / 1000, tokens / 1000
                wait = math.inf if retry < 0 else retry / 1000
                rejection = LimitExceeded(limit.decode(), wait, requests_left, tokens_left, *resets)
                if rejection.limit == "rpm":
                    self._cache_rejection(limits, rejection)
                return rejection
            case [2]:
                return SpentRequired()
        return StoreUnavailable("Redis sent an unexpected reply.")

    def _cache_rejection(self, limits: KeyLimits, rejection: LimitExceeded) -> None:
        if len(self._rejections) >= MAX_CACHED_REJECTIONS:
            self._rejections.clear()
        until = time.monotonic() + rejection.retry_after
        self._rejections[limits.key_id] = _CachedRejection(limits.requests, until, rejection)

    def _current_rejection(self, cached: _CachedRejection, limits: KeyLimits) -> LimitExceeded | None:
        """Return the rejection with its current times, or None if it is no longer valid."""
        remaining_seconds = cached.until - time.monotonic()
        if remaining_seconds <= 0 or cached.request_limit != limits.requests:
            del self._rejections[limits.key_id]
            return None
        rejection = cached.rejection
        elapsed_seconds = rejection.retry_after - remaining_seconds
        return msgspec.structs.replace(
            rejection,
            retry_after=remaining_seconds,
            requests_reset=max(0.0, rejection.requests_reset - elapsed_seconds),
            tokens_reset=max(0.0, rejection.tokens_reset - elapsed_seconds),
        )

    def commit(self, reservation: RedisReservation, tokens: int, nano_usd: int) -> None:
        """End a reservation with the actual usage."""

        def on_reply(reply: RedisReply | StoreUnavailable) -> None:
            if isinstance(reply, StoreUnavailable) and reservation.has_budget:
                self._defer_spend(reservation.key_id, nano_usd)

        arguments = (
            "commit",
            reservation.process,
            reservation.second,
            reservation.tokens,
            reservation.nano_usd,
            tokens,
            nano_usd,
        )
        self._redis.run_script(on_reply, self._script, (f"svc:key:{reservation.key_id}",), arguments)

    def record_spend(self, key_id: str, nano_usd: int) -> None:
        """Record the cost of a request that has no reservation in Redis."""

        def on_reply(reply: RedisReply | StoreUnavailable) -> None:
            if isinstance(reply, StoreUnavailable):
                self._defer_spend(key_id, nano_usd)

        if nano_usd and key_id in self._seeds:
            arguments = ("record_spend", nano_usd, self._seeds[key_id])
            self._redis.run_script(on_reply, self._script, (f"svc:key:{key_id}",), arguments)

    async def get_usage(self, limits: KeyLimits) -> LimitUsage:
        """Return the current usage over all machines. Raises StoreUnavailable."""
        arguments = ("get_usage", PERIOD_CODES[limits.period], limits.period_start)
        match await self._redis.execute_script(self._script, (f"svc:key:{limits.key_id}",), arguments):
            case [int(requests), int(tokens), int(running), int(spent), int(reserved)]:
                return LimitUsage(requests, tokens, running, None if spent < 0 else spent, reserved)
        raise StoreUnavailable("Redis sent an unexpected reply.")

    def _remember_seed(self, key_id: str, seed: int) -> None:
        if len(self._seeds) >= MAX_SPENT_SEEDS and key_id not in self._seeds:
            del self._seeds[next(iter(self._seeds))]
        self._seeds[key_id] = seed

    def _defer_spend(self, key_id: str, nano_usd: int) -> None:
        if key_id in self._seeds:
            self._unreported_nano_usd[key_id] = self._unreported_nano_usd.get(key_id, 0) + nano_usd

    def _on_connect(self) -> None:
        """Take a new process id, and report the deferred spending."""
        self._process_id = secrets.token_hex(8)
        self._connected_at = time.monotonic()
        self._rejections.clear()
        self._send_heartbeat()
        unreported, self._unreported_nano_usd = self._unreported_nano_usd, {}
        for key_id, nano_usd in unreported.items():
            self.record_spend(key_id, nano_usd)

    def _send_heartbeat(self) -> None:
        self._redis.send(_ignore_reply, "SET", f"svc:process:{self._process_id}", 1, "EX", PROCESS_TTL_SECONDS)

    async def _run_heartbeat(self) -> None:
        while True:
            await asyncio.sleep(HEARTBEAT_SECONDS)
            self._send_heartbeat()


def _ignore_reply(reply: RedisReply | StoreUnavailable) -> None:
    """Do nothing: the next heartbeat follows within seconds."""
