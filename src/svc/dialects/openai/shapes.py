"""The words of OpenAI's answers and chunks, strictly typed: what decodes as these needs no repair. Data only."""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

from svc.errors import ProviderFailed
from svc.wire.chat import FinishReason
from svc.wire.usage import MOST_TOKENS

Text = Annotated[str, Meta(min_length=1)]
Index = Annotated[int, Meta(ge=0)]
Number = Annotated[int, Meta(ge=0, le=MOST_TOKENS)]
MAX_TOTAL_TOKENS: Final = 2 * MOST_TOKENS
Total = Annotated[int, Meta(ge=0, le=MAX_TOTAL_TOKENS)]

PassedReason = Literal["stop", "length", "tool_calls", "content_filter", "function_call"]
"""What an OpenAI client may be told: the last one belongs to the deprecated `functions` of a request."""

FINISH: Final[dict[str, FinishReason]] = {
    "stop": "stop",
    "length": "length",
    "tool_calls": "tool_calls",
    "content_filter": "content_filter",
    "function_call": "tool_calls",
    "model_length": "length",
    "max_tokens": "length",
    "tool_use": "tool_calls",
}


def finish_reason(reason: object) -> FinishReason:
    """One of the four; raises ProviderFailed for `error`."""
    word = reason.lower() if isinstance(reason, str) else ""
    if word == "error":
        raise ProviderFailed("The provider failed while it was answering.")
    return FINISH.get(word, "stop")


def passed_reason(reason: object) -> PassedReason:
    """As `finish_reason`, for a client of the same dialect."""
    return "function_call" if reason == "function_call" else finish_reason(reason)


class PromptDetails(msgspec.Struct, gc=False):
    cached_tokens: Number | None = None


class CompletionDetails(msgspec.Struct, gc=False):
    reasoning_tokens: Number | None = None


class UsageShape(msgspec.Struct, gc=False):
    """`usage`, complete. The total may exceed the sum of the other two: see `usage.usage_from`."""

    prompt_tokens: Number
    completion_tokens: Number
    total_tokens: Total
    prompt_tokens_details: PromptDetails | None = None
    completion_tokens_details: CompletionDetails | None = None


def mend_usage(found: Any) -> dict[str, Any] | None:
    """An upstream's usage object; a count that is missing or invalid is filled in. None when there is none at all."""
    if not isinstance(found, dict) or not any(isinstance(found.get(name), int) for name in _COUNTS):
        return None
    mended = {**found}
    prompt, completion = _count(found.get("prompt_tokens")), _count(found.get("completion_tokens"))
    total = _count(found.get("total_tokens"), MAX_TOTAL_TOKENS)
    if total is None:
        total = (prompt or 0) + (completion or 0)
    if prompt is None:
        prompt = min(max(0, total - (completion or 0)), MOST_TOKENS)
    if completion is None:
        completion = min(max(0, total - prompt), MOST_TOKENS)
    mended |= {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": total}
    for name, kind in _DETAILS.items():
        try:
            msgspec.convert(found.get(name), kind)
        except msgspec.ValidationError:
            del mended[name]
    return mended


_COUNTS: Final = ("prompt_tokens", "completion_tokens", "total_tokens")
_DETAILS: Final[dict[str, Any]] = {
    "prompt_tokens_details": PromptDetails | None,
    "completion_tokens_details": CompletionDetails | None,
}


def _count(value: object, most: int = MOST_TOKENS) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= most else None


class FunctionShape(msgspec.Struct, gc=False):
    name: Text
    arguments: str


class FunctionCall(msgspec.Struct, gc=False, tag_field="type", tag="function"):
    id: Text
    function: FunctionShape


class CustomShape(msgspec.Struct, gc=False):
    name: Text
    input: str


class CustomCall(msgspec.Struct, gc=False, tag_field="type", tag="custom"):
    id: Text
    custom: CustomShape


class MessageShape(msgspec.Struct, gc=False):
    role: Literal["assistant"]
    content: str | None
    tool_calls: list[FunctionCall | CustomCall] | None = None


class ChoiceShape(msgspec.Struct, gc=False):
    index: Index
    message: MessageShape
    finish_reason: PassedReason


class AnswerShape(msgspec.Struct, gc=False):
    """A `chat.completion`."""

    id: Text
    object: Literal["chat.completion"]
    created: int
    model: Text
    choices: Annotated[list[ChoiceShape], Meta(min_length=1)]
    usage: UsageShape | None = None
    error: None = None


class FunctionDelta(msgspec.Struct, gc=False):
    name: str | UnsetType | None = UNSET
    arguments: str | UnsetType = UNSET


class CustomDelta(msgspec.Struct, gc=False):
    name: str | UnsetType | None = UNSET
    input: str | UnsetType = UNSET


class ToolDelta(msgspec.Struct, gc=False):
    index: Index
    id: str | UnsetType | None = UNSET
    type: str | UnsetType | None = UNSET
    function: FunctionDelta | UnsetType = UNSET
    custom: CustomDelta | UnsetType = UNSET


class DeltaShape(msgspec.Struct, gc=False):
    role: Literal["assistant"] | UnsetType = UNSET
    content: str | UnsetType | None = UNSET
    reasoning_content: str | UnsetType | None = UNSET
    tool_calls: list[ToolDelta] | UnsetType = UNSET


class ChunkChoice(msgspec.Struct, gc=False):
    index: Index
    delta: DeltaShape
    finish_reason: PassedReason | None


class VendorUsage(msgspec.Struct, gc=False):
    """`x_groq`, which holds the usage of a stream."""

    usage: Any = None


class ChunkShape(msgspec.Struct, gc=False):
    """A `chat.completion.chunk`."""

    id: Text
    object: Literal["chat.completion.chunk"]
    created: int
    model: Text
    choices: list[ChunkChoice]
    usage: UsageShape | UnsetType | None = UNSET
    x_groq: VendorUsage | None = None
    error: None = None
