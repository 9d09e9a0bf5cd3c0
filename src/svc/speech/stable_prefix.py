"""The stable prefix of a growing hypothesis: the words that later hypotheses do not change. No I/O, no audio.

hypotheses of one segment      words unchanged over >= 0.6 s of new audio, except the last two     -> stable
a later one that differs       its text after the stable words is appended to them                 -> spliced
a model that repeats itself    "ten, ten, ten, ten"                                                -> kept once

Words are compared with their punctuation. After twice the time they are compared without, because it flickers.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Sequence

STABLE_AFTER_SECONDS = 0.6
"""Seconds of new audio over which a word must stay the same."""
UNSTABLE_TAIL_WORDS = 2
"""Words at the end of a hypothesis that are never stable."""
MIN_PARTIAL_REPETITIONS, MIN_FINAL_REPETITIONS = 3, 5
"""Repetitions at the end of a hypothesis that count as a fault of the model, in a partial and in a final."""
MAX_REPEATED_PHRASE_WORDS = 6
"""The longest repeated phrase that is detected."""

# Scripts without spaces are split into letters.
_UNSPACED_LETTERS = "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff"
_WORD_PATTERN = re.compile(rf"\s*(?:[{_UNSPACED_LETTERS}]|[^\s{_UNSPACED_LETTERS}-]+-*|-+)")
_NON_WORD_PATTERN = re.compile(r"[^\w]+")
_REPEATED_PUNCTUATION_PATTERN = re.compile(r"([,;:])[,;:]+")
_NUMBER_WORDS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten")
_WORD_BY_DIGITS = {str(number): word for number, word in enumerate(_NUMBER_WORDS)}


def split_words(text: str) -> list[str]:
    """Split a text into words with the space before them. Punctuation belongs to the word before it."""
    words: list[str] = []
    for unit in _WORD_PATTERN.findall(_REPEATED_PUNCTUATION_PATTERN.sub(r"\1", text.strip())):
        if _NON_WORD_PATTERN.sub("", unit):
            words.append(unit)
        elif words and not _NON_WORD_PATTERN.search(words[-1][-1]):
            words[-1] += unit.strip()
    return words


def collapse_repetitions(words: list[str], min_repetitions: int) -> list[str]:
    """Remove repetitions at the end if there are at least `min_repetitions`."""
    normalized = [_normalize_word(word) for word in words]
    for size in range(1, MAX_REPEATED_PHRASE_WORDS + 1):
        count = 1
        while normalized[-size:] and normalized[-(count + 1) * size : -count * size] == normalized[-size:]:
            count += 1
        if count >= min_repetitions:
            return words[: len(words) - (count - 1) * size]
    return words


def join_texts(before: str, after: str) -> str:
    """Join two texts, with a space where the script has spaces."""
    before, after = before.rstrip(), after.strip()
    if not before or not after:
        return before or after
    unspaced = re.fullmatch(f"[{_UNSPACED_LETTERS}\u3000-\u303f\uff00-\uff0f]{{2}}", before[-1] + after[0])
    return before + ("" if unspaced else " ") + after


class StablePrefix:
    """The stable prefix of one segment. `text` is the newest hypothesis after the stable words, `stable` those words.

    `prior_words` begin the segment but belong to the previous one, so they are not returned again.
    """

    def __init__(self, prior_words: Sequence[str] = ()) -> None:
        self._prior_word_count = len(prior_words)
        self._history: deque[tuple[float, list[str]]] = deque()
        self._stable_words = list(prior_words)
        self._words = list(prior_words)

    @property
    def stable(self) -> str:
        """The stable text: a prefix of every later `text`."""
        return "".join(self._stable_words[self._prior_word_count :])

    @property
    def text(self) -> str:
        """The whole hypothesis."""
        return "".join(self._words[self._prior_word_count :])

    def stable_words_after(self, text: str) -> list[str]:
        """Return the stable words that follow those of a hypothesis for less audio."""
        words = split_words(text)
        position, _ = _align_words(words, self._stable_words)
        return self._stable_words[max(position, self._prior_word_count) :] if words else []

    def add_hypothesis(self, end: float, text: str) -> None:
        """Add the hypothesis for the audio up to `end`, in seconds from the start of the segment."""
        self._merge_hypothesis(collapse_repetitions(split_words(text), MIN_PARTIAL_REPETITIONS))
        self._history.append((end, self._words))
        while len(self._history) > 1 and self._history[1][0] <= end - 2 * STABLE_AFTER_SECONDS:
            self._history.popleft()
        agreed_count = max(
            self._count_agreed_words(end - STABLE_AFTER_SECONDS, exact=True),
            self._count_agreed_words(end - 2 * STABLE_AFTER_SECONDS, exact=False),
        )
        agreed_count = min(agreed_count, len(self._words) - UNSTABLE_TAIL_WORDS)
        if agreed_count > len(self._stable_words):
            self._stable_words = self._words[:agreed_count]

    def _count_agreed_words(self, since: float, *, exact: bool) -> int:
        """Count the words that all hypotheses since then share, including one that is at least as old."""
        old_numbers = [number for number, (end, _) in enumerate(self._history) if end <= since]
        if not old_numbers:
            return 0
        hypotheses = [words for number, (_, words) in enumerate(self._history) if number >= old_numbers[-1]]
        return min(_count_common_words(self._words, words, exact=exact) for words in hypotheses)

    def finish(self, text: str) -> str:
        """Add the last hypothesis, which is stable as a whole. Return the text."""
        self._merge_hypothesis(collapse_repetitions(split_words(text), MIN_FINAL_REPETITIONS))
        self._stable_words = self._words
        return self.text

    def _merge_hypothesis(self, words: list[str]) -> None:
        position, edits = _align_words(self._stable_words, words)
        if edits > max(2, len(self._stable_words) // 2):  # it contradicts the stable words: ignore it
            return
        tail = words[position:]
        if self._stable_words and tail and not tail[0][0].isspace() and not re.match(f"[{_UNSPACED_LETTERS}]", tail[0]):
            tail[0] = " " + tail[0]
        self._words = self._stable_words + tail


def _normalize_word(word: str) -> str:
    normalized = _NON_WORD_PATTERN.sub("", word).lower()
    return _WORD_BY_DIGITS.get(normalized, normalized)


def _count_common_words(left: list[str], right: list[str], *, exact: bool) -> int:
    count = 0
    for left_word, right_word in zip(left, right, strict=False):
        if left_word != right_word and (exact or _normalize_word(left_word) != _normalize_word(right_word)):
            break
        count += 1
    return count


def _align_words(stable: list[str], words: list[str]) -> tuple[int, int]:
    """Return how many of `words` match the stable words, and the number of edits.

    The match is the prefix with the smallest edit distance.
    """
    stable_normalized, words_normalized = (
        [_normalize_word(word) for word in stable],
        [_normalize_word(word) for word in words],
    )
    if words_normalized[: len(stable_normalized)] == stable_normalized:
        return len(stable_normalized), 0
    row = list(range(len(words_normalized) + 1))
    for count, word in enumerate(stable_normalized, 1):
        previous, row = row, [count]
        for place, other in enumerate(words_normalized, 1):
            row.append(min(previous[place] + 1, row[-1] + 1, previous[place - 1] + (word != other)))
    best = min(row)
    candidates = [place for place, edits in enumerate(row) if edits == best]
    ending = [place for place in candidates if place and words_normalized[place - 1] == stable_normalized[-1]]
    return min(ending or candidates, key=lambda place: abs(place - len(stable_normalized))), best
