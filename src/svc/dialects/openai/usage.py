"""OpenAI's usage object as the ledger knows it. On the hot path."""

from __future__ import annotations

from svc.dialects.openai.shapes import UsageShape
from svc.wire.usage import Usage


def usage_of(shape: UsageShape) -> Usage:
    """Its counts; what it leaves out is 0."""
    prompt, completion = shape.prompt_tokens_details, shape.completion_tokens_details
    cached = 0 if prompt is None else prompt.cached_tokens or 0
    reasoning = 0 if completion is None else completion.reasoning_tokens or 0
    return Usage(shape.prompt_tokens, shape.completion_tokens, cached, 0, reasoning)
