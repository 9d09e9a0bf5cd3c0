"""Endpoint detection: where speech begins and ends, from windows of 32 ms. No I/O.

Each window has a speech flag and a loudness.

              speech
   SILENCE ───────────▶ SPEECH      the segment begins 320 ms before
      ▲                   │
      └───────────────────┘         after 0.6 s of silence if longer than 4 s, else 1.3 s; at 12 s it is cut at
                                    the quietest window of its last 4 s, and the rest begins the next

Without `skip_silence` a segment is always open, and only the maximum length ends it.
"""

from __future__ import annotations

from collections import deque
from typing import Literal

WINDOW_SAMPLES = 512
"""Samples in a window: 32 ms at 16 kHz, as Silero VAD requires."""
WINDOWS_PER_SECOND = 16000 / WINDOW_SAMPLES

PRE_ROLL_WINDOWS = 10
LONG_SEGMENT_WINDOWS = round(4 * WINDOWS_PER_SECOND)
LONG_SEGMENT_SILENCE_WINDOWS = round(0.6 * WINDOWS_PER_SECOND)
SHORT_SEGMENT_SILENCE_WINDOWS = round(1.3 * WINDOWS_PER_SECOND)
MAX_SEGMENT_WINDOWS = round(12 * WINDOWS_PER_SECOND)
CUT_SEARCH_WINDOWS = round(4 * WINDOWS_PER_SECOND)
LOUDNESS_AVERAGE_WINDOWS = 5
"""Windows over which loudness is averaged to find the place of a cut."""

EndpointDecision = Literal["skip", "begin", "go on", "end"]


class Endpointer:
    """The endpointer of one stream. After each `push` the attributes describe the open segment, in windows."""

    def __init__(self, *, skip_silence: bool = True) -> None:
        self._skip_silence = skip_silence
        self._loudness: deque[float] = deque(maxlen=CUT_SEARCH_WINDOWS)
        self.length = 0
        """The length of the open segment."""
        self.speech_windows = 0
        """Its windows with speech."""
        self.trailing_silence = 0
        """Its windows since the last window with speech."""
        self.cut_length = 0
        """After "end": the windows of the segment. The remaining windows begin the next one."""
        self._speech_flags: list[bool] = []

    def push(self, is_speech: bool, loudness: float) -> EndpointDecision:
        """Add a window and return the decision.

        After "begin" the caller reports the pre-roll windows, `PRE_ROLL_WINDOWS` at most, with `add_pre_roll`.
        """
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
        """Prepend `window_count` windows from before the segment began."""
        self.length += window_count
        self._speech_flags = [False] * window_count + self._speech_flags

    def restart(self) -> int:
        """Close the segment. Return the number of windows after the cut, which begin the next segment."""
        remaining_flags = self._speech_flags[self.cut_length :]
        if self._skip_silence and not any(remaining_flags):
            remaining_flags = []
        self._clear()
        for flag in remaining_flags:
            self._append_window(flag, 1.0)
        return len(remaining_flags)

    def reset(self) -> None:
        """Discard the segment."""
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
        """Return the window in the middle of the quietest run of windows."""
        values = list(self._loudness)
        lowest_level, quietest_index = float("inf"), len(values) - 1
        for start in range(len(values) - LOUDNESS_AVERAGE_WINDOWS + 1):
            level = sum(values[start : start + LOUDNESS_AVERAGE_WINDOWS])
            if level <= lowest_level:
                lowest_level, quietest_index = level, start + LOUDNESS_AVERAGE_WINDOWS // 2
        return self.length - len(values) + quietest_index + 1
