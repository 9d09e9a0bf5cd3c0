"""Deltas of the hub form -> events for an Anthropic client. One content block is open at a time.

A block that begins while the arguments of a tool call are incomplete waits until they are complete, or until the end.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

from svc.dialects.anthropic.faults import error_event
from svc.dialects.anthropic.held import HeldBlocks, ObjectEnd, arguments_after_end
from svc.dialects.anthropic.shapes import stop_reason, usage_object
from svc.errors import SvcError
from svc.wire.chat import (
    Delta,
    Finish,
    FinishReason,
    RedactedDelta,
    RefusalDelta,
    SignatureDelta,
    Start,
    TextDelta,
    ThinkingDelta,
    ToolArguments,
    ToolStart,
    UsageSeen,
)
from svc.wire.usage import Usage

_TEXT: Final = (
    b'event: content_block_delta\ndata: {"type":"content_block_delta","index":%d,"delta":{"type":"text_delta","text":'
)
_encode: Final = msgspec.json.Encoder().encode


class AnthropicWriter:
    """`StreamWriter` of message events."""

    def __init__(self) -> None:
        self._finish: FinishReason = "stop"
        self._usage: Usage | None = None
        self._index = -1
        self._open = ""
        """What the open block holds: `text`, `thinking`, `tool_use` with its number, or nothing."""
        self._tools = False
        self._refused = False
        self._text = b""
        self._arguments: ObjectEnd | None = None
        """The end of the open tool call's arguments."""
        self._call = -1
        self._held = HeldBlocks()

    def write(self, delta: Delta) -> bytes:
        if type(delta) is TextDelta and self._open == "text":
            return self._text + _encode(delta.text) + b"}}\n\n"
        match delta:
            case Start() | Finish() | UsageSeen():
                return self._frame(delta)
            case ToolArguments(index, text) if index == self._call and self._arguments is not None:
                out = self._argue(text, self._arguments)
                return out + self._release() if self._held.blocks else out
        if self._arguments is not None and not self._arguments.found:
            self._held.add(delta)
            return b""
        return self._block(delta)

    def _argue(self, text: str, arguments: ObjectEnd) -> bytes:
        """Write the next chunk of the open call's arguments."""
        arguments.feed(text)
        return self._delta("input_json_delta", "partial_json", text)

    def _release(self, *, all_of_it: bool = False) -> bytes:
        """Write the buffered blocks whose turn has come."""
        out: list[bytes] = []
        while self._held.blocks and (all_of_it or self._arguments is None or self._arguments.found):
            out.extend(self._block(delta) for delta in self._held.take())
        return b"".join(out)

    def _block(self, delta: Delta) -> bytes:
        """Write a delta that is not buffered."""
        match delta:
            case TextDelta(text) | RefusalDelta(text):
                self._refused = self._refused or type(delta) is RefusalDelta
                return self._enter("text", {"type": "text", "text": ""}) + self._delta("text_delta", "text", text)
            case ToolArguments(index, text):
                if index == self._call and self._arguments is not None:
                    return self._argue(text, self._arguments)
                if text.strip():
                    raise arguments_after_end()
                return b""  # white space after the end
            case ToolStart(index, call_id, name):
                self._tools = True
                block = {"type": "tool_use", "id": call_id, "name": name, "input": {}}
                begun = self._enter(f"tool_use {index}", block)
                self._call, self._arguments = index, ObjectEnd()
                return begun
            case ThinkingDelta(text):
                return self._thinking() + self._delta("thinking_delta", "thinking", text)
            case SignatureDelta(signature):
                return self._thinking() + self._delta("signature_delta", "signature", signature)
            case RedactedDelta(data):
                return self._enter("", {"type": "redacted_thinking", "data": data}) + self._leave()
        return b""

    def _frame(self, delta: Delta) -> bytes:
        match delta:
            case Start():
                return self._start(delta)
            case Finish(reason):
                self._finish = reason
            case UsageSeen(usage):
                self._usage = usage
        return b""

    def _start(self, start: Start) -> bytes:
        self._usage = start.usage or self._usage
        message: dict[str, Any] = {
            "id": start.id,
            "type": "message",
            "role": "assistant",
            "model": start.model,
            "content": [],
        }
        message |= {"stop_reason": None, "stop_sequence": None, "usage": usage_object(self._usage)}
        return event("message_start", {"message": message})

    def _thinking(self) -> bytes:
        return self._enter("thinking", {"type": "thinking", "thinking": "", "signature": ""})

    def _enter(self, what: str, block: dict[str, Any]) -> bytes:
        if what and what == self._open:
            return b""
        closed = self._leave()
        self._open = what or "redacted"
        self._index += 1
        self._text = _TEXT % self._index
        return closed + event("content_block_start", {"index": self._index, "content_block": block})

    def _leave(self) -> bytes:
        if not self._open:
            return b""
        self._open = ""
        self._arguments = None
        return event("content_block_stop", {"index": self._index})

    def _delta(self, kind: str, name: str, value: str) -> bytes:
        return event("content_block_delta", {"index": self._index, "delta": {"type": kind, name: value}})

    def end(self) -> bytes:
        held = self._release(all_of_it=True)
        reason = stop_reason(self._finish, tools=self._tools, refused=self._refused)
        last = {"delta": {"stop_reason": reason, "stop_sequence": None}, "usage": usage_object(self._usage)}
        return held + self._leave() + event("message_delta", last) + event("message_stop", {})

    def fail(self, error: SvcError) -> bytes:
        return error_event(error)


def event(name: str, fields: dict[str, Any]) -> bytes:
    """One server-sent event; its name is in its data too."""
    return b"event: " + name.encode() + b"\ndata: " + _encode({"type": name, **fields}) + b"\n\n"
