"""Splits text into the parts that a voice speaks at once: sentences, and shorter parts where a listener waits."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

MAX_SENTENCE_CHARS = 600
"""The maximum length of a text that is spoken at once, if no sentence ends before."""
MAX_FIRST_PART_CHARS = 32
"""The length of the first part of a text that a listener waits for. A Piper voice speaks it in about 0.2 s."""
MAX_PART_CHARS = 200
"""The length of the other parts. A part cannot be interrupted, so a cancelled synthesis ends after about 1 s."""
_SENTENCE_END = re.compile(r"(?<=[.!?…。！？])[\"'”’)\]]*\s+|\n{2,}")
_CLAUSE_END = re.compile(r"(?<=[,;:–—，；：])\s+")


def split_sentences(chunks: Iterable[object]) -> Iterator[str]:
    """Yield sentences as soon as they are complete. `chunks` may split the text anywhere."""
    remainder = ""
    for chunk in chunks:
        remainder += chunk if isinstance(chunk, str) else ""
        while (cut := _find_cut(remainder)) is not None:
            sentence, remainder = remainder[:cut].strip(), remainder[cut:]
            if _is_speakable(sentence):
                yield sentence
    if _is_speakable(remainder):
        yield remainder.strip()


def split_for_streaming(text: str) -> list[str]:
    """Split a text so that its first part is spoken quickly. Parts end with a sentence, a clause or a word."""
    parts: list[str] = []
    for sentence in split_sentences([text]):
        remainder = sentence
        while remainder:
            limit = MAX_PART_CHARS if parts else MAX_FIRST_PART_CHARS
            cut = len(remainder) if len(remainder) <= limit else _find_part_end(remainder, limit)
            part, remainder = remainder[:cut].strip(), remainder[cut:].strip()
            if _is_speakable(part):
                parts.append(part)
    return parts


def _find_cut(text: str) -> int | None:
    if (end := _SENTENCE_END.search(text)) is not None:
        return end.end()
    if len(text) <= MAX_SENTENCE_CHARS:
        return None
    space = text.rfind(" ", 1, MAX_SENTENCE_CHARS)
    return space if space > 0 else MAX_SENTENCE_CHARS


def _find_part_end(text: str, limit: int) -> int:
    """Return where to cut a text that is longer than `limit`: after the last clause that fits, else the last word."""
    clause_ends = [end.start() for end in _CLAUSE_END.finditer(text, 0, limit + 1) if end.start() <= limit]
    if clause_ends:
        return clause_ends[-1]
    middle = min(limit, (len(text) + 1) // 2)  # two parts of similar length sound better than one word alone
    space = max(text.rfind(" ", 1, middle + 1), text.rfind(" ", 1, limit + 1) if len(text) >= 2 * limit else 0)
    return space if space > 0 else limit


def _is_speakable(text: str) -> bool:
    return any(character.isalnum() for character in text)
