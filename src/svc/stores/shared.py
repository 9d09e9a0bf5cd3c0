"""Counters of keys in memory that the workers of one machine share: no limit multiplies with their number.

    one slot a key, words of 64 bits:   HEAD | requests in each second | tokens in each second | a pair for each worker
      HEAD   hash of the key, last use, newest second, both sums, spent nano-USD, its period's start and kind
      pair   requests that run in that worker, nano-USD reserved there: cleared when the worker is replaced

A slot is changed under a lock on its byte of the file, which the kernel frees when a process dies. One process alone
needs neither file nor lock. The window is 61 buckets of a second: whatever 60 seconds one takes lie within it.
"""

from __future__ import annotations

import fcntl
import hashlib
import math
import mmap
import os
import time
from array import array
from collections.abc import Callable
from pathlib import Path
from struct import Struct
from typing import Final

from svc.errors import CommandFailed
from svc.stores.counting import BUCKETS, KINDS, Denied, Limits, Use

SLOTS: Final = 16_384
PROBES: Final = 16
UNKNOWN: Final = -1
"""The start of the period while nobody has said what was spent in it."""

_HASH, _USED, _NEWEST, _REQUESTS, _TOKENS, _SPENT, _START, _KIND, HEAD = range(9)
_SECONDS: Final = HEAD
_TOKEN_SECONDS: Final = HEAD + BUCKETS
_PAIRS: Final = HEAD + 2 * BUCKETS
_EMPTY: Final = array("q", bytes(8 * 2 * BUCKETS))
_head: Final = Struct(f"{HEAD}q").unpack_from
"""All words of a head at once: each one by itself costs a third of this."""


def _mark(key_id: str) -> int:
    """63 bits by which a slot knows its key, never 0."""
    return int.from_bytes(hashlib.sha256(key_id.encode()).digest()[:8], "big") >> 1 or 1


def _allocate(file: int, path: Path, length: int) -> None:
    """Takes the room at once: a disk that fills up later must not take a page away. Raises CommandFailed."""
    try:
        os.posix_fallocate(file, 0, length)
    except OSError as error:
        os.close(file)
        path.unlink(missing_ok=True)
        needed = f"The counters that workers share need {length // 2**20} MiB in {path.parent}"
        raise CommandFailed(f"{needed}: {error.strerror}.") from error


class Taken:
    """A reservation, to be settled once; what was left after it, of requests and tokens."""

    __slots__ = ("hash", "nanos", "requests_left", "reset", "second", "slot", "tokens", "tokens_left")

    def __init__(
        self,
        slot: int,
        hash: int,
        second: int,
        tokens: int,
        nanos: int,
        requests_left: int,
        tokens_left: int,
        reset: float,
    ) -> None:
        self.slot = slot
        self.hash = hash
        self.second = second
        self.tokens = tokens
        self.nanos = nanos
        self.requests_left = requests_left
        self.tokens_left = tokens_left
        self.reset = reset
        """Seconds until this request has left the window."""


class SharedCounters:
    """`path` None: for this process alone. `worker` is this process's own pair, of `workers` at most.

    `clock` gives seconds, the same in all processes of a machine.
    """

    def __init__(
        self,
        path: Path | None = None,
        *,
        worker: int = 0,
        workers: int = 1,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._clock = clock
        self._size = _PAIRS + 2 * workers
        self._pairs = Struct(f"{2 * workers}q").unpack_from
        self._pair = _PAIRS + 2 * worker
        self._known: dict[str, tuple[int, int]] = {}
        self._file = -1
        length = SLOTS * self._size * 8
        if path is None:
            self._map = mmap.mmap(-1, length)
        else:
            self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            _allocate(self._file, path, length)
            self._map = mmap.mmap(self._file, length)
        self._words = memoryview(self._map).cast("q")
        if path is not None:
            self._mend()

    def close(self) -> None:
        self._words.release()
        self._map.close()
        if self._file >= 0:
            os.close(self._file)

    def needs_spent(self, limits: Limits) -> bool:
        """Whether `begin` has to say what the key has spent before its budget can be kept."""
        slot, mark = self._slot(limits.key_id)
        words, base = self._words, slot * self._size  # without a lock: `begin` and `take` look again
        unknown = words[base + _HASH] != mark or words[base + _START] == UNKNOWN
        return unknown or words[base + _KIND] != KINDS[limits.period]

    def spent(self, limits: Limits) -> int:
        """Nano-USD that are known to be spent in the key's period."""
        slot, mark = self._slot(limits.key_id)
        self._lock(slot)
        try:
            base = slot * self._size
            self._claim(base, mark)
            return 0 if self._roll(base, limits) else self._words[base + _SPENT]
        finally:
            self._unlock(slot)

    def begin(self, limits: Limits, spent: int) -> None:
        """Sets what was spent before, unless another process has done so."""
        slot, mark = self._slot(limits.key_id)
        self._lock(slot)
        try:
            base = slot * self._size
            self._claim(base, mark)
            if self._roll(base, limits):
                self._words[base + _SPENT] = spent
                self._words[base + _START] = limits.start
                self._words[base + _KIND] = KINDS[limits.period]
        finally:
            self._unlock(slot)

    def take(self, limits: Limits, tokens: int, nanos: int, *, forced: bool = False) -> Taken | Denied:
        """Reserves one request, tokens and money. `forced` counts it whatever the limits are.

        A request that another limit than `rpm` refuses counts for `rpm`, and reserves nothing else.
        """
        slot, mark = self._slot(limits.key_id)
        now = self._clock()
        words, base, second = self._words, slot * self._size, int(now)
        self._lock(slot)
        try:
            head: tuple[int, ...] = _head(self._map, 8 * base)
            if head[_HASH] != mark or head[_NEWEST] < second:
                self._claim(base, mark)
                self._advance(base, second)
                head = _head(self._map, 8 * base)
            second, requests, used = head[_NEWEST], head[_REQUESTS], head[_TOKENS]
            left = max(0, limits.requests - requests), max(0, limits.tokens - used)
            refused = None if forced else self._refusal(base, head, limits, tokens, nanos)
            if refused is not None:
                if refused[0] != "rpm":
                    words[base + _SECONDS + second % BUCKETS] += 1
                    words[base + _REQUESTS] = requests + 1
                    left = max(0, left[0] - 1), left[1]
                resets = [self._reset(base, row, second, now) for row in (_SECONDS, _TOKEN_SECONDS)]
                return Denied(refused[0], refused[1], left[0], left[1], resets[0], resets[1])
            at = base + _SECONDS + second % BUCKETS
            words[at] += 1
            words[base + _REQUESTS] = requests + 1
            if tokens:
                words[at + BUCKETS] += tokens
                words[base + _TOKENS] = used + tokens
            pair = base + self._pair
            words[pair] += 1
            if nanos:
                words[pair + 1] += nanos
        finally:
            self._unlock(slot)
        reset = second + BUCKETS - now
        return Taken(slot, mark, second, tokens, nanos, max(0, left[0] - 1), max(0, left[1] - tokens), reset)

    def settle(self, taken: Taken, tokens: int, nanos: int) -> None:
        """Ends a reservation with what was really used."""
        words, base = self._words, taken.slot * self._size
        self._lock(taken.slot)
        try:
            if words[base + _HASH] != taken.hash:  # the slot went to another key
                return
            difference = tokens - taken.tokens
            if difference and 0 <= words[base + _NEWEST] - taken.second < BUCKETS:
                words[base + _TOKEN_SECONDS + taken.second % BUCKETS] += difference
                words[base + _TOKENS] += difference
            pair = base + self._pair
            words[pair] = max(0, words[pair] - 1)
            if taken.nanos:
                words[pair + 1] = max(0, words[pair + 1] - taken.nanos)
            if nanos:
                words[base + _SPENT] += nanos
        finally:
            self._unlock(taken.slot)

    def recall(self, key_id: str, age: float, tokens: int) -> None:
        """Counts what was let through so many seconds ago, by a process that is gone."""
        slot, mark = self._slot(key_id)
        now = self._clock()
        words, base, second = self._words, slot * self._size, int(now - age)
        self._lock(slot)
        try:
            self._claim(base, mark)
            self._advance(base, int(now))
            if words[base + _NEWEST] - second < BUCKETS:
                at = base + _SECONDS + second % BUCKETS
                words[at] += 1
                words[at + BUCKETS] += tokens
                words[base + _REQUESTS] += 1
                words[base + _TOKENS] += tokens
        finally:
            self._unlock(slot)

    def use(self, limits: Limits) -> Use:
        """What counts now; a key that has not been counted takes no place for it."""
        mark = _mark(limits.key_id)
        slot = self._seek(mark)
        if slot < 0:
            return Use()
        words, base = self._words, slot * self._size
        self._lock(slot)
        try:
            if words[base + _HASH] != mark:
                return Use()
            self._advance(base, int(self._clock()))
            running, reserved = self._running(base)
            spent: int | None = words[base + _SPENT]
            if words[base + _START] == UNKNOWN or words[base + _KIND] != KINDS[limits.period]:
                spent = None
            elif limits.start > words[base + _START]:  # a new period, which its first request will begin
                spent = 0
            return Use(words[base + _REQUESTS], words[base + _TOKENS], running, spent, reserved)
        finally:
            self._unlock(slot)

    # inside a slot

    def _refusal(
        self, base: int, head: tuple[int, ...], limits: Limits, tokens: int, nanos: int
    ) -> tuple[str, float] | None:
        second, requests, used = head[_NEWEST], head[_REQUESTS], head[_TOKENS]
        if limits.requests and requests >= limits.requests:
            return "rpm", self._until(base, _SECONDS, second, requests - limits.requests + 1)
        if limits.tokens and used + tokens > limits.tokens:
            return "tpm", self._until(base, _TOKEN_SECONDS, second, used + tokens - limits.tokens)
        if limits.concurrency or limits.budget:
            running, reserved = self._running(base)
            if limits.concurrency and running >= limits.concurrency:
                return "concurrency", 1.0
            if limits.budget:
                self._roll(base, limits)
                wanted = self._words[base + _SPENT] + max(1, nanos)
                if wanted > limits.budget:
                    return "budget", math.inf
                if wanted + reserved > limits.budget:  # what runs may turn out cheaper
                    return "budget", 1.0
        return None

    def _until(self, base: int, row: int, second: int, wanted: int) -> float:
        """Seconds until so many have left the window."""
        freed = 0
        for age in range(BUCKETS - 1, -1, -1):
            freed += self._words[base + row + (second - age) % BUCKETS]
            if freed >= wanted:
                return float(BUCKETS - age)
        return float(BUCKETS)

    def _reset(self, base: int, row: int, second: int, now: float) -> float:
        """Seconds until all have left the window."""
        for age in range(BUCKETS):
            if self._words[base + row + (second - age) % BUCKETS]:
                return second - age + BUCKETS - now
        return 0.0

    def _running(self, base: int) -> tuple[int, int]:
        """Of all workers: what runs, and the nano-USD that are reserved for it."""
        pairs: tuple[int, ...] = self._pairs(self._map, 8 * (base + _PAIRS))
        count = nanos = 0
        for at in range(0, len(pairs), 2):
            count += pairs[at]
            nanos += pairs[at + 1]
        return count, nanos

    def _roll(self, base: int, limits: Limits) -> bool:
        """Begins a new period when it is time; true while nobody has said what was spent in it."""
        words, kind = self._words, KINDS[limits.period]
        if words[base + _START] == UNKNOWN or words[base + _KIND] != kind:
            return True
        if limits.start > words[base + _START]:
            words[base + _START], words[base + _SPENT] = limits.start, 0
        return False

    def _advance(self, base: int, second: int) -> None:
        """Drops the seconds that have left the window."""
        words = self._words
        newest = words[base + _NEWEST]
        if second <= newest:
            return
        if second - newest >= BUCKETS:
            words[base + _SECONDS : base + _PAIRS] = memoryview(_EMPTY)
            words[base + _REQUESTS] = words[base + _TOKENS] = 0
        else:
            for old in range(newest + 1, second + 1):
                at = base + _SECONDS + old % BUCKETS
                if words[at] or words[at + BUCKETS]:
                    words[base + _REQUESTS] -= words[at]
                    words[base + _TOKENS] -= words[at + BUCKETS]
                    words[at] = words[at + BUCKETS] = 0
        words[base + _NEWEST] = words[base + _USED] = second

    # slots

    def _slot(self, key_id: str) -> tuple[int, int]:
        known = self._known.get(key_id)
        if known is not None and self._words[known[0] * self._size + _HASH] == known[1]:
            return known
        mark = _mark(key_id)
        if len(self._known) > SLOTS:
            self._known.clear()
        found = self._known[key_id] = (self._find(mark), mark)
        return found

    def _seek(self, mark: int) -> int:
        """The key's slot; -1 when it has none."""
        for probe in range(PROBES):
            slot = (mark + probe) % SLOTS
            if self._words[slot * self._size + _HASH] == mark:
                return slot
        return -1

    def _find(self, mark: int) -> int:
        """The key's slot, else one that is free, else the one unused for longest. `_claim` makes it the key's."""
        words, oldest, least = self._words, 0, 2**62
        self._lock(SLOTS)
        try:
            for probe in range(PROBES):
                slot = (mark + probe) % SLOTS
                base = slot * self._size
                if words[base + _HASH] == mark:
                    return slot
                if words[base + _HASH] == 0:
                    oldest = slot
                    break
                if words[base + _USED] < least:
                    oldest, least = slot, words[base + _USED]
            self._lock(oldest)
            base = oldest * self._size
            self._claim(base, mark)
            words[base + _USED] = int(self._clock())
            self._unlock(oldest)
            return oldest
        finally:
            self._unlock(SLOTS)

    def _claim(self, base: int, mark: int) -> None:
        """The slot may have gone to another key between the look and the lock: then this key counts on its own."""
        if self._words[base + _HASH] != mark:
            self._words[base : base + self._size] = memoryview(array("q", bytes(8 * self._size)))
            self._words[base + _HASH], self._words[base + _START] = mark, UNKNOWN

    def _mend(self) -> None:
        """Clears what the worker before this one had running; it may have died in the middle of a change."""
        words = self._words
        for slot in range(SLOTS):
            base = slot * self._size
            if words[base + _HASH]:
                self._lock(slot)
                words[base + self._pair] = words[base + self._pair + 1] = 0
                words[base + _REQUESTS] = sum(words[base + _SECONDS : base + _TOKEN_SECONDS])
                words[base + _TOKENS] = sum(words[base + _TOKEN_SECONDS : base + _PAIRS])
                self._unlock(slot)

    def _lock(self, slot: int) -> None:
        if self._file >= 0:
            fcntl.lockf(self._file, fcntl.LOCK_EX, 1, slot)

    def _unlock(self, slot: int) -> None:
        if self._file >= 0:
            fcntl.lockf(self._file, fcntl.LOCK_UN, 1, slot)
