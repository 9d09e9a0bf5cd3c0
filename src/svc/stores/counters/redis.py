"""Counters of keys in Redis, which several machines share. A request calls the script `counters.lua` twice.

A key that reached its request limit stays limited until the window advances. Until then this process repeats the
rejection without a command to Redis, for at most MAX_REJECTION_AGE_SECONDS: an operator may have deleted the counters.

Each process counts its requests in flight under a process id, and repeats in each key that it is active. Without that
for 15 s, its requests in flight no longer count. After each loss of the connection the process takes a new id, since
the outcome of pending commands is unknown. The old id leaves its keys after the reconnect: Redis may have executed
reservations that nobody will release, and may still execute others that wait in the lost connection. A new primary can
lack releases that the old one had executed. `svc.stores.counters.redis_reports` keeps what has to be reported then.

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
from typing import Any, Final

import msgspec

from svc.stores.counters.base import LimitExceeded, LimitUsage
from svc.stores.counters.counter_calls import CallResult, CounterCall, CounterCallBatcher
from svc.stores.counters.key_limits import COUNTER_WINDOW_SECONDS, PERIOD_CODES, KeyLimits
from svc.stores.counters.redis_reports import MAX_SPENT_SEEDS, PROCESS_TTL_SECONDS, CounterReports
from svc.stores.counters.redis_types import CachedRejection, RedisReservation, SpentRequired, redis_key
from svc.stores.database.base import StoreUnavailable
from svc.stores.redis.base import LuaScript, OnSlow, OutcomeUnknown, RedisClient

HEARTBEAT_SECONDS: Final = 5.0
"""The interval at which keys with requests in flight are kept alive: a third of their time in `counters.lua`."""
HEARTBEAT_BATCH_KEYS: Final = 100
HEARTBEAT_BATCH_SECONDS: Final = 0.02
"""Keys that are kept alive at once, and the seconds between two batches."""
BUSY_KEY_FRACTION: Final = 0.25
"""A key with more of its concurrent requests in flight is busy: its client may wait for the end of one of them.

The end of a request of another key goes to Redis with other calls, which takes less CPU time. Every process knows the
requests in flight only from its own reservations, so that the fraction is far below 1.
"""
MAX_REJECTION_AGE_SECONDS: Final = 5.0
MAX_CACHED_REJECTIONS: Final = 10_000
"""Maximum number of keys with a cached rejection."""
REPLY_LENGTHS: Final = (1, 8, 12)
SEED_BITS: Final = 48
"""Size of the id of a sum that is loaded: Lua's numbers have 53 bits."""
ASK_FOR_SPENT: Final = ""
SPENT_UNAVAILABLE: Final = -1
"""Values in place of the spent sum: request it from the caller, or count without it because it is unavailable."""


OnDecision = Callable[[RedisReservation | LimitExceeded | SpentRequired | StoreUnavailable], None]


class RedisCounters:
    """Counters in Redis. They belong to one event loop, from `start` to `close`, and do not own the connection."""

    def __init__(self, redis: RedisClient, clock: Callable[[], float] = time.monotonic) -> None:
        self._redis = redis
        self._clock = clock
        source = resources.files("svc.stores.counters").joinpath("counters.lua")
        self._calls = CounterCallBatcher(redis, LuaScript(source.read_text(encoding="utf-8")))
        self._reports = CounterReports(self._calls, clock)
        self._process_id = ""
        self._connected_at = 0.0
        self._open_counts: dict[str, int] = {}
        """The reservations under the current process id, by key."""
        self._used_at: dict[str, float] = {}
        """When this process last reserved under the current process id, by key, for PROCESS_TTL_SECONDS."""
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
        leaving = [self._calls.execute(redis_key(key_id), "leave", self._process_id) for key_id in self._open_counts]
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
        self._reports.raise_spent(limits, spent_nano_usd, random.getrandbits(SEED_BITS))

    def handle_reply(
        self, reply: CallResult, limits: KeyLimits, tokens: int, nano_usd: int, process_id: str
    ) -> RedisReservation | LimitExceeded | SpentRequired | StoreUnavailable:
        """Return the outcome of a reservation, and record what it says about the key."""
        if len(reply) not in REPLY_LENGTHS:
            return StoreUnavailable("Redis sent an unexpected reply.")
        if reply[0] == 1:
            return self._handle_admission(reply, limits, tokens, nano_usd, process_id)
        if reply[0] == 0:
            return self._handle_rejection(reply, limits)
        return SpentRequired()

    def _handle_admission(
        self, reply: list[Any], limits: KeyLimits, tokens: int, nano_usd: int, process_id: str
    ) -> RedisReservation:
        _, requests_left, tokens_left, reset_milliseconds, second, seed, running, created = reply
        key_id, has_budget, now = limits.key_id, limits.budget_nano_usd > 0, self._clock()
        if has_budget:
            self._reports.remember_seed(key_id, seed)
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

    def _handle_rejection(self, reply: list[Any], limits: KeyLimits) -> LimitExceeded:
        _, limit, retry, requests_left, tokens_left, requests_reset, tokens_reset, *used = reply
        wait = math.inf if retry < 0 else retry / 1000
        resets = requests_reset / 1000, tokens_reset / 1000
        rejection = LimitExceeded(limit, wait, requests_left, tokens_left, *resets, LimitUsage(*used))
        if rejection.limit == "rpm":
            self._cache_rejection(limits, rejection)
        elif rejection.limit == "concurrency" and limits.key_id in self._open_counts:
            self._busy_key_ids.add(limits.key_id)
        return rejection

    def _cache_rejection(self, limits: KeyLimits, rejection: LimitExceeded) -> None:
        if len(self._rejections) >= MAX_CACHED_REJECTIONS:
            self._rejections.clear()
        self._rejections[limits.key_id] = CachedRejection(limits.requests, self._clock(), rejection)

    def _current_rejection(self, cached: CachedRejection, limits: KeyLimits) -> LimitExceeded | None:
        """Return the rejection with its current times, or None if it is no longer valid."""
        rejection, elapsed_seconds = cached.rejection, self._clock() - cached.created_at
        valid_seconds = min(rejection.retry_after, MAX_REJECTION_AGE_SECONDS)
        if elapsed_seconds >= valid_seconds or cached.request_limit != limits.requests:
            del self._rejections[limits.key_id]
            return None
        return msgspec.structs.replace(
            rejection,
            retry_after=rejection.retry_after - elapsed_seconds,
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
        self._reports.commit(reservation, tokens, nano_usd)
        if is_busy:  # the client's next request may reach Redis from another machine or worker
            self._calls.flush()

    def record_spend(self, key_id: str, nano_usd: int) -> None:
        """Record the cost of a request that has no reservation in Redis."""
        self._reports.record_spend(key_id, self._process_id, nano_usd)

    async def get_usage(self, limits: KeyLimits) -> LimitUsage:
        """Return the current usage over all machines. Raises StoreUnavailable."""
        period_code, key = PERIOD_CODES[limits.period], redis_key(limits.key_id)
        reply = await self._calls.execute(key, "get_usage", period_code, limits.period_start)
        if len(reply) != 5:
            raise StoreUnavailable("Redis sent an unexpected reply.")
        requests, tokens, running, spent, reserved = reply
        return LimitUsage(requests, tokens, running, None if spent < 0 else spent, reserved)

    def add_unknown_reservation(self, key_id: str, process_id: str) -> None:
        """Release a reservation after the next connect: Redis may have executed it."""
        self._reports.defer_release(key_id, process_id)

    def _on_connect(self) -> None:
        """Take a new process id, leave keys under the old ones, and report the deferred tokens and spending."""
        self._connected_at = self._clock()
        self._forget_expired(self._connected_at)
        previous_process_id, self._process_id = self._process_id, secrets.token_hex(8)
        used_key_ids = (*self._open_counts, *self._used_at)
        self._used_at.clear()
        self._compared_sums.clear()
        self._rejections.clear()
        self._open_counts.clear()
        self._busy_key_ids.clear()
        self._reports.send_deferred(self._process_id, used_key_ids, previous_process_id)

    def _forget_expired(self, now: float) -> None:
        """Forget what Redis has forgotten as well, since the process ids have expired there."""
        oldest = now - PROCESS_TTL_SECONDS
        self._used_at = {key_id: at for key_id, at in self._used_at.items() if at >= oldest}
        self._reports.forget_expired(now)

    async def _run_heartbeat(self) -> None:
        while True:
            await asyncio.sleep(HEARTBEAT_SECONDS)
            self._forget_expired(self._clock())
            key_ids, arguments = list(self._open_counts), ("keep_alive", self._process_id)
            for start in range(0, len(key_ids), HEARTBEAT_BATCH_KEYS):
                for key_id in key_ids[start : start + HEARTBEAT_BATCH_KEYS]:
                    self._calls.add(CounterCall(redis_key(key_id), arguments))
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
        arguments = (
            "reserve",
            process_id,
            limits.requests,
            limits.tokens,
            limits.concurrency,
            limits.budget_nano_usd,
            PERIOD_CODES[limits.period],
            limits.period_start,
            tokens,
            nano_usd,
            ASK_FOR_SPENT if spent is None else spent,
            0 if spent is None else random.getrandbits(SEED_BITS),
        )
        super().__init__(redis_key(limits.key_id), arguments)
        self._counters = counters
        self._limits = limits
        self._tokens = tokens
        self._nano_usd = nano_usd
        self._process_id = process_id
        self._on_decision = on_decision
        self._on_slow = on_slow

    def on_reply(self, reply: CallResult | StoreUnavailable) -> None:
        if isinstance(reply, StoreUnavailable):
            if isinstance(reply, OutcomeUnknown):
                self._counters.add_unknown_reservation(self._limits.key_id, self._process_id)
            self._on_decision(reply)
        else:
            self._on_decision(
                self._counters.handle_reply(reply, self._limits, self._tokens, self._nano_usd, self._process_id)
            )

    def on_slow(self) -> None:
        if self._on_slow is not None:
            self._on_slow()
