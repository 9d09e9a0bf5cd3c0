"""Counters of keys in memory that all workers of one machine share, so that limits apply to the machine.

One slot for each key, in 64-bit words: HEAD | requests and tokens of each second | a pair per worker

    HEAD   hash of the key, last use, newest second, sums of requests and tokens, spent nano-USD, period start, period
    pair   requests in flight in that worker, nano-USD reserved there; cleared when the worker is replaced

Words that change together are neighbours, since `struct` reads or writes both in one call.

A change of a slot locks the slot's byte of the file. The kernel releases the lock when a process dies. The window has
61 one-second buckets, which contain any interval of 60 seconds. A single process uses `in_process` instead.
"""

from __future__ import annotations

import fcntl
import hashlib
import mmap
import os
import time
from array import array
from collections.abc import Callable
from pathlib import Path
from struct import Struct
from typing import Final

from svc.errors import CommandFailed
from svc.stores.counters.base import LimitExceeded, LimitUsage
from svc.stores.counters.key_limits import COUNTER_WINDOW_SECONDS, PERIOD_CODES, KeyLimits
from svc.stores.counters.local import LocalCounters, LocalReservation, seconds_until_budget_suffices

SLOT_COUNT: Final = 16_384
MAX_PROBES: Final = 16
PERIOD_START_UNKNOWN: Final = -1
"""The period start while the sum spent in the period is not loaded."""

_KEY_HASH: Final = 0
_LAST_USED: Final = 1
_NEWEST_SECOND: Final = 2
_REQUEST_SUM: Final = 3
_TOKEN_SUM: Final = 4
_SPENT_NANO_USD: Final = 5
_PERIOD_START: Final = 6
_PERIOD_CODE: Final = 7
HEAD_WORDS: Final = 8
_WINDOW: Final = HEAD_WORDS
"""Two words for each second: requests and tokens."""
_REQUESTS: Final = 0
_TOKENS: Final = 1
_WORKER_PAIRS: Final = HEAD_WORDS + 2 * COUNTER_WINDOW_SECONDS
_EMPTY_WINDOW: Final = array("q", bytes(8 * 2 * COUNTER_WINDOW_SECONDS))
_read_head: Final = Struct(f"{HEAD_WORDS}q").unpack_from
"""Reads all words of a head in one call. Reading a single word costs a third of that."""
_read_pair: Final = Struct("2q").unpack_from
_write_pair: Final = Struct("2q").pack_into


def _hash_key(key_id: str) -> int:
    """Return a 63-bit hash that identifies the key of a slot. Never 0."""
    return int.from_bytes(hashlib.sha256(key_id.encode()).digest()[:8], "big") >> 1 or 1


def _allocate(fd: int, path: Path, length: int) -> None:
    """Allocate the file's blocks. A disk that fills up later would cause SIGBUS otherwise. Raises CommandFailed."""
    try:
        os.posix_fallocate(fd, 0, length)
    except OSError as error:
        os.close(fd)
        path.unlink(missing_ok=True)
        needed = f"The counters that workers share need {length // 2**20} MiB in {path.parent}"
        raise CommandFailed(f"{needed}: {error.strerror}.") from error


def _has_period(head: tuple[int, ...], limits: KeyLimits) -> bool:
    """Return whether a slot has the sum that was spent in a period of this kind."""
    return head[_PERIOD_START] != PERIOD_START_UNKNOWN and head[_PERIOD_CODE] == PERIOD_CODES[limits.period]


class SharedMemoryReservation(LocalReservation):
    """A reservation in the slot of a key."""

    __slots__ = ("key_hash", "slot")

    def __init__(
        self,
        slot: int,
        key_hash: int,
        second: int,
        tokens: int,
        nano_usd: int,
        requests_left: int,
        tokens_left: int,
        reset_seconds: float,
    ) -> None:
        super().__init__(second, tokens, nano_usd, requests_left, tokens_left, reset_seconds)
        self.slot = slot
        self.key_hash = key_hash


class SharedCounters(LocalCounters):
    """Counters in a file that is mapped by up to `workers` processes; `worker` is the index of this process.

    `clock` returns seconds, equal in all processes.
    """

    def __init__(
        self,
        path: Path,
        *,
        worker: int = 0,
        workers: int,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._clock = clock
        self._slot_words = _WORKER_PAIRS + 2 * workers
        self._read_pairs = Struct(f"{2 * workers}q").unpack_from
        self._own_pair = _WORKER_PAIRS + 2 * worker
        self._slot_cache: dict[str, tuple[int, int]] = {}
        length = SLOT_COUNT * self._slot_words * 8
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        _allocate(self._fd, path, length)
        self._mmap = mmap.mmap(self._fd, length)
        self._words = memoryview(self._mmap).cast("q")
        self._recover_slots()

    def close(self) -> None:
        self._words.release()
        self._mmap.close()
        os.close(self._fd)

    def needs_spent(self, limits: KeyLimits) -> bool:
        slot, key_hash = self._slot_for_key(limits.key_id)
        # Without a lock: `set_spent` and `reserve` check again.
        head: tuple[int, ...] = _read_head(self._mmap, 8 * slot * self._slot_words)
        return head[_KEY_HASH] != key_hash or not _has_period(head, limits)

    def get_spent_nano_usd(self, limits: KeyLimits) -> int:
        slot, key_hash = self._slot_for_key(limits.key_id)
        self._lock_slot(slot)
        try:
            base = slot * self._slot_words
            self._claim_slot(base, key_hash)
            return self._words[base + _SPENT_NANO_USD] if self._try_roll_period(base, limits) else 0
        finally:
            self._unlock_slot(slot)

    def set_spent(self, limits: KeyLimits, spent_nano_usd: int) -> None:
        slot, key_hash = self._slot_for_key(limits.key_id)
        self._lock_slot(slot)
        try:
            base = slot * self._slot_words
            self._claim_slot(base, key_hash)
            if not self._try_roll_period(base, limits):
                self._words[base + _SPENT_NANO_USD] = spent_nano_usd
                self._words[base + _PERIOD_START] = limits.period_start
                self._words[base + _PERIOD_CODE] = PERIOD_CODES[limits.period]
        finally:
            self._unlock_slot(slot)

    def reserve(
        self, limits: KeyLimits, tokens: int, nano_usd: int, *, force: bool = False
    ) -> SharedMemoryReservation | LimitExceeded:
        outcome = self._reserve(limits, tokens, nano_usd, force=force, requires_spent=False)
        assert outcome is not None
        return outcome

    def reserve_if_spent_known(
        self, limits: KeyLimits, tokens: int, nano_usd: int
    ) -> SharedMemoryReservation | LimitExceeded | None:
        return self._reserve(limits, tokens, nano_usd, force=False, requires_spent=limits.budget_nano_usd > 0)

    def _reserve(
        self, limits: KeyLimits, tokens: int, nano_usd: int, *, force: bool, requires_spent: bool
    ) -> SharedMemoryReservation | LimitExceeded | None:
        slot, key_hash = self._slot_for_key(limits.key_id)
        now = self._clock()
        words, base, second = self._words, slot * self._slot_words, int(now)
        self._lock_slot(slot)
        try:
            head: tuple[int, ...] = _read_head(self._mmap, 8 * base)
            if head[_KEY_HASH] != key_hash or head[_NEWEST_SECOND] < second:
                self._claim_slot(base, key_hash)
                self._advance_window(base, second)
                head = _read_head(self._mmap, 8 * base)
            if requires_spent and not _has_period(head, limits):
                return None
            second, requests, used = head[_NEWEST_SECOND], head[_REQUEST_SUM], head[_TOKEN_SUM]
            bucket = base + _WINDOW + 2 * (second % COUNTER_WINDOW_SECONDS)
            remaining = max(0, limits.requests - requests), max(0, limits.tokens - used)
            exceeded = None if force else self._find_exceeded_limit(base, head, limits, tokens, nano_usd)
            if exceeded is not None:
                if exceeded[0] != "rpm":
                    words[bucket + _REQUESTS] += 1
                    words[base + _REQUEST_SUM] = requests + 1
                    remaining = max(0, remaining[0] - 1), remaining[1]
                resets = [self._seconds_until_empty(base, unit, second, now) for unit in (_REQUESTS, _TOKENS)]
                running, reserved = self._sum_running(base)
                usage = LimitUsage(requests, used, running, words[base + _SPENT_NANO_USD], reserved)
                return LimitExceeded(exceeded[0], exceeded[1], remaining[0], remaining[1], resets[0], resets[1], usage)
            self._add_to_pair(bucket, 1, tokens)
            _write_pair(self._mmap, 8 * (base + _REQUEST_SUM), requests + 1, used + tokens)
            self._add_to_pair(base + self._own_pair, 1, nano_usd)
        finally:
            self._unlock_slot(slot)
        reset = second + COUNTER_WINDOW_SECONDS - now
        return SharedMemoryReservation(
            slot, key_hash, second, tokens, nano_usd, max(0, remaining[0] - 1), max(0, remaining[1] - tokens), reset
        )

    def commit(self, reservation: LocalReservation, tokens: int, nano_usd: int) -> None:
        assert isinstance(reservation, SharedMemoryReservation)
        words, base = self._words, reservation.slot * self._slot_words
        self._lock_slot(reservation.slot)
        try:
            if words[base + _KEY_HASH] != reservation.key_hash:  # the slot was reassigned to another key
                return
            difference = tokens - reservation.tokens
            if difference and 0 <= words[base + _NEWEST_SECOND] - reservation.second < COUNTER_WINDOW_SECONDS:
                bucket = base + _WINDOW + 2 * (reservation.second % COUNTER_WINDOW_SECONDS)
                difference = max(difference, -words[bucket + _TOKENS])  # the slot may have been lost meanwhile
                words[bucket + _TOKENS] += difference
            else:
                difference = 0
            self._release(base, reservation.nano_usd)
            if difference or nano_usd:
                self._add_to_pair(base + _TOKEN_SUM, difference, nano_usd)  # and _SPENT_NANO_USD, its neighbour
        finally:
            self._unlock_slot(reservation.slot)

    def record_past_request(self, key_id: str, age_seconds: float, tokens: int) -> None:
        slot, key_hash = self._slot_for_key(key_id)
        now = self._clock()
        words, base, second = self._words, slot * self._slot_words, int(now - age_seconds)
        self._lock_slot(slot)
        try:
            self._claim_slot(base, key_hash)
            self._advance_window(base, int(now))
            if words[base + _NEWEST_SECOND] - second < COUNTER_WINDOW_SECONDS:
                self._add_to_pair(base + _WINDOW + 2 * (second % COUNTER_WINDOW_SECONDS), 1, tokens)
                words[base + _REQUEST_SUM] += 1
                words[base + _TOKEN_SUM] += tokens
        finally:
            self._unlock_slot(slot)

    def get_usage(self, limits: KeyLimits) -> LimitUsage:
        key_hash = _hash_key(limits.key_id)
        slot = self._find_slot(key_hash)
        if slot < 0:
            return LimitUsage()
        words, base = self._words, slot * self._slot_words
        self._lock_slot(slot)
        try:
            if words[base + _KEY_HASH] != key_hash:
                return LimitUsage()
            self._advance_window(base, int(self._clock()))
            running, reserved = self._sum_running(base)
            spent: int | None = words[base + _SPENT_NANO_USD]
            if (
                words[base + _PERIOD_START] == PERIOD_START_UNKNOWN
                or words[base + _PERIOD_CODE] != PERIOD_CODES[limits.period]
            ):
                spent = None
            elif limits.period_start > words[base + _PERIOD_START]:  # a new period, which starts with its first request
                spent = 0
            return LimitUsage(words[base + _REQUEST_SUM], words[base + _TOKEN_SUM], running, spent, reserved)
        finally:
            self._unlock_slot(slot)

    # inside a slot

    def _find_exceeded_limit(
        self, base: int, head: tuple[int, ...], limits: KeyLimits, tokens: int, nano_usd: int
    ) -> tuple[str, float] | None:
        second, requests, used = head[_NEWEST_SECOND], head[_REQUEST_SUM], head[_TOKEN_SUM]
        if limits.requests and requests >= limits.requests:
            return "rpm", self._seconds_until_freed(base, _REQUESTS, second, requests - limits.requests + 1)
        if limits.tokens and used + tokens > limits.tokens:
            return "tpm", self._seconds_until_freed(base, _TOKENS, second, used + tokens - limits.tokens)
        if limits.concurrency or limits.budget_nano_usd:
            running, reserved = self._sum_running(base)
            if limits.concurrency and running >= limits.concurrency:
                return "concurrency", 1.0
            if limits.budget_nano_usd:
                spent_nano_usd = head[_SPENT_NANO_USD]
                if limits.period_start > head[_PERIOD_START] and self._try_roll_period(base, limits):
                    spent_nano_usd = 0
                seconds = seconds_until_budget_suffices(limits, spent_nano_usd, reserved, nano_usd)
                if seconds > 0:
                    return "budget", seconds
        return None

    def _add_to_pair(self, index: int, first_amount: int, second_amount: int) -> None:
        """Add to the word at `index` and to the next one."""
        pair: tuple[int, int] = _read_pair(self._mmap, 8 * index)
        _write_pair(self._mmap, 8 * index, pair[0] + first_amount, pair[1] + second_amount)

    def _release(self, base: int, nano_usd: int) -> None:
        """Remove a request from those in flight in this worker. The pair may have been cleared meanwhile."""
        offset = 8 * (base + self._own_pair)
        pair: tuple[int, int] = _read_pair(self._mmap, offset)
        _write_pair(self._mmap, offset, max(0, pair[0] - 1), max(0, pair[1] - nano_usd))

    def _seconds_until_freed(self, base: int, unit: int, second: int, needed: int) -> float:
        """Return the seconds until `needed` units have left the window."""
        freed = 0
        for age in range(COUNTER_WINDOW_SECONDS - 1, -1, -1):
            freed += self._words[base + _WINDOW + 2 * ((second - age) % COUNTER_WINDOW_SECONDS) + unit]
            if freed >= needed:
                return float(COUNTER_WINDOW_SECONDS - age)
        return float(COUNTER_WINDOW_SECONDS)

    def _seconds_until_empty(self, base: int, unit: int, second: int, now: float) -> float:
        """Return the seconds until all units have left the window."""
        for age in range(COUNTER_WINDOW_SECONDS):
            if self._words[base + _WINDOW + 2 * ((second - age) % COUNTER_WINDOW_SECONDS) + unit]:
                return second - age + COUNTER_WINDOW_SECONDS - now
        return 0.0

    def _sum_running(self, base: int) -> tuple[int, int]:
        """Return the requests in flight and the reserved nano-USD of all workers."""
        pairs: tuple[int, ...] = self._read_pairs(self._mmap, 8 * (base + _WORKER_PAIRS))
        count = nano_usd = 0
        for index in range(0, len(pairs), 2):
            count += pairs[index]
            nano_usd += pairs[index + 1]
        return count, nano_usd

    def _try_roll_period(self, base: int, limits: KeyLimits) -> bool:
        """Start a new period when the old one has ended. Return False if the spent sum is unknown."""
        words, period_code = self._words, PERIOD_CODES[limits.period]
        if words[base + _PERIOD_START] == PERIOD_START_UNKNOWN or words[base + _PERIOD_CODE] != period_code:
            return False
        if limits.period_start > words[base + _PERIOD_START]:
            words[base + _PERIOD_START], words[base + _SPENT_NANO_USD] = limits.period_start, 0
        return True

    def _advance_window(self, base: int, second: int) -> None:
        """Clear the buckets that have left the window."""
        words = self._words
        newest = words[base + _NEWEST_SECOND]
        if second <= newest:
            return
        if second - newest >= COUNTER_WINDOW_SECONDS:
            words[base + _WINDOW : base + _WORKER_PAIRS] = memoryview(_EMPTY_WINDOW)
            words[base + _REQUEST_SUM] = words[base + _TOKEN_SUM] = 0
        else:
            for old in range(newest + 1, second + 1):
                bucket = base + _WINDOW + 2 * (old % COUNTER_WINDOW_SECONDS)
                if words[bucket + _REQUESTS] or words[bucket + _TOKENS]:
                    words[base + _REQUEST_SUM] -= words[bucket + _REQUESTS]
                    words[base + _TOKEN_SUM] -= words[bucket + _TOKENS]
                    words[bucket + _REQUESTS] = words[bucket + _TOKENS] = 0
        words[base + _NEWEST_SECOND] = words[base + _LAST_USED] = second

    # slots

    def _slot_for_key(self, key_id: str) -> tuple[int, int]:
        cached = self._slot_cache.get(key_id)
        if cached is not None and self._words[cached[0] * self._slot_words + _KEY_HASH] == cached[1]:
            return cached
        key_hash = _hash_key(key_id)
        if len(self._slot_cache) > SLOT_COUNT:
            self._slot_cache.clear()
        cached = self._slot_cache[key_id] = (self._assign_slot(key_hash), key_hash)
        return cached

    def _find_slot(self, key_hash: int) -> int:
        """Return the key's slot, or -1 if it has none."""
        for probe in range(MAX_PROBES):
            slot = (key_hash + probe) % SLOT_COUNT
            if self._words[slot * self._slot_words + _KEY_HASH] == key_hash:
                return slot
        return -1

    def _assign_slot(self, key_hash: int) -> int:
        """Return the key's slot, or a free one, or the least recently used one, for `_claim_slot`."""
        words, oldest, oldest_use = self._words, 0, 2**62
        self._lock_slot(SLOT_COUNT)
        try:
            for probe in range(MAX_PROBES):
                slot = (key_hash + probe) % SLOT_COUNT
                base = slot * self._slot_words
                if words[base + _KEY_HASH] == key_hash:
                    return slot
                if words[base + _KEY_HASH] == 0:
                    oldest = slot
                    break
                if words[base + _LAST_USED] < oldest_use:
                    oldest, oldest_use = slot, words[base + _LAST_USED]
            self._lock_slot(oldest)
            base = oldest * self._slot_words
            self._claim_slot(base, key_hash)
            words[base + _LAST_USED] = int(self._clock())
            self._unlock_slot(oldest)
            return oldest
        finally:
            self._unlock_slot(SLOT_COUNT)

    def _claim_slot(self, base: int, key_hash: int) -> None:
        """Reset the slot if it belongs to another key. It can be reassigned between the lookup and the lock."""
        if self._words[base + _KEY_HASH] != key_hash:
            self._words[base : base + self._slot_words] = memoryview(array("q", bytes(8 * self._slot_words)))
            self._words[base + _KEY_HASH], self._words[base + _PERIOD_START] = key_hash, PERIOD_START_UNKNOWN

    def _recover_slots(self) -> None:
        """Clear the requests in flight of the previous worker, which can have died during a change."""
        words = self._words
        for slot in range(SLOT_COUNT):
            base = slot * self._slot_words
            if words[base + _KEY_HASH]:
                self._lock_slot(slot)
                words[base + self._own_pair] = words[base + self._own_pair + 1] = 0
                window = words[base + _WINDOW : base + _WORKER_PAIRS].tolist()
                words[base + _REQUEST_SUM] = sum(window[_REQUESTS::2])
                words[base + _TOKEN_SUM] = sum(window[_TOKENS::2])
                self._unlock_slot(slot)

    def _lock_slot(self, slot: int) -> None:
        fcntl.lockf(self._fd, fcntl.LOCK_EX, 1, slot)

    def _unlock_slot(self, slot: int) -> None:
        fcntl.lockf(self._fd, fcntl.LOCK_UN, 1, slot)
