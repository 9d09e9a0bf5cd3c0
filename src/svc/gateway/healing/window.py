"""Counts over the last seconds, in buckets: cheap to add to, and never more than one bucket out. Pure."""

from __future__ import annotations

from typing import Final

BUCKETS: Final = 10


class Window:
    """Sums of `width` numbers over the last `seconds`. Times are loop times, and do not go back."""

    __slots__ = ("_at", "_buckets", "_each", "_sums", "_width")

    def __init__(self, seconds: float, width: int) -> None:
        self._each = seconds / BUCKETS
        self._width = width
        self._buckets = [[0] * width for _ in range(BUCKETS)]
        self._sums = [0] * width
        self._at = -1

    def add(self, now: float, which: int, number: int = 1) -> None:
        """Adds to one of the counts."""
        at = int(now / self._each)
        if at != self._at:
            self._roll(at)
        self._buckets[at % BUCKETS][which] += number
        self._sums[which] += number

    def sums(self, now: float) -> list[int]:
        """The counts as they are now; not to be changed."""
        at = int(now / self._each)
        if at != self._at:
            self._roll(at)
        return self._sums

    def clear(self) -> None:
        """Forgets everything."""
        self._sums = [0] * self._width
        self._buckets = [[0] * self._width for _ in range(BUCKETS)]

    def _roll(self, at: int) -> None:
        for passed in range(max(self._at + 1, at - BUCKETS + 1), at + 1):
            bucket = self._buckets[passed % BUCKETS]
            for which in range(self._width):
                self._sums[which] -= bucket[which]
                bucket[which] = 0
        self._at = at
