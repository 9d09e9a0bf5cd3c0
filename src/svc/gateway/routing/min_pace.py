"""Whether a stream is slower than a floor, over a window. Pure."""

from __future__ import annotations

from typing import Final

PACE_WINDOW_SECONDS: Final = 5.0
"""The window; a stream is judged once in each."""


class PaceMonitor:
    """`floor` in tokens per second. Times are loop times."""

    __slots__ = ("_min_tokens_per_second", "_window_start_tokens", "_window_started_at")

    def __init__(self, min_tokens_per_second: float) -> None:
        self._min_tokens_per_second = min_tokens_per_second
        self._window_started_at = 0.0
        self._window_start_tokens = 0

    def is_too_slow(self, now: float, tokens: int, *, paused: bool) -> bool:
        """`tokens` so far; while the client does not read (`paused`), slowness is its own."""
        if not self._window_started_at or paused:
            self._window_started_at, self._window_start_tokens = now, tokens
            return False
        if now - self._window_started_at < PACE_WINDOW_SECONDS:
            return False
        slow = tokens - self._window_start_tokens < self._min_tokens_per_second * (now - self._window_started_at)
        self._window_started_at, self._window_start_tokens = now, tokens
        return slow
