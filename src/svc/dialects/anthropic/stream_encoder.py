"""Encodes canonical deltas as events for an Anthropic client. One content block is open at a time.

A block that begins while the arguments of a tool call are incomplete is buffered until they are complete, or until
the stream ends.
"""

from __future__ import annotations

from typing import Any, ClassVar, Final

import msgspec

from svc.dialects.anthropic.block_buffer import BlockBuffer, JsonEndDetector, late_arguments_error
from svc.dialects.anthropic.errors import encode_error_event
from svc.dialects.anthropic.schema import encode_usage, to_stop_reason
from svc.dialects.anthropic.unsigned_thinking import UNSIGNED_MARK
from svc.errors import SvcError
from svc.wire.chat import (
    FinishReason,
    RedactedDelta,
    RefusalDelta,
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
from svc.wire.usage import TokenUsage

_TEXT_DELTA_PREFIX: Final = (
    b'event: content_block_delta\ndata: {"type":"content_block_delta","index":%d,"delta":{"type":"text_delta","text":'
)
_encode_json: Final = msgspec.json.Encoder().encode


class AnthropicStreamEncoder:
    """A StreamEncoder of message events."""

    text_field: ClassVar[bytes] = b"text"
    arguments_field: ClassVar[bytes] = b""

    def __init__(self) -> None:
        self._finish_reason: FinishReason = "stop"
        self._usage: TokenUsage | None = None
        self._block_index = -1
        self.final_response = b""
        self._open_block_key = ""
        """The type of the open block: `text`, `thinking` or `tool_use` with its index. Empty if none is open."""
        self._has_tool_calls = False
        self._has_refusal = False
        self._has_signature = False
        """Whether the open thinking block has received its signature."""
        self._text_delta_prefix = b""
        self._arguments_end: JsonEndDetector | None = None
        """The end of the open tool call's arguments."""
        self._tool_call_index = -1
        self._buffer = BlockBuffer()

    def encode(self, delta: StreamDelta) -> bytes:
        if type(delta) is TextDelta and self._open_block_key == "text":
            return self._text_delta_prefix + _encode_json(delta.text) + b"}}\n\n"
        match delta:
            case StreamStart() | StreamFinish() | UsageUpdate():
                return self._encode_message_event(delta)
            case ToolCallArguments(index, text) if index == self._tool_call_index and self._arguments_end is not None:
                out = self._encode_arguments(text, self._arguments_end)
                return out + self._flush_buffer() if self._buffer.blocks else out
        if self._arguments_end is not None and not self._arguments_end.is_complete:
            self._buffer.add(delta)
            return b""
        return self._encode_unbuffered(delta)

    def _encode_arguments(self, text: str, arguments_end: JsonEndDetector) -> bytes:
        """Encode the next chunk of the open tool call's arguments."""
        arguments_end.feed(text)
        return self._encode_delta("input_json_delta", "partial_json", text)

    def _flush_buffer(self, *, force: bool = False) -> bytes:
        """Encode the buffered blocks that no longer have to wait, or all of them."""
        out: list[bytes] = []
        while self._buffer.blocks and (force or self._arguments_end is None or self._arguments_end.is_complete):
            out.extend(self._encode_unbuffered(delta) for delta in self._buffer.pop())
        return b"".join(out)

    def _encode_unbuffered(self, delta: StreamDelta) -> bytes:
        """Encode a delta that is not buffered."""
        match delta:
            case TextDelta(text) | RefusalDelta(text):
                self._has_refusal = self._has_refusal or type(delta) is RefusalDelta
                return self._open_block("text", {"type": "text", "text": ""}) + self._encode_delta(
                    "text_delta", "text", text
                )
            case ToolCallArguments(index, text):
                if index == self._tool_call_index and self._arguments_end is not None:
                    return self._encode_arguments(text, self._arguments_end)
                if text.strip():
                    raise late_arguments_error()
                return b""  # whitespace after the end
            case ToolCallStart(index, call_id, name):
                self._has_tool_calls = True
                block = {"type": "tool_use", "id": call_id, "name": name, "input": {}}
                block_start = self._open_block(f"tool_use {index}", block)
                self._tool_call_index, self._arguments_end = index, JsonEndDetector()
                return block_start
            case ThinkingDelta(text):
                return self._open_thinking() + self._encode_delta("thinking_delta", "thinking", text)
            case SignatureDelta(signature):
                block_start = self._open_thinking()
                self._has_signature = True
                return block_start + self._encode_delta("signature_delta", "signature", signature)
            case RedactedDelta(data):
                return self._open_block("", {"type": "redacted_thinking", "data": data}) + self._close_block()
        return b""

    def _encode_message_event(self, delta: StreamDelta) -> bytes:
        match delta:
            case StreamStart():
                return self._encode_start(delta)
            case StreamFinish(reason):
                self._finish_reason = reason
            case UsageUpdate(usage):
                self._usage = usage
        return b""

    def _encode_start(self, start: StreamStart) -> bytes:
        self._usage = start.usage or self._usage
        message: dict[str, Any] = {
            "id": start.id,
            "type": "message",
            "role": "assistant",
            "model": start.model,
            "content": [],
        }
        message |= {"stop_reason": None, "stop_sequence": None, "usage": encode_usage(self._usage)}
        return encode_event("message_start", {"message": message})

    def _open_thinking(self) -> bytes:
        """Open a block of thinking. A signature ends the one before: it is valid for this block alone."""
        closed = self._close_block() if self._has_signature else b""
        return closed + self._open_block("thinking", {"type": "thinking", "thinking": "", "signature": ""})

    def _open_block(self, key: str, block: dict[str, Any]) -> bytes:
        if key and key == self._open_block_key:
            return b""
        closed = self._close_block()
        self._open_block_key = key or "redacted"
        self._block_index += 1
        self._text_delta_prefix = _TEXT_DELTA_PREFIX % self._block_index
        return closed + encode_event("content_block_start", {"index": self._block_index, "content_block": block})

    def _close_block(self) -> bytes:
        if not self._open_block_key:
            return b""
        is_unsigned = self._open_block_key == "thinking" and not self._has_signature
        signature = self._encode_delta("signature_delta", "signature", UNSIGNED_MARK) if is_unsigned else b""
        self._open_block_key = ""
        self._has_signature = False
        self._arguments_end = None
        return signature + encode_event("content_block_stop", {"index": self._block_index})

    def _encode_delta(self, delta_type: str, name: str, value: str) -> bytes:
        return encode_event(
            "content_block_delta", {"index": self._block_index, "delta": {"type": delta_type, name: value}}
        )

    def encode_end(self) -> bytes:
        buffered = self._flush_buffer(force=True)
        reason = to_stop_reason(self._finish_reason, has_tool_calls=self._has_tool_calls, has_refusal=self._has_refusal)
        last = {"delta": {"stop_reason": reason, "stop_sequence": None}, "usage": encode_usage(self._usage)}
        return buffered + self._close_block() + encode_event("message_delta", last) + encode_event("message_stop", {})

    def encode_failure(self, error: SvcError) -> bytes:
        return encode_error_event(error)


def encode_event(name: str, fields: dict[str, Any]) -> bytes:
    """Encode a server-sent event. Its data repeats the event name as `type`."""
    return b"event: " + name.encode() + b"\ndata: " + _encode_json({"type": name, **fields}) + b"\n\n"
