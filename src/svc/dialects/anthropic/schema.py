"""Types of the fields of Anthropic's responses and events that the gateway reads. Data only."""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec import Meta

from svc.wire.chat import FinishReason
from svc.wire.usage import MAX_USAGE_TOKENS, TokenUsage

TokenCount = Annotated[int, Meta(ge=0, le=MAX_USAGE_TOKENS)]

_FINISH_REASONS: Final[dict[str, FinishReason]] = {
    "end_turn": "stop",
    "stop_sequence": "stop",
    "pause_turn": "stop",
    "max_tokens": "length",
    "model_context_window_exceeded": "length",
    "tool_use": "tool_calls",
    "refusal": "content_filter",
}
_STOP_REASONS: Final[dict[FinishReason, str]] = {
    "stop": "end_turn",
    "length": "max_tokens",
    "tool_calls": "tool_use",
    "content_filter": "refusal",
}


def to_finish_reason(stop_reason: str | None) -> FinishReason:
    """Return the canonical finish reason of a `stop_reason`."""
    return _FINISH_REASONS.get(stop_reason or "", "stop")


def to_stop_reason(finish_reason: FinishReason, *, has_tool_calls: bool, has_refusal: bool) -> str:
    """Return Anthropic's `stop_reason`. OpenAI-compatible vendors also use `stop` for refusals and tool calls."""
    if finish_reason == "stop" and (has_tool_calls or has_refusal):
        return "tool_use" if has_tool_calls else "refusal"
    return _STOP_REASONS[finish_reason]


class OutputTokensDetails(msgspec.Struct):
    thinking_tokens: TokenCount | None = None


class UsagePayload(msgspec.Struct):
    """`usage`. A field that a later event omits keeps its value from an earlier one."""

    input_tokens: TokenCount | None = None
    cache_creation_input_tokens: TokenCount | None = None
    cache_read_input_tokens: TokenCount | None = None
    output_tokens: TokenCount | None = None
    output_tokens_details: OutputTokensDetails | None = None
    cache_creation: Any = None

    def merge(self, later: UsagePayload) -> UsagePayload:
        """Return the usage with the later values. Usage is cumulative: a later value replaces an earlier one."""
        fields = {name: value for name in later.__struct_fields__ if (value := getattr(later, name)) is not None}
        return msgspec.structs.replace(self, **fields)

    def to_final_usage(self) -> TokenUsage | None:
        """Return the usage of a complete response, or None if the tokens of its prompt or its output are unknown."""
        return None if self.input_tokens is None or self.output_tokens is None else self.to_usage()

    def to_usage(self) -> TokenUsage:
        written = self.cache_creation_input_tokens or 0
        read = self.cache_read_input_tokens or 0
        details = self.output_tokens_details
        return TokenUsage(
            prompt_tokens=(self.input_tokens or 0) + written + read,
            completion_tokens=self.output_tokens or 0,
            cached_tokens=read,
            cache_write_tokens=written,
            reasoning_tokens=(details and details.thinking_tokens) or 0,
            cache_write_1h_tokens=min(written, _hour_cache_writes(self.cache_creation)),
        )


def _hour_cache_writes(cache_creation: Any) -> int:
    """Return the tokens that were written to the cache for an hour, 0 if they are not reported correctly."""
    if not isinstance(cache_creation, dict):
        return 0
    count = cache_creation.get("ephemeral_1h_input_tokens")
    return count if type(count) is int and 0 < count <= MAX_USAGE_TOKENS else 0


def encode_usage(usage: TokenUsage | None) -> dict[str, int]:
    """Encode `usage` in Anthropic's format, where input tokens exclude cached tokens."""
    usage = usage or TokenUsage()
    return {
        "input_tokens": max(0, usage.prompt_tokens - usage.cached_tokens - usage.cache_write_tokens),
        "cache_creation_input_tokens": usage.cache_write_tokens,
        "cache_read_input_tokens": usage.cached_tokens,
        "output_tokens": usage.completion_tokens,
    }


class ContentBlockPayload(msgspec.Struct):
    """The fields of a content block that the gateway reads."""

    type: str
    text: Any = None
    thinking: Any = None
    signature: Any = None
    data: Any = None
    id: Any = None
    name: Any = None
    input: Any = None


class ContentBlockType(msgspec.Struct, gc=False):
    """A content block of which only the type is checked."""

    type: str


class ResponseSummary(msgspec.Struct, gc=False):
    """The fields of a complete response that the gateway needs in order to forward it."""

    id: Annotated[str, Meta(min_length=1)]
    type: Literal["message"]
    model: Annotated[str, Meta(min_length=1)]
    content: list[ContentBlockType]
    usage: UsagePayload | None = None
    stop_reason: str | None = None


class ResponsePayload(msgspec.Struct):
    """A complete response."""

    id: Annotated[str, Meta(min_length=1)]
    type: Literal["message"]
    model: Annotated[str, Meta(min_length=1)]
    content: list[ContentBlockPayload]
    usage: UsagePayload | None = None
    stop_reason: str | None = None


class MessageStartPayload(msgspec.Struct):
    """`message` of `message_start`."""

    id: str | None = None
    model: str | None = None
    usage: UsagePayload | None = None


class DeltaPayload(msgspec.Struct):
    """`delta` of `content_block_delta` and of `message_delta`."""

    type: str = ""
    text: str | None = None
    thinking: str | None = None
    signature: str | None = None
    partial_json: str | None = None
    stop_reason: str | None = None


class EventPayload(msgspec.Struct):
    """Any event of a stream."""

    type: str = ""
    index: int = 0
    delta: DeltaPayload | None = None
    content_block: ContentBlockPayload | None = None
    message: MessageStartPayload | None = None
    usage: UsagePayload | None = None
    error: Any = None


EVENT_DECODER: Final = msgspec.json.Decoder(EventPayload)
SUMMARY_DECODER: Final = msgspec.json.Decoder(ResponseSummary)
RESPONSE_DECODER: Final = msgspec.json.Decoder(ResponsePayload)
