"""Converts OpenAI's usage object to TokenUsage. On the hot path."""

from __future__ import annotations

from svc.dialects.openai.schema import CompletionTokensDetails, PromptTokensDetails, UsagePayload
from svc.dialects.validation import astuple
from svc.wire.usage import MAX_USAGE_TOKENS, TokenUsage


def to_usage(payload: UsagePayload) -> TokenUsage:
    """Convert a usage object. Missing counts are 0."""
    prompt, completion, total, prompt_details, completion_details = astuple(payload)
    return usage_from_counts(prompt, completion, total, prompt_details, completion_details)


def usage_from_counts(
    prompt: int,
    completion: int,
    total: int,
    prompt_details: PromptTokensDetails | None,
    completion_details: CompletionTokensDetails | None,
) -> TokenUsage:
    """Convert the counts of a usage object, as `to_usage` does.

    Some providers count thinking only in `total_tokens`, and bill it. So all tokens beyond the prompt are output.
    """
    billed_output = total - prompt
    if completion < billed_output <= MAX_USAGE_TOKENS:
        completion = billed_output
    cached = 0 if prompt_details is None else prompt_details.cached_tokens or 0
    reasoning = 0 if completion_details is None else completion_details.reasoning_tokens or 0
    return TokenUsage(prompt, completion, cached, 0, reasoning)
