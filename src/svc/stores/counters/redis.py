"""Counters of keys in Redis, which several machines share. A request calls the script `counters.lua` twice.

A key that reached its request limit stays limited until the window advances. Until then this process repeats the
rejection without a command to Redis.

Each process counts its requests in flight under a process id, and repeats in each key that it is active. Without that
for 15 s, its requests in flight no longer count. After each loss of the connection the process takes a new id, since
the outcome of pending commands is unknown. The old id leaves its keys after the reconnect: Redis may have executed
reservations that nobody will release, and may still execute others that wait in the lost connection. A new primary can
lack releases that the old one had executed. Then the process reports the tokens and the money of the requests that
ended in between. The money counts unless the sum in the database includes it. Each report of money has a number, so
that Redis adds it once even if it executed the first attempt.

A new primary can also lack money that was spent. After each connect, `svc.gateway.limits.budget_comparison` compares
each budget that is used with the database, and the larger sum counts.
"""

from __future__ import annotations

import asyncio
import math
import random
import secrets
import time
from collections.abc import Callable
from importlib import resources
from typing import Final

import msgspec

from svc.stores.counters.base import LimitExceeded, LimitUsage
from svc.stores.counters.counter_calls import CounterCall, CounterCallBatcher
from svc.stores.counters.key_limits import COUNTER_WINDOW_SECONDS, PERIOD_CODES, KeyLimits
from svc.stores.counters.redis_types import CachedRejection, RedisReservation, Spending, SpentRequired
from svc.stores.database.base import StoreUnavailable
from svc.stores.redis.base import LuaScript, OnSlow, OutcomeUnknown, RedisClient, RedisReply

HEARTBEAT_SECONDS: Final = 5.0
"""The interval at which keys with requests in flight are kept alive: a third of their time in `counters.lua`."""
PROCESS_TTL_SECONDS: Final = 15.0
"""The time after which the requests of an inactive process no longer count, as in `counters.lua`."""
HEARTBEAT_BATCH_KEYS: Final = 100
HEARTBEAT_BATCH_SECONDS: Final = 0.02
"""Keys that are kept alive at once, and the seconds between two batches."""
BUSY_KEY_FRACTION: Final = 0.25
"""A key with more of its concurrent requests in flight is busy: its client may wait for the end of one of them.

The end of a request of another key goes to Redis with other calls, which takes less CPU time. Every process knows the
requests in flight only from its own reservations, so that the fraction is far below 1.
"""
MAX_SPENT_SEEDS: Final = 50_000
"""Maximum number of keys with a budget whose seed (the id of the loaded sum) is remembered."""
MAX_UNLEFT_KEYS: Final = 10_000
"""Maximum number of keys that an earlier process id leaves. In others, it counts until its time has expired."""
MAX_TOKEN_CORRECTIONS: Final = 10_000
"""Maximum number of seconds of keys whose tokens are corrected at the next connect. Others keep their estimate."""
MAX_CACHED_REJECTIONS: Final = 10_000
"""Maximum number of keys with a cached rejection."""
REPLY_LENGTHS: Final = (1, 8, 12)
SEED_BITS: Final = 48
"""Size of the id of a sum that is loaded: Lua's numbers have 53 bits."""
ASK_FOR_SPENT: Final = ""
SPENT_UNAVAILABLE: Final = -1
"""Values in place of the spent sum: request it from the caller, or count without it because it is unavailable."""


TokenPlace = tuple[str, int, int]
"""The key, the second of a reservation, and the microsecond in which the key's hash was created."""
OnDecision = Callable[[RedisReservation | LimitExceeded | SpentRequired | StoreUnavailable], None]


class RedisCounters:
    """Counters in Redis. They belong to one event loop, from `start` to `close`, and do not own the connection."""

    def __init__(self, redis: RedisClient, clock: Callable[[], float] = time.monotonic) -> None:
        self._redis = redis
        self._clock = clock
        source = resources.files("svc.stores.counters").joinpath("counters.lua")
        self._calls = CounterCallBatcher(redis, LuaScript(source.read_text(encoding="utf-8")))
        self._process_id = ""
        self._connected_at = 0.0
        self._seeds: dict[str, int] = {}
        self._unreported_nano_usd: dict[str, int] = {}
        """Spending that Redis has not executed, by key."""
        self._uncertain_spending: list[Spending] = []
        self._spending_number = 0
        self._token_corrections: dict[TokenPlace, _TokenCorrection] = {}
        """What Redis has not added. The oldest is the first."""
        self._open_counts: dict[str, int] = {}
        """The reservations under the current process id, by key."""
        self._used_at: dict[str, float] = {}
        """When this process last reserved under the current process id, by key, for PROCESS_TTL_SECONDS."""
        self._unleft: set[tuple[str, str]] = set()
        """Keys and earlier process ids that may count in them."""
        self._left_at: dict[tuple[str, str], float] = {}
        """When an earlier process id left a key, for PROCESS_TTL_SECONDS. Another primary may not know it."""
        self._compared_sums: set[str] = set()
        """Keys whose sum was compared with the database since the last connect, or is about to be."""
        self._busy_key_ids: set[str] = set()
        """Keys in `_open_counts` that were busy at the last reservation of this process (BUSY_KEY_FRACTION)."""
        self._rejections: dict[str, CachedRejection] = {}
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
        leaving = [self._calls.execute(_redis_key(key_id), "leave", self._process_id) for key_id in self._open_counts]
        await asyncio.gather(*leaving, return_exceptions=True)

    @property
    def is_down(self) -> bool:
        return self._redis.is_down

    @property
    def is_responding(self) -> bool:
        """Whether Redis replies in time."""
        return not self._redis.is_down and not self._redis.is_slow

    def reserve(
        self,
        limits: KeyLimits,
        tokens: int,
        nano_usd: int,
        spent: int | None,
        on_decision: OnDecision,
        on_slow: OnSlow | None = None,
    ) -> None:
        """Reserve one request, tokens and nano-USD. `spent` is the database's sum, SPENT_UNAVAILABLE or None (unknown).

        A request that another limit than `rpm` rejects counts for `rpm` only. It reserves nothing. If Redis is slow,
        `on_slow` is called, perhaps repeatedly. The decision follows later.
        """
        cached = self._rejections.get(limits.key_id)
        if cached is not None and (rejection := self._current_rejection(cached, limits)) is not None:
            on_decision(rejection)
            return
        self._calls.add(
            _PendingReservation(self, limits, tokens, nano_usd, self._process_id, spent, on_decision, on_slow)
        )

    def begin_comparison(self, key_id: str) -> bool:
        """Return whether the sum of a budget has to be compared with the database: once after each connect."""
        if key_id in self._compared_sums:
            return False
        if len(self._compared_sums) >= MAX_SPENT_SEEDS:
            self._compared_sums.pop()
        self._compared_sums.add(key_id)
        return True

    def raise_spent(self, limits: KeyLimits, spent_nano_usd: int) -> None:
        """Replace the sum of a budget if it is smaller."""
        period_code, seed = PERIOD_CODES[limits.period], random.getrandbits(SEED_BITS)
        arguments = ("raise_spent", period_code, limits.period_start, spent_nano_usd, seed)
        self._calls.add(_RaiseSpent(self, limits.key_id, arguments))

    def parse_reply(
        self, reply: RedisReply, limits: KeyLimits, tokens: int, nano_usd: int, process_id: str
    ) -> RedisReservation | LimitExceeded | SpentRequired | StoreUnavailable:
        """Return the outcome of a reservation from the reply of Redis."""
        if not isinstance(reply, list) or len(reply) not in REPLY_LENGTHS:
            return StoreUnavailable("Redis sent an unexpected reply.")
        if reply[0] == 1:
            _, requests_left, tokens_left, reset_milliseconds, second, seed, running, created = reply
            key_id, has_budget = limits.key_id, limits.budget_nano_usd > 0
            if has_budget:
                self.remember_seed(key_id, seed)
            now = self._clock()
            if process_id == self._process_id:
                self._used_at[key_id] = now
                self._open_counts[key_id] = self._open_counts.get(key_id, 0) + 1
                if limits.concurrency:
                    if running > BUSY_KEY_FRACTION * limits.concurrency:
                        self._busy_key_ids.add(key_id)
                    else:
                        self._busy_key_ids.discard(key_id)
            return RedisReservation(
                key_id=key_id,
                process=process_id,
                second=second,
                created=created,
                tokens=tokens,
                nano_usd=nano_usd,
                has_budget=has_budget,
                requests_left=requests_left,
                tokens_left=tokens_left,
                reset_seconds=reset_milliseconds / 1000,
                has_full_window=now - self._connected_at > COUNTER_WINDOW_SECONDS
                and second - created / 1e6 > COUNTER_WINDOW_SECONDS,
            )
        if reply[0] == 0:
            _, limit, retry, requests_left, tokens_left, requests_reset, tokens_reset, *used = reply
            wait = math.inf if retry < 0 else retry / 1000
            resets = requests_reset / 1000, tokens_reset / 1000
            rejection = LimitExceeded(limit.decode(), wait, requests_left, tokens_left, *resets, LimitUsage(*used))
            if rejection.limit == "rpm":
                self._cache_rejection(limits, rejection)
            elif rejection.limit == "concurrency" and limits.key_id in self._open_counts:
                self._busy_key_ids.add(limits.key_id)
            return rejection
        return SpentRequired()

    def _cache_rejection(self, limits: KeyLimits, rejection: LimitExceeded) -> None:
        if len(self._rejections) >= MAX_CACHED_REJECTIONS:
            self._rejections.clear()
        until = self._clock() + rejection.retry_after
        self._rejections[limits.key_id] = CachedRejection(limits.requests, until, rejection)

    def _current_rejection(self, cached: CachedRejection, limits: KeyLimits) -> LimitExceeded | None:
        """Return the rejection with its current times, or None if it is no longer valid."""
        remaining_seconds = cached.until - self._clock()
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
        key_id, process = reservation.key_id, reservation.process
        is_busy = key_id in self._busy_key_ids
        if process == self._process_id:
            open_count = self._open_counts.pop(key_id, 1) - 1
            if open_count:
                self._open_counts[key_id] = open_count
            else:
                self._busy_key_ids.discard(key_id)
        number = self._next_spending_number() if reservation.has_budget and nano_usd else 0
        reserved_tokens, reserved_nano_usd = reservation.tokens, reservation.nano_usd
        arguments: tuple[str | int, ...] = (
            *("commit", process, reservation.second, reservation.created),
            *(reserved_tokens, reserved_nano_usd, tokens, nano_usd, number),
        )
        self._calls.add(_Commit(self, arguments, reservation, tokens, nano_usd, number))
        if is_busy:  # the client's next request may reach Redis from another machine or worker
            self._calls.flush()

    def record_spend(self, key_id: str, nano_usd: int) -> None:
        """Record the cost of a request that has no reservation in Redis."""
        if nano_usd:
            self._report_spend(Spending(key_id, self._process_id, self._next_spending_number(), nano_usd))

    def _report_spend(self, spending: Spending, *, is_repeat: bool = False) -> None:
        seed = self._seeds.get(spending.key_id)
        if seed is None:
            return
        number = -spending.number if is_repeat else spending.number
        arguments = ("record_spend", spending.process, number, spending.nano_usd, seed)
        self._calls.add(_SpendingReport(self, spending, arguments, is_repeat=is_repeat))

    async def get_usage(self, limits: KeyLimits) -> LimitUsage:
        """Return the current usage over all machines. Raises StoreUnavailable."""
        period_code, key = PERIOD_CODES[limits.period], _redis_key(limits.key_id)
        reply = await self._calls.execute(key, "get_usage", period_code, limits.period_start)
        if not isinstance(reply, list) or len(reply) != 5:
            raise StoreUnavailable("Redis sent an unexpected reply.")
        requests, tokens, running, spent, reserved = reply
        return LimitUsage(requests, tokens, running, None if spent < 0 else spent, reserved)

    def remember_seed(self, key_id: str, seed: int) -> None:
        """Remember the id of the sum that Redis has."""
        if len(self._seeds) >= MAX_SPENT_SEEDS and key_id not in self._seeds:
            del self._seeds[next(iter(self._seeds))]
        self._seeds[key_id] = seed

    def _next_spending_number(self) -> int:
        self._spending_number += 1
        return self._spending_number

    def defer_spend(self, spending: Spending, *, is_uncertain: bool) -> None:
        """Report spending after the next connect: under the same number, if Redis may have added it already."""
        if spending.key_id not in self._seeds:
            return
        if is_uncertain:
            self._uncertain_spending.append(spending)
        else:
            deferred = self._unreported_nano_usd
            deferred[spending.key_id] = deferred.get(spending.key_id, 0) + spending.nano_usd

    def defer_tokens(self, reservation: RedisReservation, tokens: int) -> None:
        """Replace the reserved tokens by the used ones after the next connect."""
        if tokens != reservation.tokens:
            place = reservation.key_id, reservation.second, reservation.created
            self.defer_token_correction(place, tokens - reservation.tokens)

    def defer_token_correction(self, place: TokenPlace, tokens: int) -> None:
        """Add tokens to those of a second of a key after the next connect."""
        now, corrections = self._clock(), self._token_corrections
        expired_before = now - COUNTER_WINDOW_SECONDS
        while corrections and next(iter(corrections.values())).deferred_at < expired_before:
            del corrections[next(iter(corrections))]
        correction = corrections.get(place)
        if correction is not None:
            correction.tokens += tokens
        elif len(corrections) < MAX_TOKEN_CORRECTIONS:
            corrections[place] = _TokenCorrection(tokens, now)

    def add_unleft(self, key_id: str, process_id: str) -> None:
        """Remember a key that an earlier process id has to leave after the next connect."""
        if len(self._unleft) < MAX_UNLEFT_KEYS:
            self._unleft.add((key_id, process_id))

    def _on_connect(self) -> None:
        """Take a new process id, leave keys under the old ones, and report the deferred tokens and spending."""
        now = self._connected_at = self._clock()
        self._forget_expired(now)
        for key_id in (*self._open_counts, *self._used_at):
            self.add_unleft(key_id, self._process_id)
        for key_id, process_id in self._left_at:
            self.add_unleft(key_id, process_id)
        self._process_id = secrets.token_hex(8)
        self._used_at.clear()
        self._compared_sums.clear()
        self._rejections.clear()
        self._open_counts.clear()
        self._busy_key_ids.clear()
        # The money is first: a connection accepts only so many commands, and the rest follow after another connect.
        uncertain, self._uncertain_spending = self._uncertain_spending, []
        for spending in uncertain:
            self._report_spend(spending, is_repeat=True)
        unreported, self._unreported_nano_usd = self._unreported_nano_usd, {}
        for key_id, nano_usd in unreported.items():
            self.record_spend(key_id, nano_usd)
        unleft, self._unleft = self._unleft, set()
        for key_id, process_id in unleft:
            self._left_at.setdefault((key_id, process_id), now)
            self._calls.add(_Leaving(self, key_id, process_id))
        corrections, self._token_corrections = self._token_corrections, {}
        for place, correction in corrections.items():
            if self._connected_at - correction.deferred_at < COUNTER_WINDOW_SECONDS:
                self._calls.add(_TokenReport(self, place, correction.tokens))

    def _forget_expired(self, now: float) -> None:
        """Forget what Redis has forgotten as well, since the process ids have expired there."""
        oldest = now - PROCESS_TTL_SECONDS
        self._used_at = {key_id: at for key_id, at in self._used_at.items() if at >= oldest}
        self._left_at = {place: at for place, at in self._left_at.items() if at >= oldest}

    async def _run_heartbeat(self) -> None:
        while True:
            await asyncio.sleep(HEARTBEAT_SECONDS)
            self._forget_expired(self._clock())
            key_ids, arguments = list(self._open_counts), ("keep_alive", self._process_id)
            for start in range(0, len(key_ids), HEARTBEAT_BATCH_KEYS):
                for key_id in key_ids[start : start + HEARTBEAT_BATCH_KEYS]:
                    self._calls.add(CounterCall(_redis_key(key_id), arguments))
                await asyncio.sleep(HEARTBEAT_BATCH_SECONDS)


class _PendingReservation(CounterCall):
    """A reservation for which Redis has not replied."""

    __slots__ = ("_counters", "_limits", "_nano_usd", "_on_decision", "_on_slow", "_process_id", "_tokens")

    def __init__(
        self,
        counters: RedisCounters,
        limits: KeyLimits,
        tokens: int,
        nano_usd: int,
        process_id: str,
        spent: int | None,
        on_decision: OnDecision,
        on_slow: OnSlow | None,
    ) -> None:
        super().__init__(
            _redis_key(limits.key_id),
            (
                *("reserve", process_id),
                *(limits.requests, limits.tokens, limits.concurrency, limits.budget_nano_usd),
                *(PERIOD_CODES[limits.period], limits.period_start, tokens, nano_usd),
                *((ASK_FOR_SPENT, 0) if spent is None else (spent, random.getrandbits(SEED_BITS))),
            ),
        )
        self._counters = counters
        self._limits = limits
        self._tokens = tokens
        self._nano_usd = nano_usd
        self._process_id = process_id
        self._on_decision = on_decision
        self._on_slow = on_slow

    def on_reply(self, reply: RedisReply | StoreUnavailable) -> None:
        if isinstance(reply, StoreUnavailable):
            if isinstance(reply, OutcomeUnknown):
                self._counters.add_unleft(self._limits.key_id, self._process_id)
            self._on_decision(reply)
        else:
            self._on_decision(
                self._counters.parse_reply(reply, self._limits, self._tokens, self._nano_usd, self._process_id)
            )

    def on_slow(self) -> None:
        if self._on_slow is not None:
            self._on_slow()


class _Commit(CounterCall):
    """The end of a reservation. If it fails, its parts follow after the next connect."""

    __slots__ = ("_counters", "_nano_usd", "_number", "_reservation", "_tokens")

    def __init__(
        self,
        counters: RedisCounters,
        arguments: tuple[str | int, ...],
        reservation: RedisReservation,
        tokens: int,
        nano_usd: int,
        number: int,
    ) -> None:
        """`number` is that of the spending, or 0 if there is none."""
        super().__init__(_redis_key(reservation.key_id), arguments)
        self._counters = counters
        self._reservation = reservation
        self._tokens = tokens
        self._nano_usd = nano_usd
        self._number = number

    def on_reply(self, reply: RedisReply | StoreUnavailable) -> None:
        if not isinstance(reply, StoreUnavailable):
            return
        counters, is_uncertain = self._counters, isinstance(reply, OutcomeUnknown)
        key_id, process = self._reservation.key_id, self._reservation.process
        counters.add_unleft(key_id, process)
        if not is_uncertain:
            counters.defer_tokens(self._reservation, self._tokens)
        if self._number:
            spending = Spending(key_id, process, self._number, self._nano_usd)
            counters.defer_spend(spending, is_uncertain=is_uncertain)


class _SpendingReport(CounterCall):
    """A report of money that Redis has not confirmed. It is deferred if it fails."""

    __slots__ = ("_counters", "_is_repeat", "_spending")

    def __init__(
        self, counters: RedisCounters, spending: Spending, arguments: tuple[str | int, ...], *, is_repeat: bool = False
    ) -> None:
        super().__init__(_redis_key(spending.key_id), arguments)
        self._counters = counters
        self._spending = spending
        self._is_repeat = is_repeat

    def on_reply(self, reply: RedisReply | StoreUnavailable) -> None:
        if isinstance(reply, StoreUnavailable):
            is_uncertain = self._is_repeat or isinstance(reply, OutcomeUnknown)
            self._counters.defer_spend(self._spending, is_uncertain=is_uncertain)


class _RaiseSpent(CounterCall):
    """Replaces the sum of a budget by a larger one. Later reports have the seed of that sum."""

    __slots__ = ("_counters", "_key_id")

    def __init__(self, counters: RedisCounters, key_id: str, arguments: tuple[str | int, ...]) -> None:
        super().__init__(_redis_key(key_id), arguments)
        self._counters = counters
        self._key_id = key_id

    def on_reply(self, reply: RedisReply | StoreUnavailable) -> None:
        if isinstance(reply, list) and len(reply) == 2 and isinstance(reply[1], int):
            self._counters.remember_seed(self._key_id, reply[1])


class _TokenCorrection:
    """Used minus reserved tokens of reservations that ended at `deferred_at` (monotonic seconds) or later."""

    __slots__ = ("deferred_at", "tokens")

    def __init__(self, tokens: int, deferred_at: float) -> None:
        self.tokens = tokens
        self.deferred_at = deferred_at


class _TokenReport(CounterCall):
    """A correction of tokens. It is deferred if Redis has certainly not executed it."""

    __slots__ = ("_counters", "_place", "_tokens")

    def __init__(self, counters: RedisCounters, place: TokenPlace, tokens: int) -> None:
        key_id, second, created = place
        super().__init__(_redis_key(key_id), ("correct_tokens", second, created, tokens))
        self._counters = counters
        self._place = place
        self._tokens = tokens

    def on_reply(self, reply: RedisReply | StoreUnavailable) -> None:
        if isinstance(reply, StoreUnavailable) and not isinstance(reply, OutcomeUnknown):
            self._counters.defer_token_correction(self._place, self._tokens)


class _Leaving(CounterCall):
    """An earlier process id leaves a key. It is repeated after the next connect if it fails."""

    __slots__ = ("_counters", "_key_id", "_process_id")

    def __init__(self, counters: RedisCounters, key_id: str, process_id: str) -> None:
        super().__init__(_redis_key(key_id), ("leave", process_id))
        self._counters = counters
        self._key_id = key_id
        self._process_id = process_id

    def on_reply(self, reply: RedisReply | StoreUnavailable) -> None:
        if isinstance(reply, StoreUnavailable):
            self._counters.add_unleft(self._key_id, self._process_id)


def _redis_key(key_id: str) -> str:
    return f"svc:key:{key_id}"
