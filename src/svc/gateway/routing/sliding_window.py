"""Counts over a sliding time window, in buckets. The error is at most one bucket. Pure."""

from __future__ import annotations

from typing import Final

WINDOW_BUCKETS: Final = 10


class SlidingWindow:
    """Sums of `column_count` counts over the last `seconds`. Times are loop times, and must not decrease."""

    __slots__ = ("_bucket_seconds", "_buckets", "_column_count", "_current_bucket", "_sums")

    def __init__(self, seconds: float, column_count: int) -> None:
        self._bucket_seconds = seconds / WINDOW_BUCKETS
        self._column_count = column_count
        self._buckets = [[0] * column_count for _ in range(WINDOW_BUCKETS)]
        self._sums = [0] * column_count
        self._current_bucket = -1

    def add(self, now: float, column: int, amount: int = 1) -> None:
        """Add to one of the counts."""
        bucket_number = int(now / self._bucket_seconds)
        if bucket_number != self._current_bucket:
            self._advance_to(bucket_number)
        self._buckets[bucket_number % WINDOW_BUCKETS][column] += amount
        self._sums[column] += amount

    def sums(self, now: float) -> list[int]:
        """Return the current sums. The caller must not change the list."""
        bucket_number = int(now / self._bucket_seconds)
        if bucket_number != self._current_bucket:
            self._advance_to(bucket_number)
        return self._sums

    def clear(self) -> None:
        """Reset all counts to 0."""
        self._sums = [0] * self._column_count
        self._buckets = [[0] * self._column_count for _ in range(WINDOW_BUCKETS)]

    def _advance_to(self, bucket_number: int) -> None:
        for number in range(max(self._current_bucket + 1, bucket_number - WINDOW_BUCKETS + 1), bucket_number + 1):
            bucket = self._buckets[number % WINDOW_BUCKETS]
            for column in range(self._column_count):
                self._sums[column] -= bucket[column]
                bucket[column] = 0
        self._current_bucket = bucket_number
