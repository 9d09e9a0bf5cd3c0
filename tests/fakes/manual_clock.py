"""A monotonic clock that the test sets."""

from __future__ import annotations


class ManualClock:
    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now
