"""The output items of a stream that are not complete. They encode the events of their content.

https://platform.openai.com/docs/api-reference/responses-streaming
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, Final

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
from svc.dialects.responses.tools import ToolName

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


class OpenItem(ABC):
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


class OpenMessage(OpenItem):
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


class OpenReasoning(OpenItem):
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


class OpenFunctionCall(OpenItem):
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


class OpenCustomCall(OpenFunctionCall):
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
