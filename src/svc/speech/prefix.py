"""The stable prefix: which words of a growing hypothesis will not be taken back. Pure, no audio.

hypotheses of one segment      said again over >= 0.6 s of new audio, less the last two words    -> stable
a later one that differs       what it says after the stable words is put behind them            -> spliced
a model that is stuck          "ten, ten, ten, ten"                                              -> said once

Words are compared with their punctuation, and after twice the time without it, since it flickers.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Sequence

SPAN = 0.6
"""Seconds of new audio over which a word has to stay the same."""
MARGIN = 2
"""The last words of a hypothesis, which are never stable."""
STUCK_PARTIAL, STUCK_FINAL = 3, 5
"""Repetitions at the end of a hypothesis, from which on it is the model that repeats itself."""
STUCK_WORDS = 6
"""Words of what may be repeated."""

# Scripts without spaces are taken letter by letter.
_LETTER = "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff"
_UNIT = re.compile(rf"\s*(?:[{_LETTER}]|[^\s{_LETTER}-]+-*|-+)")
_PLAIN = re.compile(r"[^\w]+")
_TWICE = re.compile(r"([,;:])[,;:]+")
_NUMBERS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten")
_SPOKEN = {str(number): word for number, word in enumerate(_NUMBERS)}


def units(text: str) -> list[str]:
    """A text as words with the space before them; what is only punctuation goes with the word before it."""
    found: list[str] = []
    for unit in _UNIT.findall(_TWICE.sub(r"\1", text.strip())):
        if _PLAIN.sub("", unit):
            found.append(unit)
        elif found and not _PLAIN.search(found[-1][-1]):
            found[-1] += unit.strip()
    return found


def unstick(words: list[str], times: int) -> list[str]:
    """Without the repetitions at the end, if there are at least so many of them."""
    plain = [_plain(word) for word in words]
    for size in range(1, STUCK_WORDS + 1):
        count = 1
        while plain[-size:] and plain[-(count + 1) * size : -count * size] == plain[-size:]:
            count += 1
        if count >= times:
            return words[: len(words) - (count - 1) * size]
    return words


def join(before: str, after: str) -> str:
    """Two texts as one, with a space between them where the script has spaces."""
    before, after = before.rstrip(), after.strip()
    if not before or not after:
        return before or after
    letters = re.fullmatch(f"[{_LETTER}\u3000-\u303f\uff00-\uff0f]{{2}}", before[-1] + after[0])
    return before + ("" if letters else " ") + after


class StablePrefix:
    """Of one segment. `text` is the newest hypothesis behind the stable words, `stable` those words.

    `already` are words that the segment begins with and that were said before it: they are not said again.
    """

    def __init__(self, already: Sequence[str] = ()) -> None:
        self._already = len(already)
        self._history: deque[tuple[float, list[str]]] = deque()
        self._stable = list(already)
        self._text = list(already)

    @property
    def stable(self) -> str:
        """A prefix of every later `text`."""
        return "".join(self._stable[self._already :])

    @property
    def text(self) -> str:
        """The whole hypothesis."""
        return "".join(self._text[self._already :])

    def beyond(self, text: str) -> list[str]:
        """The stable words that come after those of a hypothesis for less audio."""
        words = units(text)
        place, _ = _place(words, self._stable)
        return self._stable[max(place, self._already) :] if words else []

    def add(self, end: float, text: str) -> None:
        """Takes the hypothesis for the audio up to `end`, seconds from the segment's start."""
        self._splice(unstick(units(text), STUCK_PARTIAL))
        self._history.append((end, self._text))
        while len(self._history) > 1 and self._history[1][0] <= end - 2 * SPAN:
            self._history.popleft()
        agreed = max(self._agreed(end - SPAN, exact=True), self._agreed(end - 2 * SPAN, exact=False))
        agreed = min(agreed, len(self._text) - MARGIN)
        if agreed > len(self._stable):
            self._stable = self._text[:agreed]

    def _agreed(self, since: float, *, exact: bool) -> int:
        """The words that all hypotheses have had since then, and one that is at least as old."""
        old = [number for number, (end, _) in enumerate(self._history) if end <= since]
        if not old:
            return 0
        hypotheses = [words for number, (_, words) in enumerate(self._history) if number >= old[-1]]
        return min(_common(self._text, words, exact=exact) for words in hypotheses)

    def finish(self, text: str) -> str:
        """Takes the last hypothesis; all of it is stable then."""
        self._splice(unstick(units(text), STUCK_FINAL))
        self._stable = self._text
        return self.text

    def _splice(self, words: list[str]) -> None:
        place, edits = _place(self._stable, words)
        if edits > max(2, len(self._stable) // 2):  # it contradicts what was said: nothing can be told from it
            return
        tail = words[place:]
        if self._stable and tail and not tail[0][0].isspace() and not re.match(f"[{_LETTER}]", tail[0]):
            tail[0] = " " + tail[0]
        self._text = self._stable + tail


def _plain(word: str) -> str:
    plain = _PLAIN.sub("", word).lower()
    return _SPOKEN.get(plain, plain)


def _common(left: list[str], right: list[str], *, exact: bool) -> int:
    count = 0
    for one, other in zip(left, right, strict=False):
        if one != other and (exact or _plain(one) != _plain(other)):
            break
        count += 1
    return count


def _place(stable: list[str], words: list[str]) -> tuple[int, int]:
    """How many of `words` stand for the stable ones: the prefix with the fewest edits between the two, and those."""
    known, heard = [_plain(word) for word in stable], [_plain(word) for word in words]
    if heard[: len(known)] == known:
        return len(known), 0
    row = list(range(len(heard) + 1))
    for count, word in enumerate(known, 1):
        previous, row = row, [count]
        for place, other in enumerate(heard, 1):
            row.append(min(previous[place] + 1, row[-1] + 1, previous[place - 1] + (word != other)))
    best = min(row)
    places = [place for place, edits in enumerate(row) if edits == best]
    ending = [place for place in places if place and heard[place - 1] == known[-1]]
    return min(ending or places, key=lambda place: abs(place - len(known))), best
