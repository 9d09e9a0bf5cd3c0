"""A bounded buffer of content blocks for the stream of an Anthropic client, where blocks never interleave.

OpenAI's dialect may begin a second tool call, or go on with text, before the arguments of the first call have ended.
"""

from __future__ import annotations

import re
from typing import Final

from svc.errors import ProviderFailed
from svc.wire.chat import (
    Delta,
    RedactedDelta,
    RefusalDelta,
    SignatureDelta,
    TextDelta,
    ThinkingDelta,
    ToolArguments,
    ToolStart,
)

MAX_HELD_BYTES: Final = 1024 * 1024
"""Per stream; the longest answers of today's models are shorter."""
BLOCK_BYTES: Final = 512
"""Added to the size of each block, since there may be many blocks without text."""

_JOINED: Final = (TextDelta, RefusalDelta, ThinkingDelta)
_MARKS: Final = re.compile(r'\\.?|["{}\[\]]', re.DOTALL).findall


class ObjectEnd:
    """Finds the end of a JSON object, or array, that comes in chunks."""

    __slots__ = ("_depth", "_escape", "_quoted", "found")

    def __init__(self) -> None:
        self.found = False
        self._depth = 0
        self._quoted = False
        self._escape = ""
        """A backslash at the end of the last chunk."""

    def feed(self, text: str) -> None:
        """The next chunk of the JSON text."""
        marks: list[str] = _MARKS(self._escape + text)
        self._escape = ""
        for mark in marks:
            if mark == '"':
                self._quoted = not self._quoted
            elif mark[0] == "\\":
                self._escape = mark if len(mark) == 1 else ""
            elif not self._quoted:
                self._depth += 1 if mark in "{[" else -1
                self.found = self.found or self._depth <= 0


class Block:
    """A buffered content block. It joins deltas of one kind, since many small ones take more memory."""

    __slots__ = ("kind", "start", "text")

    def __init__(self, kind: type[Delta], start: ToolStart | None) -> None:
        self.kind = kind
        self.start = start
        self.text = bytearray()

    def deltas(self) -> list[Delta]:
        """The block as deltas for the writer."""
        text = self.text.decode()
        if self.start is not None:
            begun: list[Delta] = [self.start]
            return [*begun, ToolArguments(self.start.index, text)] if text else begun
        return [_delta(self.kind, text)]


class HeldBlocks:
    """The buffered blocks, in the order in which they began."""

    __slots__ = ("_calls", "_size", "blocks")

    def __init__(self) -> None:
        self.blocks: list[Block] = []
        self._calls: dict[int, Block] = {}
        self._size = 0

    def add(self, delta: Delta) -> None:
        """Buffer a delta; raises ProviderFailed for a full buffer, and for arguments of a call that has ended."""
        text = _text(delta)
        block = self._block_of(delta)
        if block is not None:
            data = text.encode()
            block.text += data
            self._grow(len(data))
        elif text.strip():
            raise arguments_after_end()

    def take(self) -> list[Delta]:
        """Remove the first block and return its deltas."""
        block = self.blocks.pop(0)
        if block.start is not None:
            del self._calls[block.start.index]
        self._size -= BLOCK_BYTES + len(block.text)
        return block.deltas()

    def _block_of(self, delta: Delta) -> Block | None:
        """None for arguments of a call that is not buffered."""
        if isinstance(delta, ToolArguments):
            return self._calls.get(delta.index)
        last = self.blocks[-1] if self.blocks else None
        joined = last is not None and last.kind is type(delta) and last.kind in _JOINED
        return last if joined else self._begin(delta)

    def _begin(self, delta: Delta) -> Block:
        start = delta if isinstance(delta, ToolStart) else None
        block = Block(type(delta), start)
        self.blocks.append(block)
        if start is not None:
            self._calls[start.index] = block
        self._grow(BLOCK_BYTES)
        return block

    def _grow(self, size: int) -> None:
        self._size += size
        if self._size > MAX_HELD_BYTES:
            raise ProviderFailed(
                "The provider mixed the chunks of tool calls, and more of them than the gateway buffers."
            )


def arguments_after_end() -> ProviderFailed:
    """The error for arguments of a tool call whose arguments were complete."""
    return ProviderFailed("The provider sent arguments of a tool call that had ended.")


def _text(delta: Delta) -> str:
    match delta:
        case TextDelta(text) | RefusalDelta(text) | ThinkingDelta(text) | ToolArguments(_, text):
            return text
        case SignatureDelta(text) | RedactedDelta(text):
            return text
    return ""


def _delta(kind: type[Delta], text: str) -> Delta:
    if kind is TextDelta:
        return TextDelta(text)
    if kind is RefusalDelta:
        return RefusalDelta(text)
    if kind is ThinkingDelta:
        return ThinkingDelta(text)
    return SignatureDelta(text) if kind is SignatureDelta else RedactedDelta(text)
