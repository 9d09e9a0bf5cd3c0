"""Where speech begins and ends: verdicts on windows of 32 ms, from "is there speech in it" and its loudness. Pure.

              speech
   SILENCE ───────────▶ SPEECH      the segment begins 320 ms before
      ▲                   │
      └───────────────────┘         0.6 s of silence when it is longer than 4 s, else 1.3 s; at 12 s it is cut at
                                    the quietest place of its last 4 s, and the rest begins the next

With `skip_silence` off a segment is always open, and only the cap cuts it.
"""

from __future__ import annotations

from collections import deque
from typing import Literal

WINDOW_SAMPLES = 512
"""Samples."""
WINDOWS_PER_SECOND = 16000 / WINDOW_SAMPLES

PRE_ROLL_WINDOWS = 10
LONG_SEGMENT_WINDOWS = round(4 * WINDOWS_PER_SECOND)
LONG_SEGMENT_SILENCE_WINDOWS = round(0.6 * WINDOWS_PER_SECOND)
SHORT_SEGMENT_SILENCE_WINDOWS = round(1.3 * WINDOWS_PER_SECOND)
MAX_SEGMENT_WINDOWS = round(12 * WINDOWS_PER_SECOND)
CUT_SEARCH_WINDOWS = round(4 * WINDOWS_PER_SECOND)
LOUDNESS_AVERAGE_WINDOWS = 5
"""Windows over which loudness is averaged when a place to cut is sought."""

EndpointDecision = Literal["skip", "begin", "go on", "end"]


class Endpointer:
    """Of one stream. After each `push`: `length`, `speech` and `silence` describe the open segment, in windows."""

    def __init__(self, *, skip_silence: bool = True) -> None:
        self._skip_silence = skip_silence
        self._loudness: deque[float] = deque(maxlen=CUT_SEARCH_WINDOWS)
        self.length = 0
        """Of the open segment."""
        self.speech_windows = 0
        """Windows of it that have speech."""
        self.trailing_silence = 0
        """Windows since the last that has."""
        self.cut_length = 0
        """After "end": the windows that belong to the segment; the rest begins the next."""
        self._speech_flags: list[bool] = []

    def push(self, is_speech: bool, loudness: float) -> EndpointDecision:
        """The verdict on the next window. After "begin" the segment has it and the `PRE_ROLL` windows before it, or
        as many as there are; the caller tells how many with `begun`."""
        if not self.length:
            if not is_speech and self._skip_silence:
                return "skip"
            self._append_window(is_speech, loudness)
            return "begin"
        self._append_window(is_speech, loudness)
        if self.length >= MAX_SEGMENT_WINDOWS:
            self.cut_length = self._find_quietest_window()
            return "end"
        max_silence = (
            LONG_SEGMENT_SILENCE_WINDOWS
            if self.length - self.trailing_silence > LONG_SEGMENT_WINDOWS
            else SHORT_SEGMENT_SILENCE_WINDOWS
        )
        if self._skip_silence and self.trailing_silence >= max_silence:
            self.cut_length = self.length
            return "end"
        return "go on"

    def add_pre_roll(self, window_count: int) -> None:
        """So many windows from before the first one belong to the segment as well."""
        self.length += window_count
        self._speech_flags = [False] * window_count + self._speech_flags

    def restart(self) -> int:
        """Closes the segment; gives the number of windows after the cut, which begin the next one."""
        remaining_flags = self._speech_flags[self.cut_length :]
        if self._skip_silence and not any(remaining_flags):
            remaining_flags = []
        self._clear()
        for mark in remaining_flags:
            self._append_window(mark, 1.0)
        return len(remaining_flags)

    def reset(self) -> None:
        """Forgets the segment."""
        self._clear()

    def _clear(self) -> None:
        self.length = self.speech_windows = self.trailing_silence = self.cut_length = 0
        self._speech_flags = []
        self._loudness.clear()

    def _append_window(self, is_speech: bool, loudness: float) -> None:
        self.length += 1
        self.speech_windows += is_speech
        self.trailing_silence = 0 if is_speech else self.trailing_silence + 1
        self._speech_flags.append(is_speech)
        self._loudness.append(loudness)

    def _find_quietest_window(self) -> int:
        """The middle of the quietest stretch among the last windows."""
        values = list(self._loudness)
        best, quietest = float("inf"), len(values) - 1
        for start in range(len(values) - LOUDNESS_AVERAGE_WINDOWS + 1):
            level = sum(values[start : start + LOUDNESS_AVERAGE_WINDOWS])
            if level <= best:
                best, quietest = level, start + LOUDNESS_AVERAGE_WINDOWS // 2
        return self.length - len(values) + quietest + 1
