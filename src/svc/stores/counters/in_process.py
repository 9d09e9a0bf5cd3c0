"""Counters of keys that one process keeps for itself, with exact windows. On the hot path.

    KeyCounters    one key: requests and tokens of each second, of requests in flight, and of the budget period

A minute is a window of 61 one-second buckets, which contain any interval of 60 seconds.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

from svc.stores.counters.base import LimitExceeded, LimitUsage
from svc.stores.counters.key_limits import COUNTER_WINDOW_SECONDS, KeyLimits
from svc.stores.counters.local import LocalCounters, LocalReservation, seconds_until_budget_suffices

MAX_COUNTED_KEYS: Final = 16_384
"""The number of keys from which on idle ones are evicted. Keys with requests in flight are kept beyond it."""
_EVICTED_KEYS: Final = MAX_COUNTED_KEYS // 16
"""Keys that are evicted at once, since the search for the least recently used ones takes milliseconds."""
_UNKNOWN_PERIOD: Final = ""


class KeyCounters:
    """The usage of one key. `newest_second` is the end of the window, and the last use of the key."""

    __slots__ = (
        "newest_second",
        "period",
        "period_start",
        "request_sum",
        "requests",
        "reserved_nano_usd",
        "running",
        "spent_nano_usd",
        "token_sum",
        "tokens",
    )

    def __init__(self, second: int) -> None:
        self.newest_second = second
        self.requests: list[int] = [0] * COUNTER_WINDOW_SECONDS
        self.tokens: list[int] = [0] * COUNTER_WINDOW_SECONDS
        self.request_sum = 0
        self.token_sum = 0
        self.running = 0
        self.reserved_nano_usd = 0
        self.spent_nano_usd = 0
        self.period = _UNKNOWN_PERIOD
        """The kind of the period, or _UNKNOWN_PERIOD until its sum is loaded."""
        self.period_start = 0

    def advance(self, second: int) -> None:
        """Clear the buckets that have left the window."""
        if second - self.newest_second >= COUNTER_WINDOW_SECONDS:
            self.requests = [0] * COUNTER_WINDOW_SECONDS
            self.tokens = [0] * COUNTER_WINDOW_SECONDS
            self.request_sum = self.token_sum = 0
        else:
            for old in range(self.newest_second + 1, second + 1):
                index = old % COUNTER_WINDOW_SECONDS
                self.request_sum -= self.requests[index]
                self.token_sum -= self.tokens[index]
                self.requests[index] = self.tokens[index] = 0
        self.newest_second = max(self.newest_second, second)

    def try_roll_period(self, limits: KeyLimits) -> bool:
        """Start a new period when the old one has ended. Return False if the spent sum is unknown."""
        if self.period != limits.period:
            return False
        if limits.period_start > self.period_start:
            self.period_start, self.spent_nano_usd = limits.period_start, 0
        return True

    def find_exceeded_limit(self, limits: KeyLimits, tokens: int, nano_usd: int) -> tuple[str, float] | None:
        """Return the limit that a request exceeds, and the seconds until it may fit."""
        if limits.requests and self.request_sum >= limits.requests:
            return "rpm", self._seconds_until_freed(self.requests, self.request_sum - limits.requests + 1)
        if limits.tokens and self.token_sum + tokens > limits.tokens:
            return "tpm", self._seconds_until_freed(self.tokens, self.token_sum + tokens - limits.tokens)
        if limits.concurrency and self.running >= limits.concurrency:
            return "concurrency", 1.0
        if limits.budget_nano_usd:
            self.try_roll_period(limits)
            seconds = seconds_until_budget_suffices(limits, self.spent_nano_usd, self.reserved_nano_usd, nano_usd)
            if seconds > 0:
                return "budget", seconds
        return None

    def reject(self, limits: KeyLimits, name: str, retry_after: float, now: float) -> LimitExceeded:
        """Count a request that exceeds the limit `name` for `rpm` only. A request that exceeds `rpm` does not count."""
        usage = LimitUsage(self.request_sum, self.token_sum, self.running, self.spent_nano_usd, self.reserved_nano_usd)
        if name != "rpm":
            self.requests[self.newest_second % COUNTER_WINDOW_SECONDS] += 1
            self.request_sum += 1
        return LimitExceeded(
            name,
            retry_after,
            max(0, limits.requests - self.request_sum),
            max(0, limits.tokens - self.token_sum),
            self._seconds_until_empty(self.requests, now),
            self._seconds_until_empty(self.tokens, now),
            usage,
        )

    def get_usage(self, limits: KeyLimits) -> LimitUsage:
        spent: int | None = self.spent_nano_usd
        if self.period != limits.period:
            spent = None
        elif limits.period_start > self.period_start:  # a new period, which starts with its first request
            spent = 0
        return LimitUsage(self.request_sum, self.token_sum, self.running, spent, self.reserved_nano_usd)

    def _seconds_until_freed(self, buckets: list[int], needed: int) -> float:
        """Return the seconds until `needed` units have left the window."""
        freed = 0
        for age in range(COUNTER_WINDOW_SECONDS - 1, -1, -1):
            freed += buckets[(self.newest_second - age) % COUNTER_WINDOW_SECONDS]
            if freed >= needed:
                return float(COUNTER_WINDOW_SECONDS - age)
        return float(COUNTER_WINDOW_SECONDS)

    def _seconds_until_empty(self, buckets: list[int], now: float) -> float:
        """Return the seconds until all units have left the window."""
        for age in range(COUNTER_WINDOW_SECONDS):
            if buckets[(self.newest_second - age) % COUNTER_WINDOW_SECONDS]:
                return self.newest_second - age + COUNTER_WINDOW_SECONDS - now
        return 0.0


class InProcessReservation(LocalReservation):
    """A reservation of one process. `counters` are those of its key."""

    __slots__ = ("counters",)

    def __init__(
        self,
        counters: KeyCounters,
        second: int,
        tokens: int,
        nano_usd: int,
        requests_left: int,
        tokens_left: int,
        reset_seconds: float,
    ) -> None:
        super().__init__(second, tokens, nano_usd, requests_left, tokens_left, reset_seconds)
        self.counters = counters


class InProcessCounters(LocalCounters):
    """The counters of the only process that serves requests. `clock` returns seconds."""

    __slots__ = ("_clock", "_evict_at", "_keys")

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._keys: dict[str, KeyCounters] = {}
        self._evict_at = MAX_COUNTED_KEYS
        """The number of keys at which some are evicted."""

    def needs_spent(self, limits: KeyLimits) -> bool:
        counters = self._keys.get(limits.key_id)
        return counters is None or counters.period != limits.period

    def get_spent_nano_usd(self, limits: KeyLimits) -> int:
        counters = self._keys.get(limits.key_id)
        return counters.spent_nano_usd if counters is not None and counters.try_roll_period(limits) else 0

    def set_spent(self, limits: KeyLimits, spent_nano_usd: int) -> None:
        counters = self._counters_of(limits.key_id, int(self._clock()))
        if not counters.try_roll_period(limits):
            counters.spent_nano_usd = spent_nano_usd
            counters.period, counters.period_start = limits.period, limits.period_start

    def reserve(
        self, limits: KeyLimits, tokens: int, nano_usd: int, *, force: bool = False
    ) -> LocalReservation | LimitExceeded:
        now = self._clock()
        return self._reserve(self._counters_of(limits.key_id, int(now)), limits, tokens, nano_usd, now, force=force)

    def reserve_if_spent_known(
        self, limits: KeyLimits, tokens: int, nano_usd: int
    ) -> LocalReservation | LimitExceeded | None:
        now = self._clock()
        counters = self._counters_of(limits.key_id, int(now))
        if limits.budget_nano_usd and counters.period != limits.period:
            return None
        return self._reserve(counters, limits, tokens, nano_usd, now, force=False)

    def _reserve(
        self, counters: KeyCounters, limits: KeyLimits, tokens: int, nano_usd: int, now: float, *, force: bool
    ) -> LocalReservation | LimitExceeded:
        if not force:
            exceeded = counters.find_exceeded_limit(limits, tokens, nano_usd)
            if exceeded is not None:
                return counters.reject(limits, exceeded[0], exceeded[1], now)
        second = counters.newest_second
        index = second % COUNTER_WINDOW_SECONDS
        counters.requests[index] += 1
        counters.tokens[index] += tokens
        counters.request_sum += 1
        counters.token_sum += tokens
        counters.running += 1
        counters.reserved_nano_usd += nano_usd
        return InProcessReservation(
            counters,
            second,
            tokens,
            nano_usd,
            max(0, limits.requests - counters.request_sum),
            max(0, limits.tokens - counters.token_sum),
            second + COUNTER_WINDOW_SECONDS - now,
        )

    def commit(self, reservation: LocalReservation, tokens: int, nano_usd: int) -> None:
        assert isinstance(reservation, InProcessReservation)
        counters = reservation.counters
        difference = tokens - reservation.tokens
        if difference and counters.newest_second - reservation.second < COUNTER_WINDOW_SECONDS:
            counters.tokens[reservation.second % COUNTER_WINDOW_SECONDS] += difference
            counters.token_sum += difference
        counters.running -= 1
        counters.reserved_nano_usd -= reservation.nano_usd
        counters.spent_nano_usd += nano_usd

    def record_past_request(self, key_id: str, age_seconds: float, tokens: int) -> None:
        now = self._clock()
        counters, second = self._counters_of(key_id, int(now)), int(now - age_seconds)
        if counters.newest_second - second < COUNTER_WINDOW_SECONDS:
            index = second % COUNTER_WINDOW_SECONDS
            counters.requests[index] += 1
            counters.tokens[index] += tokens
            counters.request_sum += 1
            counters.token_sum += tokens

    def get_usage(self, limits: KeyLimits) -> LimitUsage:
        counters = self._keys.get(limits.key_id)
        if counters is None:
            return LimitUsage()
        counters.advance(int(self._clock()))
        return counters.get_usage(limits)

    def _counters_of(self, key_id: str, second: int) -> KeyCounters:
        """Return the counters of a key, with the window up to `second`."""
        counters = self._keys.get(key_id)
        if counters is None:
            if len(self._keys) >= self._evict_at:
                self._evict_keys()
            counters = self._keys[key_id] = KeyCounters(second)
        elif counters.newest_second < second:
            counters.advance(second)
        return counters

    def _evict_keys(self) -> None:
        """Evict the least recently used keys, except for those with requests in flight."""
        idle = sorted([each for each in self._keys.items() if not each[1].running], key=_key_last_used)
        for key_id, _ in idle[: len(self._keys) - MAX_COUNTED_KEYS + _EVICTED_KEYS]:
            del self._keys[key_id]
        self._evict_at = max(MAX_COUNTED_KEYS, len(self._keys) + _EVICTED_KEYS)


def _key_last_used(entry: tuple[str, KeyCounters]) -> int:
    return entry[1].newest_second
