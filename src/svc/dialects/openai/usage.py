"""Converts OpenAI's usage object to TokenUsage. On the hot path."""

from __future__ import annotations

from typing import Any, Final

from svc.dialects.openai.schema import UsagePayload
from svc.dialects.validation import astuple
from svc.wire.usage import MAX_USAGE_TOKENS, TokenUsage

_NO_PROMPT_PARTS: Final = (None, None, None, None)
_NO_COMPLETION_PARTS: Final = (None, None, None)


def to_usage(payload: UsagePayload) -> TokenUsage:
    """Convert a usage object. Missing counts are 0, and so are invalid counts of parts that only some vendors report.

    Some providers count thinking only in `total_tokens`, and bill it. So all tokens beyond the prompt are output. Some
    count cached tokens beside `prompt_tokens`. If they exceed it, or the total includes them, they are added to it.
    """
    prompt: int
    completion: int
    total: int
    prompt, completion, total, prompt_details, completion_details, cache_hits, cached_total = astuple(payload)
    cached, audio, image, written = _NO_PROMPT_PARTS if prompt_details is None else astuple(prompt_details)
    parts = _NO_COMPLETION_PARTS if completion_details is None else astuple(completion_details)
    if type(audio) is int and 0 < audio == total - prompt - completion:  # Mistral counts audio separately
        prompt += audio
    if cached and (cached > prompt or cached == total - prompt - completion != parts[0]):
        prompt += cached
    if completion < total - prompt <= MAX_USAGE_TOKENS:
        completion = total - prompt
    if audio or image or written or parts[1] or parts[2] or cache_hits or cached_total:
        prompt_parts = (cached or _part(cache_hits, prompt) or _part(cached_total, prompt), audio, image, written)
        return _with_parts(prompt, completion, prompt_parts, parts)
    return TokenUsage(prompt, completion, cached or 0, 0, parts[0] or 0)


def _with_parts(
    prompt: int, completion: int, prompt_parts: tuple[Any, ...], completion_parts: tuple[Any, ...]
) -> TokenUsage:
    cached, audio, image, written = prompt_parts
    reasoning, completion_audio, completion_image = completion_parts
    written = _part(written, prompt)
    if cached + written > prompt:  # it excludes both
        prompt += cached + written
    return TokenUsage(
        prompt,
        completion,
        cached,
        written,
        reasoning or 0,
        0,
        _part(audio, prompt),
        _part(image, prompt),
        _part(completion_audio, completion),
        _part(completion_image, completion),
    )


def _part(count: object, whole: int) -> int:
    """Return a count of a part of `whole`, or 0 if it is invalid."""
    return count if type(count) is int and 0 <= count <= whole else 0
