"""Encodes canonical deltas as chunks for an OpenAI client, in the order that OpenAI documents."""

from __future__ import annotations

from typing import Any, ClassVar, Final

import msgspec

from svc.dialects.openai.response_codec import encode_thinking_block, encode_usage
from svc.errors import SvcError
from svc.wire.chat import (
    FinishReason,
    RedactedDelta,
    RedactedThinkingPart,
    RefusalDelta,
    SignatureDelta,
    StreamDelta,
    StreamFinish,
    StreamStart,
    TextDelta,
    ThinkingDelta,
    ThinkingPart,
    ToolCallArguments,
    ToolCallStart,
    UsageUpdate,
)
from svc.wire.error import encode_error_body
from svc.wire.usage import TokenUsage

_encode_json: Final = msgspec.json.Encoder().encode


class OpenAIStreamEncoder:
    """A StreamEncoder of chat completion chunks."""

    text_field: ClassVar[bytes] = b"content"
    arguments_field: ClassVar[bytes] = b"arguments"

    def __init__(self, *, include_usage: bool) -> None:
        self._include_usage = include_usage
        self.final_response = b""
        self._chunk_prefix = b""
        self._delta_prefix = b""
        self._delta_suffix = b""
        self._finish_reason: FinishReason = "stop"
        self._usage: TokenUsage | None = None
        self._thinking_texts: list[str] = []
        self._thinking_block_count = 0

    def encode(self, delta: StreamDelta) -> bytes:
        if type(delta) is TextDelta:
            return self._delta_prefix + b'{"content":' + _encode_json(delta.text) + b"}" + self._delta_suffix
        if type(delta) is ToolCallArguments:
            call: Any = {"index": delta.index, "function": {"arguments": delta.text}}
            return self._encode_delta({"tool_calls": [call]})
        return self._encode_other(delta)

    def _encode_other(self, delta: StreamDelta) -> bytes:
        match delta:
            case StreamStart():
                return self._encode_start(delta)
            case ToolCallStart(index, call_id, name):
                function = {"name": name, "arguments": ""}
                call = {"index": index, "id": call_id, "type": "function", "function": function}
                return self._encode_delta({"tool_calls": [call]})
            case ThinkingDelta(text):
                self._thinking_texts.append(text)
                return self._encode_delta({"reasoning_content": text})
            case SignatureDelta(signature):
                thinking_part = ThinkingPart("".join(self._thinking_texts), signature)
                self._thinking_texts.clear()
                return self._encode_thinking(thinking_part)
            case RedactedDelta(data):
                return self._encode_thinking(RedactedThinkingPart(data))
            case RefusalDelta(text):
                return self._encode_delta({"refusal": text})
            case StreamFinish(reason):
                self._finish_reason = reason
            case UsageUpdate(usage):
                self._usage = usage
        return b""

    def _encode_start(self, start: StreamStart) -> bytes:
        fields = {"id": start.id, "object": "chat.completion.chunk", "created": start.created, "model": start.model}
        self._chunk_prefix = b"data: " + _encode_json(fields)[:-1] + b',"choices":['
        self._delta_prefix = self._chunk_prefix + b'{"index":0,"delta":'
        self._delta_suffix = b',"finish_reason":null}]' + self._chunk_end()
        self._usage = start.usage or self._usage
        return self._encode_delta({"role": "assistant", "content": ""})

    def _chunk_end(self) -> bytes:
        return b',"usage":null}\n\n' if self._include_usage else b"}\n\n"

    def _encode_delta(self, delta: dict[str, Any]) -> bytes:
        return self._delta_prefix + _encode_json(delta) + self._delta_suffix

    def _encode_thinking(self, part: ThinkingPart | RedactedThinkingPart) -> bytes:
        """Encode the complete block in one chunk. A client has to return it unchanged."""
        self._thinking_block_count += 1
        return self._encode_delta({"thinking_blocks": [encode_thinking_block(part, self._thinking_block_count - 1)]})

    def encode_end(self) -> bytes:
        finish = (
            self._delta_prefix + b'{},"finish_reason":' + _encode_json(self._finish_reason) + b"}]" + self._chunk_end()
        )
        usage = b""
        if self._include_usage and self._usage is not None:
            usage = self._chunk_prefix + b'],"usage":' + _encode_json(encode_usage(self._usage)) + b"}\n\n"
        return finish + usage + b"data: [DONE]\n\n"

    def encode_failure(self, error: SvcError) -> bytes:
        return b"data: " + encode_error_body(error) + b"\n\n"
