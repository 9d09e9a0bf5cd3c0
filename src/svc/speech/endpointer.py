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

WINDOW = 512
"""Samples."""
WINDOWS_PER_SECOND = 16000 / WINDOW

PRE_ROLL = 10
LONG = round(4 * WINDOWS_PER_SECOND)
PATIENCE_LONG = round(0.6 * WINDOWS_PER_SECOND)
PATIENCE_SHORT = round(1.3 * WINDOWS_PER_SECOND)
CAP = round(12 * WINDOWS_PER_SECOND)
SEARCH = round(4 * WINDOWS_PER_SECOND)
SMOOTH = 5
"""Windows over which loudness is averaged when a place to cut is sought."""

Verdict = Literal["skip", "begin", "go on", "end"]


class Endpointer:
    """Of one stream. After each `push`: `length`, `speech` and `silence` describe the open segment, in windows."""

    def __init__(self, *, skip_silence: bool = True) -> None:
        self._skip = skip_silence
        self._loudness: deque[float] = deque(maxlen=SEARCH)
        self.length = 0
        """Of the open segment."""
        self.speech = 0
        """Windows of it that have speech."""
        self.silence = 0
        """Windows since the last that has."""
        self.cut = 0
        """After "end": the windows that belong to the segment; the rest begins the next."""
        self._marks: list[bool] = []

    def push(self, speech: bool, loudness: float) -> Verdict:
        """The verdict on the next window. After "begin" the segment has it and the `PRE_ROLL` windows before it, or
        as many as there are; the caller tells how many with `begun`."""
        if not self.length:
            if not speech and self._skip:
                return "skip"
            self._add(speech, loudness)
            return "begin"
        self._add(speech, loudness)
        if self.length >= CAP:
            self.cut = self._quietest()
            return "end"
        patience = PATIENCE_LONG if self.length - self.silence > LONG else PATIENCE_SHORT
        if self._skip and self.silence >= patience:
            self.cut = self.length
            return "end"
        return "go on"

    def begun(self, before: int) -> None:
        """So many windows from before the first one belong to the segment as well."""
        self.length += before
        self._marks = [False] * before + self._marks

    def restart(self) -> int:
        """Closes the segment; gives the number of windows after the cut, which begin the next one."""
        rest = self._marks[self.cut :]
        if self._skip and not any(rest):
            rest = []
        self._clear()
        for mark in rest:
            self._add(mark, 1.0)
        return len(rest)

    def reset(self) -> None:
        """Forgets the segment."""
        self._clear()

    def _clear(self) -> None:
        self.length = self.speech = self.silence = self.cut = 0
        self._marks = []
        self._loudness.clear()

    def _add(self, speech: bool, loudness: float) -> None:
        self.length += 1
        self.speech += speech
        self.silence = 0 if speech else self.silence + 1
        self._marks.append(speech)
        self._loudness.append(loudness)

    def _quietest(self) -> int:
        """The middle of the quietest stretch among the last windows."""
        values = list(self._loudness)
        best, place = float("inf"), len(values) - 1
        for start in range(len(values) - SMOOTH + 1):
            level = sum(values[start : start + SMOOTH])
            if level <= best:
                best, place = level, start + SMOOTH // 2
        return self.length - len(values) + place + 1
