"""Detects streams below a minimum token rate. Pure."""

from __future__ import annotations

from typing import Final

PACE_WINDOW_SECONDS: Final = 5.0
"""Seconds between two checks of a stream."""


class PaceMonitor:
    """The token rate of one stream. Times are loop times."""

    __slots__ = ("_min_tokens_per_second", "_window_start_tokens", "_window_started_at")

    def __init__(self, min_tokens_per_second: float) -> None:
        self._min_tokens_per_second = min_tokens_per_second
        self._window_started_at = 0.0
        self._window_start_tokens = 0

    def is_too_slow(self, now: float, tokens: int, *, paused: bool) -> bool:
        """Return whether the stream was too slow over the last window.

        `tokens` is the total so far. `paused`: the client does not read, so the stream is not checked.
        """
        if not self._window_started_at or paused:
            self._window_started_at, self._window_start_tokens = now, tokens
            return False
        if now - self._window_started_at < PACE_WINDOW_SECONDS:
            return False
        slow = tokens - self._window_start_tokens < self._min_tokens_per_second * (now - self._window_started_at)
        self._window_started_at, self._window_start_tokens = now, tokens
        return slow
