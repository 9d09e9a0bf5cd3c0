"""Converts OpenAI's usage object to TokenUsage. On the hot path."""

from __future__ import annotations

from svc.dialects.openai.schema import UsagePayload
from svc.dialects.validation import astuple
from svc.wire.usage import MAX_USAGE_TOKENS, TokenUsage


def to_usage(payload: UsagePayload) -> TokenUsage:
    """Convert a usage object. Missing counts are 0, and so are invalid counts of parts that only some vendors report.

    Some providers count thinking only in `total_tokens`, and bill it. So all tokens beyond the prompt are output.
    """
    prompt: int
    completion: int
    total: int
    prompt, completion, total, prompt_details, completion_details, cache_hits, cached_total = astuple(payload)
    cached = reasoning = 0
    written = prompt_audio = prompt_image = completion_audio = completion_image = 0
    if prompt_details is not None:
        cached_tokens, audio, image, cache_writes = astuple(prompt_details)
        cached = cached_tokens or 0
        if audio or image or cache_writes:
            if type(audio) is int and 0 < audio == total - prompt - completion:  # Mistral counts audio separately
                prompt += audio
            prompt_audio, prompt_image = _part(audio, prompt), _part(image, prompt)
            written = _part(cache_writes, prompt)
    billed_output = total - prompt
    if completion < billed_output <= MAX_USAGE_TOKENS:
        completion = billed_output
    if not cached and (cache_hits or cached_total):
        cached = _part(cache_hits, prompt) or _part(cached_total, prompt)
    if completion_details is not None:
        reasoning_tokens, audio, image = astuple(completion_details)
        reasoning = reasoning_tokens or 0
        if audio or image:
            completion_audio, completion_image = _part(audio, completion), _part(image, completion)
    return TokenUsage(
        prompt,
        completion,
        cached,
        written,
        reasoning,
        0,
        prompt_audio,
        prompt_image,
        completion_audio,
        completion_image,
    )


def _part(count: object, whole: int) -> int:
    """Return a count of a part of `whole`, or 0 if it is invalid."""
    return count if type(count) is int and 0 <= count <= whole else 0
