"""Whether a stream is slower than a floor, over a window. Pure."""

from __future__ import annotations

from typing import Final

SECONDS: Final = 5.0
"""The window; a stream is judged once in each."""


class Pace:
    """`floor` in tokens per second. Times are loop times."""

    __slots__ = ("_floor", "_since", "_tokens")

    def __init__(self, floor: float) -> None:
        self._floor = floor
        self._since = 0.0
        self._tokens = 0

    def too_slow(self, now: float, tokens: int, *, paused: bool) -> bool:
        """`tokens` so far; while the client does not read (`paused`), slowness is its own."""
        if not self._since or paused:
            self._since, self._tokens = now, tokens
            return False
        if now - self._since < SECONDS:
            return False
        slow = tokens - self._tokens < self._floor * (now - self._since)
        self._since, self._tokens = now, tokens
        return slow
