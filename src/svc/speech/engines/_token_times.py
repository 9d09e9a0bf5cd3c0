"""Joins the tokens of sherpa-onnx to words with their times."""

from __future__ import annotations

from collections.abc import Sequence

from svc.speech.stable_prefix import split_words
from svc.wire.speech import WordTime

MAX_TOKEN_MS = 300
"""The library reports only where a token begins. A word ends where the next one begins, at most this much later."""
WORD_START = ("\u2581", " ")


def join_tokens(tokens: Sequence[str], seconds: Sequence[float]) -> tuple[WordTime, ...] | None:
    """Return the words, or None if the model does not report a time for each token."""
    if len(tokens) != len(seconds):
        return None
    words: list[tuple[str, int, int]] = []
    for token, second in zip(tokens, seconds, strict=True):
        text, time_ms = token.strip("\u2581 "), round(second * 1000)
        if not words or token.startswith(WORD_START) or len(split_words(words[-1][0] + text)) > 1:
            words.append((text, time_ms, time_ms))
        else:
            words[-1] = (words[-1][0] + text, words[-1][1], time_ms)
    following_starts = [start for _, start, _ in words[1:]] + [1 << 60]
    return tuple(
        WordTime(text, start, min(following, last + MAX_TOKEN_MS))
        for (text, start, last), following in zip(words, following_starts, strict=False)
        if text
    )
