"""Events of an Anthropic upstream -> deltas of the hub form. Tool calls are counted from 0, not by block.

message_start  (content_block_start  content_block_delta*  content_block_stop)*  message_delta  message_stop
ping, error: at any point
"""

from __future__ import annotations

import time
from typing import Any, Final

from svc.dialects.anthropic.shapes import EVENT, Block, DeltaShape, Event, UsageShape, finish_reason
from svc.dialects.failures import failure_of, stream_failed
from svc.dialects.reading import decode_upstream, upstream_object
from svc.dialects.values import arguments_text, new_id, text_or
from svc.errors import ProviderFailed
from svc.wire.chat import (
    Delta,
    Finish,
    RedactedDelta,
    SignatureDelta,
    Start,
    TextDelta,
    ThinkingDelta,
    ToolArguments,
    ToolStart,
    UsageSeen,
)
from svc.wire.sse import event_data, event_name
from svc.wire.usage import Usage

KNOWN_EVENTS: Final = frozenset(
    (
        *("message_start", "content_block_start", "content_block_delta", "content_block_stop"),
        *("message_delta", "message_stop", "error"),
    )
)


class _Tool:
    """A tool call that is being written."""

    __slots__ = ("index", "said")

    def __init__(self, index: int) -> None:
        self.index = index
        self.said = False


class AnthropicReader:
    """`StreamReader` of message events."""

    def __init__(self) -> None:
        self._complete = False
        self.missing: Start | None = None
        """The beginning that the provider left out: llama.cpp does when the first token is a part of a character."""
        self.error: Any = None
        """The error object of the stream, once it has come."""
        self._begun = False
        self._usage = UsageShape()
        self._tools: dict[int, _Tool] = {}
        self._count = 0
        self._silent: set[int] = set()
        """Blocks of the provider's own tools: the hub has no place for what they say."""

    @property
    def complete(self) -> bool:
        return self._complete

    def read(self, event: bytes) -> list[Delta]:
        data = event_data(event)
        if data is None or not data.strip():
            return []
        try:
            found = decode_upstream(EVENT, data)
        except ProviderFailed:
            if _is_unknown(data):
                return []
            raise
        if found.type == "content_block_delta":
            return self._delta(found.index, found.delta)
        return self._other(found.type or (event_name(event) or b"").decode(errors="replace"), found)

    def _delta(self, index: int, delta: DeltaShape | None) -> list[Delta]:
        if delta is None:
            raise ProviderFailed("The provider sent an event that was not understandable.")
        if self._silent and index in self._silent:
            return []
        match delta.type:
            case "text_delta":
                return [TextDelta(delta.text)] if delta.text else []
            case "input_json_delta":
                return self._arguments(index, delta.partial_json or "")
            case "thinking_delta":
                return [ThinkingDelta(delta.thinking)] if delta.thinking else []
            case "signature_delta":
                return [SignatureDelta(delta.signature)] if delta.signature else []
        return []

    def _arguments(self, index: int, text: str) -> list[Delta]:
        tool = self._tools.get(index)
        if tool is None:
            raise ProviderFailed("The provider sent tool arguments without a tool.")
        if not text:
            return []
        tool.said = True
        return [ToolArguments(tool.index, text)]

    def _other(self, kind: str, event: Event) -> list[Delta]:
        match kind:
            case "message_start":
                return self._start(event)
            case "content_block_start":
                return self._open() + self._block(event.index, event.content_block)
            case "content_block_stop":
                return self._stop(event.index)
            case "message_delta":
                return self._end(event)
            case "message_stop":
                self._complete = True
            case "error":
                self.error = event.error
                return [stream_failed(failure_of(event.error))]
        return []  # ping, and what is yet to be invented

    def _start(self, event: Event) -> list[Delta]:
        message = event.message
        if message is None:
            raise ProviderFailed("The provider's stream has no beginning.")
        if message.usage is not None:
            self._usage = message.usage
        self._begun = True
        return [_beginning(message.id, message.model, self._known_usage())]

    def _open(self) -> list[Delta]:
        if self._begun:
            return []
        self._begun = True
        self.missing = _beginning(None, None, None)
        return [self.missing]

    def _block(self, index: int, block: Block | None) -> list[Delta]:
        if block is None:
            raise ProviderFailed("The provider sent an event that was not understandable.")
        match block.type:
            case "text":
                return [TextDelta(block.text)] if text_or(block.text, "") else []
            case "thinking":
                return [ThinkingDelta(block.thinking)] if text_or(block.thinking, "") else []
            case "redacted_thinking":
                return [RedactedDelta(text_or(block.data, ""))]
            case "tool_use":
                return self._tool(index, block)
        self._silent.add(index)
        return []

    def _tool(self, index: int, block: Block) -> list[Delta]:
        if not text_or(block.id, "") or not text_or(block.name, ""):
            raise ProviderFailed("The provider sent a tool call without a name.")
        tool = self._tools[index] = _Tool(self._count)
        self._count += 1
        start: list[Delta] = [ToolStart(tool.index, block.id, block.name)]
        return start + self._arguments(index, arguments_text(block.input or None))

    def _stop(self, index: int) -> list[Delta]:
        tool = self._tools.pop(index, None)
        self._silent.discard(index)
        # A tool without arguments may come without a single piece of JSON; clients parse what they have joined.
        return [ToolArguments(tool.index, "{}")] if tool is not None and not tool.said else []

    def _end(self, event: Event) -> list[Delta]:
        deltas: list[Delta] = []
        if event.usage is not None:
            self._usage = self._usage.replaced_by(event.usage)
            usage = self._known_usage()
            if usage is not None:
                deltas.append(UsageSeen(usage))
        if event.delta is not None and event.delta.stop_reason:
            deltas.append(Finish(finish_reason(event.delta.stop_reason)))
        return deltas

    def _known_usage(self) -> Usage | None:
        """None while half of it is unknown: 0 would be a lie."""
        return self._usage.usage() if self._usage.input_tokens is not None else None


def _is_unknown(data: bytes) -> bool:
    """An event of a type that is not read here, whatever its fields are."""
    kind = upstream_object(data).get("type")
    return isinstance(kind, str) and kind not in KNOWN_EVENTS


def _beginning(message_id: str | None, model: str | None, usage: Usage | None) -> Start:
    return Start(message_id or new_id("msg_"), model or "unknown", int(time.time()), usage)
