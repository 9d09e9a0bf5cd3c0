"""OpenAI's usage object as the ledger knows it. On the hot path."""

from __future__ import annotations

from svc.dialects.openai.shapes import CompletionDetails, PromptDetails, UsageShape
from svc.dialects.reading import FIELDS
from svc.wire.usage import MOST_TOKENS, Usage


def usage_of(shape: UsageShape) -> Usage:
    """Its counts; what it leaves out is 0."""
    prompt, completion, total, of_prompt, of_completion = FIELDS(shape)
    return usage_from(prompt, completion, total, of_prompt, of_completion)


def usage_from(
    prompt: int,
    completion: int,
    total: int,
    of_prompt: PromptDetails | None,
    of_completion: CompletionDetails | None,
) -> Usage:
    """As `usage_of`, of what the object holds.

    Some providers count thinking in `total_tokens` alone, and bill it: whatever exceeds the prompt is output.
    """
    billed = total - prompt
    if completion < billed <= MOST_TOKENS:
        completion = billed
    cached = 0 if of_prompt is None else of_prompt.cached_tokens or 0
    reasoning = 0 if of_completion is None else of_completion.reasoning_tokens or 0
    return Usage(prompt, completion, cached, 0, reasoning)
