"""Decodes events of an Anthropic upstream to canonical deltas. Tool calls are numbered from 0, not by block.

message_start  (content_block_start  content_block_delta*  content_block_stop)*  message_delta  message_stop
ping, error: at any point
"""

from __future__ import annotations

import time
from typing import Any, ClassVar, Final

from svc.dialects.anthropic.schema import (
    EVENT_DECODER,
    ContentBlockPayload,
    DeltaPayload,
    EventPayload,
    UsagePayload,
    to_finish_reason,
)
from svc.dialects.coerce import arguments_to_json, new_id, nonempty_text_or
from svc.dialects.upstream_errors import map_upstream_error, to_stream_error
from svc.dialects.validation import decode_upstream_json, decode_upstream_object
from svc.errors import ProviderFailed
from svc.wire.chat import (
    RedactedDelta,
    SignatureDelta,
    StreamDelta,
    StreamFinish,
    StreamStart,
    TextDelta,
    ThinkingDelta,
    ToolCallArguments,
    ToolCallStart,
    UsageUpdate,
)
from svc.wire.sse import event_data, event_name
from svc.wire.usage import TokenUsage

KNOWN_EVENT_TYPES: Final = frozenset(
    (
        *("message_start", "content_block_start", "content_block_delta", "content_block_stop"),
        *("message_delta", "message_stop", "error"),
    )
)


class _OpenToolCall:
    """A tool call whose arguments are incomplete."""

    __slots__ = ("has_arguments", "index")

    def __init__(self, index: int) -> None:
        self.index = index
        self.has_arguments = False


class AnthropicStreamDecoder:
    """A StreamDecoder of message events."""

    text_field: ClassVar[bytes] = b"text"
    arguments_field: ClassVar[bytes] = b"partial_json"

    def __init__(self) -> None:
        self._is_complete = False
        self.synthesized_start: StreamStart | None = None
        """The start that the provider omitted. llama.cpp omits it if the first token is a part of a character."""
        self.error: Any = None
        """The error object of the stream, if one was received."""
        self._has_started = False
        self._usage = UsagePayload()
        self._tool_calls: dict[int, _OpenToolCall] = {}
        self._tool_call_count = 0
        self._ignored_blocks: set[int] = set()
        """Indexes of blocks of the provider's own tools, which are not in the canonical chat."""

    @property
    def is_complete(self) -> bool:
        return self._is_complete

    def decode(self, event: bytes) -> list[StreamDelta]:
        data = event_data(event)
        if data is None or not data.strip():
            return []
        try:
            decoded = decode_upstream_json(EVENT_DECODER, data)
        except ProviderFailed:
            if _is_unknown_event(data):
                return []
            raise
        if decoded.type == "content_block_delta":
            return self._decode_delta(decoded.index, decoded.delta)
        return self._decode_other(decoded.type or (event_name(event) or b"").decode(errors="replace"), decoded)

    def _decode_delta(self, index: int, delta: DeltaPayload | None) -> list[StreamDelta]:
        if delta is None:
            raise ProviderFailed("The provider sent an invalid event.")
        if self._ignored_blocks and index in self._ignored_blocks:
            return []
        match delta.type:
            case "text_delta":
                return [TextDelta(delta.text)] if delta.text else []
            case "input_json_delta":
                return self._decode_arguments(index, delta.partial_json or "")
            case "thinking_delta":
                return [ThinkingDelta(delta.thinking)] if delta.thinking else []
            case "signature_delta":
                return [SignatureDelta(delta.signature)] if delta.signature else []
        return []

    def _decode_arguments(self, index: int, text: str) -> list[StreamDelta]:
        tool = self._tool_calls.get(index)
        if tool is None:
            raise ProviderFailed("The provider sent tool arguments without a tool.")
        if not text:
            return []
        tool.has_arguments = True
        return [ToolCallArguments(tool.index, text)]

    def _decode_other(self, event_type: str, event: EventPayload) -> list[StreamDelta]:
        match event_type:
            case "message_start":
                return self._decode_start(event)
            case "content_block_start":
                return self._synthesize_start() + self._decode_block(event.index, event.content_block)
            case "content_block_stop":
                return self._end_block(event.index)
            case "message_delta":
                return self._decode_message_delta(event)
            case "message_stop":
                self._is_complete = True
            case "error":
                self.error = event.error
                return [to_stream_error(map_upstream_error(event.error))]
        return []  # ping, and unknown event types

    def _decode_start(self, event: EventPayload) -> list[StreamDelta]:
        message = event.message
        if message is None:
            raise ProviderFailed("The provider's stream has no start event.")
        if message.usage is not None:
            self._usage = message.usage
        self._has_started = True
        return [_make_start(message.id, message.model, self._complete_usage())]

    def _synthesize_start(self) -> list[StreamDelta]:
        if self._has_started:
            return []
        self._has_started = True
        self.synthesized_start = _make_start(None, None, None)
        return [self.synthesized_start]

    def _decode_block(self, index: int, block: ContentBlockPayload | None) -> list[StreamDelta]:
        if block is None:
            raise ProviderFailed("The provider sent an invalid event.")
        match block.type:
            case "text":
                return [TextDelta(block.text)] if nonempty_text_or(block.text, "") else []
            case "thinking":
                return [ThinkingDelta(block.thinking)] if nonempty_text_or(block.thinking, "") else []
            case "redacted_thinking":
                return [RedactedDelta(nonempty_text_or(block.data, ""))]
            case "tool_use":
                return self._start_tool_call(index, block)
        self._ignored_blocks.add(index)
        return []

    def _start_tool_call(self, index: int, block: ContentBlockPayload) -> list[StreamDelta]:
        if not nonempty_text_or(block.id, "") or not nonempty_text_or(block.name, ""):
            raise ProviderFailed("The provider sent a tool call without a name.")
        tool = self._tool_calls[index] = _OpenToolCall(self._tool_call_count)
        self._tool_call_count += 1
        start: list[StreamDelta] = [ToolCallStart(tool.index, block.id, block.name)]
        return start + self._decode_arguments(index, arguments_to_json(block.input or None))

    def _end_block(self, index: int) -> list[StreamDelta]:
        tool = self._tool_calls.pop(index, None)
        self._ignored_blocks.discard(index)
        # A tool call without arguments can have no JSON chunk at all, but clients parse the joined text as JSON.
        return [ToolCallArguments(tool.index, "{}")] if tool is not None and not tool.has_arguments else []

    def _decode_message_delta(self, event: EventPayload) -> list[StreamDelta]:
        deltas: list[StreamDelta] = []
        if event.usage is not None:
            self._usage = self._usage.merge(event.usage)
            usage = self._complete_usage()
            # Without `output_tokens`, the completion has only the count of the start event.
            if usage is not None and event.usage.output_tokens is not None:
                deltas.append(UsageUpdate(usage))
        if event.delta is not None and event.delta.stop_reason:
            deltas.append(StreamFinish(to_finish_reason(event.delta.stop_reason)))
        return deltas

    def _complete_usage(self) -> TokenUsage | None:
        """Return the usage, or None while one of its counts is unknown."""
        return self._usage.to_usage() if self._usage.input_tokens is not None else None


def _is_unknown_event(data: bytes) -> bool:
    """Return whether the type of an event is unknown, with any fields."""
    event_type = decode_upstream_object(data).get("type")
    return isinstance(event_type, str) and event_type not in KNOWN_EVENT_TYPES


def _make_start(message_id: str | None, model: str | None, usage: TokenUsage | None) -> StreamStart:
    return StreamStart(message_id or new_id("msg_"), model or "unknown", int(time.time()), usage)
