"""The stable prefix: which words of a growing hypothesis will not be taken back. Pure, no audio.

hypotheses of one segment      said again over >= 0.6 s of new audio, less the last two words    -> stable
a later one that differs       what it says after the stable words is put behind them            -> spliced

Words are compared without case and punctuation, since those flicker; the stable text keeps what it was given first.
"""

from __future__ import annotations

import re
from collections import deque

SPAN = 0.6
"""Seconds of new audio over which a word has to stay the same."""
MARGIN = 2
"""The last words of a hypothesis, which are never stable."""

# Scripts without spaces are taken letter by letter.
_LETTER = "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff"
_UNIT = re.compile(rf"\s*(?:[{_LETTER}]|[^\s{_LETTER}]+)")
_PLAIN = re.compile(r"[^\w]+")


def units(text: str) -> list[str]:
    """A text as words with the space before them; joined they are the text."""
    return _UNIT.findall(text.rstrip())


def join(before: str, after: str) -> str:
    """Two texts as one, with a space between them where the script has spaces."""
    before, after = before.rstrip(), after.strip()
    if not before or not after:
        return before or after
    letters = re.fullmatch(f"[{_LETTER}\u3000-\u303f\uff00-\uff0f]{{2}}", before[-1] + after[0])
    return before + ("" if letters else " ") + after


class StablePrefix:
    """Of one segment. `text` is the newest hypothesis behind the stable words, `stable` those words."""

    def __init__(self) -> None:
        self._history: deque[tuple[float, list[str]]] = deque()
        self._stable: list[str] = []
        self._text: list[str] = []

    @property
    def stable(self) -> str:
        """A prefix of every later `text`."""
        return "".join(self._stable)

    @property
    def text(self) -> str:
        """The whole hypothesis."""
        return "".join(self._text)

    def add(self, end: float, text: str) -> None:
        """Takes the hypothesis for the audio up to `end`, seconds from the segment's start."""
        self._splice(text)
        words = [_plain(word) for word in self._text]
        self._history.append((end, words))
        while len(self._history) > 1 and self._history[1][0] <= end - SPAN:
            self._history.popleft()
        if self._history[0][0] > end - SPAN:
            return
        agreed = min(_common(words, earlier) for _, earlier in self._history)
        agreed = min(agreed, len(words) - MARGIN)
        if agreed > len(self._stable):
            self._stable = self._text[:agreed]

    def finish(self, text: str) -> str:
        """Takes the last hypothesis; all of it is stable then."""
        self._splice(text)
        self._stable = self._text
        return self.text

    def _splice(self, text: str) -> None:
        words = units(text)
        tail = words[_place(self._stable, words) :]
        if self._stable and tail and not tail[0][0].isspace() and not re.match(f"[{_LETTER}]", tail[0]):
            tail[0] = " " + tail[0]
        self._text = self._stable + tail


def _plain(word: str) -> str:
    return _PLAIN.sub("", word).lower()


def _common(left: list[str], right: list[str]) -> int:
    count = 0
    for one, other in zip(left, right, strict=False):
        if one != other:
            break
        count += 1
    return count


def _place(stable: list[str], words: list[str]) -> int:
    """How many of `words` stand for the stable ones: the prefix with the fewest edits between the two."""
    known, heard = [_plain(word) for word in stable], [_plain(word) for word in words]
    if heard[: len(known)] == known:
        return len(known)
    row = list(range(len(heard) + 1))
    for count, word in enumerate(known, 1):
        previous, row = row, [count]
        for place, other in enumerate(heard, 1):
            row.append(min(previous[place] + 1, row[-1] + 1, previous[place - 1] + (word != other)))
    best = min(row)
    places = [place for place, edits in enumerate(row) if edits == best]
    ending = [place for place in places if place and heard[place - 1] == known[-1]]
    return min(ending or places, key=lambda place: abs(place - len(known)))
