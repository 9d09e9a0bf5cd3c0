"""Strict types of OpenAI's responses and chunks. Data that decodes as these types needs no correction. Data only."""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

from svc.errors import ProviderFailed
from svc.wire.chat import FinishReason
from svc.wire.usage import MAX_USAGE_TOKENS

NonEmptyText = Annotated[str, Meta(min_length=1)]
Index = Annotated[int, Meta(ge=0)]
TokenCount = Annotated[int, Meta(ge=0, le=MAX_USAGE_TOKENS)]
MAX_TOTAL_TOKENS: Final = 2 * MAX_USAGE_TOKENS
TotalTokenCount = Annotated[int, Meta(ge=0, le=MAX_TOTAL_TOKENS)]

OpenAIFinishReason = Literal["stop", "length", "tool_calls", "content_filter", "function_call"]
"""The finish reasons of the OpenAI API. `function_call` belongs to the deprecated `functions` of a request."""

FINISH_REASONS: Final[dict[str, FinishReason]] = {
    "stop": "stop",
    "length": "length",
    "tool_calls": "tool_calls",
    "content_filter": "content_filter",
    "function_call": "tool_calls",
    "model_length": "length",
    "max_tokens": "length",
    "tool_use": "tool_calls",
}


def to_finish_reason(reason: object) -> FinishReason:
    """Return the canonical finish reason. Raises ProviderFailed for `error`."""
    lowered = reason.lower() if isinstance(reason, str) else ""
    if lowered == "error":
        raise ProviderFailed("The provider failed during its response.")
    return FINISH_REASONS.get(lowered, "stop")


def to_openai_finish_reason(reason: object) -> OpenAIFinishReason:
    """Return the finish reason for an OpenAI client. Raises ProviderFailed for `error`."""
    return "function_call" if reason == "function_call" else to_finish_reason(reason)


class PromptTokensDetails(msgspec.Struct, gc=False):
    """Parts of `prompt_tokens`. OpenRouter reports images and cache writes. `Any`: see `usage.to_usage`."""

    cached_tokens: TokenCount | None = None
    audio_tokens: Any = None
    image_tokens: Any = None
    cache_write_tokens: Any = None


class CompletionTokensDetails(msgspec.Struct, gc=False):
    """Parts of `completion_tokens`. OpenRouter reports images."""

    reasoning_tokens: TokenCount | None = None
    audio_tokens: Any = None
    image_tokens: Any = None


class UsagePayload(msgspec.Struct, gc=False):
    """A complete `usage`. The total can exceed the sum of the other two: see `usage.to_usage`."""

    prompt_tokens: TokenCount
    completion_tokens: TokenCount
    total_tokens: TotalTokenCount
    prompt_tokens_details: PromptTokensDetails | None = None
    completion_tokens_details: CompletionTokensDetails | None = None
    prompt_cache_hit_tokens: Any = None
    """DeepSeek's name of `prompt_tokens_details.cached_tokens`."""
    cached_tokens: Any = None
    """Moonshot's."""


def normalize_usage(raw_usage: Any) -> dict[str, Any] | None:
    """Return an upstream's usage. Missing or invalid counts are filled in. None without a valid count."""
    if not isinstance(raw_usage, dict):
        return None
    normalized = {**raw_usage}
    prompt, completion = _valid_count(raw_usage.get("prompt_tokens")), _valid_count(raw_usage.get("completion_tokens"))
    total = _valid_count(raw_usage.get("total_tokens"), MAX_TOTAL_TOKENS)
    if prompt is None and completion is None and total is None:
        return None
    if total is None:
        total = (prompt or 0) + (completion or 0)
    if prompt is None:
        prompt = min(max(0, total - (completion or 0)), MAX_USAGE_TOKENS)
    if completion is None:
        completion = min(max(0, total - prompt), MAX_USAGE_TOKENS)
    normalized |= {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": total}
    for name, detail_type in _USAGE_DETAIL_TYPES.items():
        try:
            msgspec.convert(raw_usage.get(name), detail_type)
        except msgspec.ValidationError:
            del normalized[name]
    return normalized


_USAGE_DETAIL_TYPES: Final[dict[str, Any]] = {
    "prompt_tokens_details": PromptTokensDetails | None,
    "completion_tokens_details": CompletionTokensDetails | None,
}


def _valid_count(value: object, maximum: int = MAX_USAGE_TOKENS) -> int | None:
    if isinstance(value, float) and value.is_integer():  # some programs encode all numbers as floats
        value = int(value)
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= maximum else None


class FunctionPayload(msgspec.Struct, gc=False):
    name: NonEmptyText
    arguments: str


class FunctionToolCall(msgspec.Struct, gc=False, tag_field="type", tag="function"):
    id: NonEmptyText
    function: FunctionPayload


class CustomToolPayload(msgspec.Struct, gc=False):
    name: NonEmptyText
    input: str


class CustomToolCall(msgspec.Struct, gc=False, tag_field="type", tag="custom"):
    id: NonEmptyText
    custom: CustomToolPayload


class MessagePayload(msgspec.Struct, gc=False):
    """`content` has to be a string or null."""

    role: Literal["assistant"]
    content: msgspec.Raw
    tool_calls: list[FunctionToolCall | CustomToolCall] | None = None


class ChoicePayload(msgspec.Struct, gc=False):
    index: Index
    message: MessagePayload
    finish_reason: OpenAIFinishReason


class ResponsePayload(msgspec.Struct, gc=False):
    """A `chat.completion` object."""

    id: NonEmptyText
    object: Literal["chat.completion"]
    created: int
    model: NonEmptyText
    choices: Annotated[list[ChoicePayload], Meta(min_length=1)]
    usage: UsagePayload | None = None
    error: None = None


class FunctionDelta(msgspec.Struct, gc=False):
    name: str | UnsetType | None = UNSET
    arguments: str | UnsetType = UNSET


class CustomToolDelta(msgspec.Struct, gc=False):
    name: str | UnsetType | None = UNSET
    input: str | UnsetType = UNSET


class ToolCallDelta(msgspec.Struct, gc=False):
    index: Index
    id: str | UnsetType | None = UNSET
    type: str | UnsetType | None = UNSET
    function: FunctionDelta | UnsetType = UNSET
    custom: CustomToolDelta | UnsetType = UNSET


class DeltaPayload(msgspec.Struct, gc=False):
    role: Literal["assistant"] | UnsetType = UNSET
    content: str | UnsetType | None = UNSET
    reasoning_content: str | UnsetType | None = UNSET
    tool_calls: list[ToolCallDelta] | UnsetType = UNSET


class ChunkChoicePayload(msgspec.Struct, gc=False):
    index: Index
    delta: DeltaPayload
    finish_reason: OpenAIFinishReason | None


class VendorUsage(msgspec.Struct, gc=False):
    """Groq's `x_groq`, which contains the usage of a stream."""

    usage: Any = None


class ChunkPayload(msgspec.Struct, gc=False):
    """A `chat.completion.chunk` object."""

    id: NonEmptyText
    object: Literal["chat.completion.chunk"]
    created: int
    model: NonEmptyText
    choices: list[ChunkChoicePayload]
    usage: UsagePayload | UnsetType | None = UNSET
    x_groq: VendorUsage | None = None
    error: None = None
