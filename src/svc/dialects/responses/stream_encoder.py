"""Encodes canonical deltas as events for a Responses client.

    response.created  response.in_progress  (output_item.added  …  output_item.done)*  response.completed

Events are numbered from 0. Items of parallel calls stay open until the end, since their arguments can interleave.
Order and names: platform.openai.com/docs/api-reference/responses-streaming.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from typing import Any, ClassVar, Final

import msgspec

from svc.dialects.coerce import new_id
from svc.dialects.responses.custom_input import CustomInputDecoder
from svc.dialects.responses.output_items import (
    ItemStatus,
    call_item,
    message_item,
    new_call_id,
    reasoning_item,
    refusal_part,
    summary_part,
    text_part,
)
from svc.dialects.responses.reasoning import encode_thinking
from svc.dialects.responses.request_decoder import ResponsesRequest
from svc.dialects.responses.response_codec import (
    ResponseFrame,
    encode_response_error,
    item_status,
    new_response_id,
)
from svc.dialects.responses.tools import ToolName
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


class EventWriter:
    """Encodes and numbers the events of one stream."""

    def __init__(self, next_number: int = 0) -> None:
        self._next_number = next_number

    def write(self, event_type: str, fields: dict[str, Any]) -> bytes:
        """Return an event."""
        data = {"type": event_type, "sequence_number": self._next_number, **fields}
        self._next_number += 1
        return b"event: " + event_type.encode() + b"\ndata: " + _encode_json(data) + b"\n\n"


class _OpenItem(ABC):
    """An output item that is not complete."""

    def __init__(self, writer: EventWriter, item_id: str, output_index: int) -> None:
        self._writer = writer
        self._item_id = item_id
        self.output_index = output_index
        self._chunks: list[str] = []

    @property
    def _text(self) -> str:
        return "".join(self._chunks)

    @property
    def _place(self) -> dict[str, Any]:
        return {"item_id": self._item_id, "output_index": self.output_index}

    @abstractmethod
    def _item(self, status: ItemStatus) -> dict[str, Any]:
        """Return the item as far as it is complete."""

    @abstractmethod
    def _close_content(self) -> bytes:
        """Return the events that end the content."""

    def open(self) -> bytes:
        """Return the events that begin the item."""
        fields = {"output_index": self.output_index, "item": self._item("in_progress")}
        return self._writer.write("response.output_item.added", fields)

    def close(self, status: ItemStatus) -> tuple[bytes, dict[str, Any]]:
        """Return the events that end the item, and the item."""
        content_events, item = self._close_content(), self._item(status)
        fields = {"output_index": self.output_index, "item": item}
        return content_events + self._writer.write("response.output_item.done", fields), item

    def abandon(self) -> dict[str, Any]:
        """Return the item of a failed response."""
        return self._item("incomplete")


class _Message(_OpenItem):
    """A message with parts of text and refusals."""

    def __init__(self, writer: EventWriter, output_index: int) -> None:
        super().__init__(writer, new_id("msg_"), output_index)
        self._parts: list[dict[str, Any]] = []
        self._is_refusal: bool | None = None
        """The kind of the open part, or None before the first one."""

    def add(self, text: str, *, is_refusal: bool) -> bytes:
        """Return the events for a chunk of text."""
        events = b""
        if is_refusal is not self._is_refusal:
            events = self._close_part()
            self._is_refusal = is_refusal
            events += self._writer.write(
                "response.content_part.added", {**self._content_place, "part": self._make_part("")}
            )
        self._chunks.append(text)
        if is_refusal:
            return events + self._writer.write("response.refusal.delta", {**self._content_place, "delta": text})
        return events + self._writer.write(
            "response.output_text.delta", {**self._content_place, "delta": text, "logprobs": []}
        )

    @property
    def _content_place(self) -> dict[str, Any]:
        return {**self._place, "content_index": len(self._parts)}

    def _make_part(self, text: str) -> dict[str, Any]:
        return refusal_part(text) if self._is_refusal else text_part(text)

    def _close_part(self) -> bytes:
        if self._is_refusal is None:
            return b""
        text, place = self._text, self._content_place
        if self._is_refusal:
            done = self._writer.write("response.refusal.done", {**place, "refusal": text})
        else:
            done = self._writer.write("response.output_text.done", {**place, "text": text, "logprobs": []})
        part = self._make_part(text)
        self._parts.append(part)
        self._chunks.clear()
        return done + self._writer.write("response.content_part.done", {**place, "part": part})

    def _close_content(self) -> bytes:
        events = self._close_part()
        self._is_refusal = None
        return events

    def _item(self, status: ItemStatus) -> dict[str, Any]:
        open_part = [self._make_part(self._text)] if self._is_refusal is not None else []
        return message_item(self._item_id, status, [*self._parts, *open_part])


class _Reasoning(_OpenItem):
    """A block of thinking. Its text is the summary of the item."""

    def __init__(self, writer: EventWriter, output_index: int) -> None:
        super().__init__(writer, new_id("rs_"), output_index)
        self.encrypted: str | None = None
        self._has_summary = False

    @property
    def text(self) -> str:
        return self._text

    @property
    def _summary_place(self) -> dict[str, Any]:
        return {**self._place, "summary_index": 0}

    def add(self, text: str) -> bytes:
        """Return the events for a chunk of thinking."""
        events = b""
        if not self._has_summary:
            self._has_summary = True
            events = self._writer.write(
                "response.reasoning_summary_part.added", {**self._summary_place, "part": summary_part("")}
            )
        self._chunks.append(text)
        fields = {**self._summary_place, "delta": text}
        return events + self._writer.write("response.reasoning_summary_text.delta", fields)

    def _close_content(self) -> bytes:
        if not self._has_summary:
            return b""
        text = self._text
        done = self._writer.write("response.reasoning_summary_text.done", {**self._summary_place, "text": text})
        fields = {**self._summary_place, "part": summary_part(text)}
        return done + self._writer.write("response.reasoning_summary_part.done", fields)

    def _item(self, status: ItemStatus) -> dict[str, Any]:
        return reasoning_item(self._item_id, status, self._text, self.encrypted)


class _FunctionCall(_OpenItem):
    """A call of a function."""

    def __init__(self, writer: EventWriter, output_index: int, call_id: str, name: ToolName) -> None:
        super().__init__(writer, new_call_id(name), output_index)
        self._call_id = call_id
        self._name = name

    def add(self, text: str) -> bytes:
        """Return the events for a chunk of arguments."""
        self._chunks.append(text)
        return self._writer.write("response.function_call_arguments.delta", {**self._place, "delta": text})

    def _close_content(self) -> bytes:
        events = b"" if self._chunks else self.add("{}")  # clients parse the arguments
        fields = {**self._place, "name": self._name.name, "arguments": self._text}
        return events + self._writer.write("response.function_call_arguments.done", fields)

    def _item(self, status: ItemStatus) -> dict[str, Any]:
        return call_item(self._item_id, status, self._call_id, self._name, self._text)


class _CustomCall(_FunctionCall):
    """A call of a custom tool. Its input is decoded from the arguments of a function."""

    def __init__(self, writer: EventWriter, output_index: int, call_id: str, name: ToolName) -> None:
        super().__init__(writer, output_index, call_id, name)
        self._decoder = CustomInputDecoder()

    def add(self, text: str) -> bytes:
        """Return the events for a chunk of arguments."""
        return self._add_input(self._decoder.feed(text))

    def _add_input(self, text: str) -> bytes:
        if not text:
            return b""
        self._chunks.append(text)
        return self._writer.write("response.custom_tool_call_input.delta", {**self._place, "delta": text})

    def _close_content(self) -> bytes:
        rest = self._add_input(self._decoder.end())
        return rest + self._writer.write("response.custom_tool_call_input.done", {**self._place, "input": self._text})


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
        self._message: _Message | None = None
        self._reasoning: _Reasoning | None = None
        self._calls: dict[int, _FunctionCall] = {}
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
            self._message = _Message(self._writer, self._reserve_index())
            opening += self._message.open()
        return opening + self._message.add(text, is_refusal=is_refusal)

    def _open_reasoning(self) -> tuple[bytes, _Reasoning]:
        if self._reasoning is not None:
            return b"", self._reasoning
        closing = self._close_message()
        self._reasoning = _Reasoning(self._writer, self._reserve_index())
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
        call_type = _CustomCall if name.is_custom else _FunctionCall
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

    def _close(self, item: _OpenItem | None, status: ItemStatus) -> bytes:
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
