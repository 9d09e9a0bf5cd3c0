"""Encodes canonical deltas as events for a Responses client.

    response.created  response.in_progress  (output_item.added  …  output_item.done)*  response.completed

Events are numbered from 0. Items of parallel calls stay open until the end, since their arguments can interleave.
Order and names: platform.openai.com/docs/api-reference/responses-streaming.
"""

from __future__ import annotations

import time
from typing import Any, ClassVar, Final

import msgspec

from svc.dialects.responses.open_items import (
    EventWriter,
    OpenCustomCall,
    OpenFunctionCall,
    OpenItem,
    OpenMessage,
    OpenReasoning,
)
from svc.dialects.responses.output_items import ItemStatus
from svc.dialects.responses.reasoning import encode_thinking
from svc.dialects.responses.request_decoder import ResponsesRequest
from svc.dialects.responses.response_codec import (
    ResponseFrame,
    encode_response_error,
    item_status,
    new_response_id,
)
from svc.errors import ProviderFailed, SvcError
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
from svc.wire.usage import TokenUsage

MAX_STREAMED_CHARS: Final = 32 * 1024 * 1024
"""Maximum characters of one stream, which the last event repeats."""
_encode_json: Final = msgspec.json.Encoder().encode


class ResponsesStreamEncoder:
    """A StreamEncoder of response events. Every delta changes its state, so that no event may bypass it."""

    text_field: ClassVar[bytes] = b"delta"
    arguments_field: ClassVar[bytes] = b""

    def __init__(self, request: ResponsesRequest, origin: str) -> None:
        self._request = request
        self._origin = origin
        self._writer = EventWriter()
        self._frame: ResponseFrame | None = None
        self._output: list[dict[str, Any] | None] = []
        """The items of the response. None stands for an open one."""
        self._message: OpenMessage | None = None
        self._reasoning: OpenReasoning | None = None
        self._calls: dict[int, OpenFunctionCall] = {}
        """Open calls by their index among all calls."""
        self._usage: TokenUsage | None = None
        self._finish_reason: FinishReason = "stop"
        self._received_chars = 0
        self.final_response = b""

    def encode(self, delta: StreamDelta) -> bytes:
        match delta:
            case TextDelta(text) | RefusalDelta(text):
                self._count(text)
                return self._encode_text(text, is_refusal=type(delta) is RefusalDelta)
            case ToolCallArguments(index, text):
                self._count(text)
                return self._calls[index].add(text)
            case ThinkingDelta(text):
                self._count(text)
                opening, reasoning = self._open_reasoning()
                return opening + reasoning.add(text)
            case ToolCallStart(index, call_id, flat_name):
                return self._start_call(index, call_id, flat_name)
            case SignatureDelta(signature):
                return self._end_thinking(signature)
            case RedactedDelta(data):
                return self._encode_redacted(data)
            case StreamStart():
                return self._start(delta)
            case UsageUpdate(usage):
                self._usage = usage
            case StreamFinish(reason):
                self._finish_reason = reason
        return b""

    def _count(self, text: str) -> None:
        self._received_chars += len(text)
        if self._received_chars > MAX_STREAMED_CHARS:
            raise ProviderFailed("The provider's response is too long.")

    def _start(self, start: StreamStart) -> bytes:
        self._usage = start.usage or self._usage
        self._frame = ResponseFrame(self._request, new_response_id(), start.model, start.created)
        response = {"response": self._frame.in_progress()}
        return self._writer.write("response.created", response) + self._writer.write("response.in_progress", response)

    def _encode_text(self, text: str, *, is_refusal: bool) -> bytes:
        opening = b""
        if self._message is None:
            opening = self._close_reasoning()
            self._message = OpenMessage(self._writer, self._reserve_index())
            opening += self._message.open()
        return opening + self._message.add(text, is_refusal=is_refusal)

    def _open_reasoning(self) -> tuple[bytes, OpenReasoning]:
        if self._reasoning is not None:
            return b"", self._reasoning
        closing = self._close_message()
        self._reasoning = OpenReasoning(self._writer, self._reserve_index())
        return closing + self._reasoning.open(), self._reasoning

    def _end_thinking(self, signature: str) -> bytes:
        """End a block of thinking. Its signature is the last delta."""
        if self._reasoning is None and not self._request.includes_encrypted_reasoning:
            return b""  # the upstream keeps the text to itself
        opening, reasoning = self._open_reasoning()
        if self._request.includes_encrypted_reasoning:
            reasoning.encrypted = encode_thinking(ThinkingPart(reasoning.text, signature), self._origin)
        return opening + self._close_reasoning()

    def _encode_redacted(self, data: str) -> bytes:
        if not self._request.includes_encrypted_reasoning:
            return b""
        closing = self._close_reasoning()
        opening, reasoning = self._open_reasoning()
        reasoning.encrypted = encode_thinking(RedactedThinkingPart(data), self._origin)
        return closing + opening + self._close_reasoning()

    def _start_call(self, index: int, call_id: str, flat_name: str) -> bytes:
        closing = self._close_reasoning() + self._close_message()
        name = self._request.tool_set.client_name(flat_name)
        call_type = OpenCustomCall if name.is_custom else OpenFunctionCall
        call = self._calls[index] = call_type(self._writer, self._reserve_index(), call_id, name)
        return closing + call.open()

    def _reserve_index(self) -> int:
        self._output.append(None)
        return len(self._output) - 1

    def _close_message(self, status: ItemStatus = "completed") -> bytes:
        message, self._message = self._message, None
        return self._close(message, status)

    def _close_reasoning(self, status: ItemStatus = "completed") -> bytes:
        reasoning, self._reasoning = self._reasoning, None
        if reasoning is not None and reasoning.encrypted is None and self._request.includes_encrypted_reasoning:
            reasoning.encrypted = encode_thinking(ThinkingPart(reasoning.text), self._origin)
        return self._close(reasoning, status)

    def _close(self, item: OpenItem | None, status: ItemStatus) -> bytes:
        if item is None:
            return b""
        events, self._output[item.output_index] = item.close(status)
        return events

    def encode_end(self) -> bytes:
        last_status = item_status(self._finish_reason)
        events = self._close_reasoning(last_status) + self._close_message(last_status)
        calls = list(self._calls.values())
        for position, call in enumerate(calls, 1):
            events += self._close(call, last_status if position == len(calls) else "completed")
        self._calls.clear()
        if self._frame is None:
            raise ProviderFailed("The provider's stream has no start event.")
        response = self._frame.finished(self._finish_reason, [item for item in self._output if item], self._usage)
        return events + self._write_last(response)

    def encode_failure(self, error: SvcError) -> bytes:
        opening = b""
        if self._frame is None:
            opening = self._start(StreamStart(new_response_id(), self._request.chat.model, int(time.time())))
        if self._frame is None:
            return opening
        open_items = [self._reasoning, self._message, *self._calls.values()]
        for item in open_items:
            if item is not None:
                self._output[item.output_index] = item.abandon()
        response = self._frame.failed(error, [item for item in self._output if item], self._usage)
        return opening + self._write_last(response)

    def _write_last(self, response: dict[str, Any]) -> bytes:
        self.final_response = _encode_json(response)
        return self._writer.write(f"response.{response['status']}", {"response": msgspec.Raw(self.final_response)})


def encode_interruption(error: SvcError) -> bytes:
    """Return the last event of a stream that was interrupted while it was repeated from the cache."""
    response = {"object": "response", "status": "failed", "error": encode_response_error(error), "output": []}
    return EventWriter().write("response.failed", {"response": response})
