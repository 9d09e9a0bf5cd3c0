"""Types of the fields of a native response and its events that the gateway reads. Data only."""

from __future__ import annotations

from typing import Annotated, Any, Final

import msgspec
from msgspec import Meta

from svc.dialects.message_schema import ABSENT
from svc.wire.chat import FinishReason
from svc.wire.usage import MAX_USAGE_TOKENS, TokenUsage

_TokenCount = Annotated[int, Meta(ge=0, le=MAX_USAGE_TOKENS)]


class _InputDetails(msgspec.Struct, gc=False):
    cached_tokens: _TokenCount | None = None
    cache_write_tokens: _TokenCount | None = None


class _OutputDetails(msgspec.Struct, gc=False):
    reasoning_tokens: _TokenCount | None = None


class _UsagePayload(msgspec.Struct, gc=False):
    input_tokens: _TokenCount
    output_tokens: _TokenCount
    input_tokens_details: _InputDetails | None = None
    output_tokens_details: _OutputDetails | None = None


class _ItemType(msgspec.Struct, gc=False):
    type: str


class _IncompleteDetails(msgspec.Struct, gc=False):
    reason: str | None = None


class NativeResponse(msgspec.Struct, gc=False):
    """The fields of a response that the gateway reads."""

    id: Annotated[str, Meta(min_length=1)]
    status: str
    model: str = "unknown"
    output: list[_ItemType] = []
    usage: Any = None
    error: Any = None
    incomplete_details: _IncompleteDetails | None = None
    background: bool | None = None

    @property
    def has_failed(self) -> bool:
        """Whether the upstream reports a failed or cancelled response."""
        return self.status in ("failed", "cancelled")

    @property
    def is_unfinished(self) -> bool:
        """Whether the response is not complete and is no background response."""
        return self.status in ("queued", "in_progress") and not self.background

    def token_usage(self) -> TokenUsage | None:
        """Return the usage, or None if it is missing or invalid."""
        try:
            usage = msgspec.convert(self.usage, _UsagePayload | None)
        except msgspec.ValidationError:
            return None
        if usage is None:
            return None
        details = usage.input_tokens_details or _InputDetails()
        cached, written = details.cached_tokens or 0, details.cache_write_tokens or 0
        excludes_cached = cached + written > usage.input_tokens
        reasoning = usage.output_tokens_details or _OutputDetails()
        return TokenUsage(
            prompt_tokens=usage.input_tokens + (cached + written if excludes_cached else 0),
            completion_tokens=usage.output_tokens,
            cached_tokens=cached,
            cache_write_tokens=written,
            reasoning_tokens=reasoning.reasoning_tokens or 0,
        )

    def finish_reason(self) -> FinishReason:
        """Return the canonical finish reason of a response that did not fail."""
        if self.status == "incomplete":
            reason = self.incomplete_details.reason if self.incomplete_details is not None else None
            return "content_filter" if reason == "content_filter" else "length"
        has_calls = any(item.type in ("function_call", "custom_tool_call") for item in self.output)
        return "tool_calls" if has_calls else "stop"


class NativeEvent(msgspec.Struct, gc=False):
    """An event of a native stream."""

    type: str
    sequence_number: int = -1
    response: msgspec.Raw = ABSENT
    delta: msgspec.Raw = ABSENT
    """Text of a delta event."""
    item: msgspec.Raw = ABSENT
    """The item of an event that begins or ends one."""
    output_index: Any = 0
    content_index: Any = 0
    summary_index: Any = 0
    error: Any = None
    code: Any = None
    message: Any = None


NATIVE_RESPONSE_DECODER: Final = msgspec.json.Decoder(NativeResponse)
NATIVE_EVENT_DECODER: Final = msgspec.json.Decoder(NativeEvent)
