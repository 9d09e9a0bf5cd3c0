"""A bounded buffer of content blocks for the stream of an Anthropic client, where blocks never interleave.

An OpenAI stream can begin a second tool call, or continue with text, before the arguments of the first call end.
"""

from __future__ import annotations

import re
from typing import Final

from svc.errors import ProviderFailed
from svc.wire.chat import (
    RedactedDelta,
    RefusalDelta,
    SignatureDelta,
    StreamDelta,
    TextDelta,
    ThinkingDelta,
    ToolCallArguments,
    ToolCallStart,
)

MAX_BUFFERED_BLOCKS_BYTES: Final = 1024 * 1024
"""Maximum per stream. The longest completions of current models are shorter."""
BLOCK_OVERHEAD_BYTES: Final = 512
"""Added to the size of each block, since there may be many blocks without text."""

_MERGEABLE_DELTAS: Final = (TextDelta, RefusalDelta, ThinkingDelta)
_find_json_marks: Final = re.compile(r'\\.?|["{}\[\]]', re.DOTALL).findall


class JsonEndDetector:
    """Finds the end of a JSON object or array that arrives in chunks."""

    __slots__ = ("_depth", "_in_string", "_pending_escape", "is_complete")

    def __init__(self) -> None:
        self.is_complete = False
        self._depth = 0
        self._in_string = False
        self._pending_escape = ""
        """A backslash at the end of the last chunk."""

    def feed(self, text: str) -> None:
        """Process the next chunk of the JSON text."""
        marks: list[str] = _find_json_marks(self._pending_escape + text)
        self._pending_escape = ""
        for mark in marks:
            if mark == '"':
                self._in_string = not self._in_string
            elif mark[0] == "\\":
                self._pending_escape = mark if len(mark) == 1 else ""
            elif not self._in_string:
                self._depth += 1 if mark in "{[" else -1
                self.is_complete = self.is_complete or self._depth <= 0


class BufferedBlock:
    """A buffered content block. It joins deltas of one kind, since many small ones take more memory."""

    __slots__ = ("delta_type", "start", "text")

    def __init__(self, delta_type: type[StreamDelta], start: ToolCallStart | None) -> None:
        self.delta_type = delta_type
        self.start = start
        self.text = bytearray()

    def to_deltas(self) -> list[StreamDelta]:
        """Return the block as deltas for the stream encoder."""
        text = self.text.decode()
        if self.start is not None:
            start_deltas: list[StreamDelta] = [self.start]
            return [*start_deltas, ToolCallArguments(self.start.index, text)] if text else start_deltas
        return [_make_delta(self.delta_type, text)]


class BlockBuffer:
    """The buffered blocks, in the order in which they began."""

    __slots__ = ("_buffered_bytes", "_tool_blocks", "blocks")

    def __init__(self) -> None:
        self.blocks: list[BufferedBlock] = []
        self._tool_blocks: dict[int, BufferedBlock] = {}
        self._buffered_bytes = 0

    def add(self, delta: StreamDelta) -> None:
        """Buffer a delta. Raises ProviderFailed for a full buffer, and for arguments of a call that has ended."""
        text = _delta_text(delta)
        block = self._find_block(delta)
        if block is not None:
            data = text.encode()
            block.text += data
            self._add_size(len(data))
        elif text.strip():
            raise late_arguments_error()

    def pop(self) -> list[StreamDelta]:
        """Remove the first block and return its deltas."""
        block = self.blocks.pop(0)
        if block.start is not None:
            del self._tool_blocks[block.start.index]
        self._buffered_bytes -= BLOCK_OVERHEAD_BYTES + len(block.text)
        return block.to_deltas()

    def _find_block(self, delta: StreamDelta) -> BufferedBlock | None:
        """Return the block that a delta belongs to, or None for arguments of a call that is not buffered."""
        if isinstance(delta, ToolCallArguments):
            return self._tool_blocks.get(delta.index)
        last = self.blocks[-1] if self.blocks else None
        is_mergeable = last is not None and last.delta_type is type(delta) and last.delta_type in _MERGEABLE_DELTAS
        return last if is_mergeable else self._start_block(delta)

    def _start_block(self, delta: StreamDelta) -> BufferedBlock:
        start = delta if isinstance(delta, ToolCallStart) else None
        block = BufferedBlock(type(delta), start)
        self.blocks.append(block)
        if start is not None:
            self._tool_blocks[start.index] = block
        self._add_size(BLOCK_OVERHEAD_BYTES)
        return block

    def _add_size(self, size: int) -> None:
        self._buffered_bytes += size
        if self._buffered_bytes > MAX_BUFFERED_BLOCKS_BYTES:
            raise ProviderFailed("The provider interleaved tool calls with more data than the gateway buffers.")


def late_arguments_error() -> ProviderFailed:
    """Return the error for arguments of a tool call that has ended."""
    return ProviderFailed("The provider sent arguments for a tool call that had already ended.")


def _delta_text(delta: StreamDelta) -> str:
    match delta:
        case TextDelta(text) | RefusalDelta(text) | ThinkingDelta(text) | ToolCallArguments(_, text):
            return text
        case SignatureDelta(text) | RedactedDelta(text):
            return text
    return ""


def _make_delta(delta_type: type[StreamDelta], text: str) -> StreamDelta:
    if delta_type is TextDelta:
        return TextDelta(text)
    if delta_type is RefusalDelta:
        return RefusalDelta(text)
    if delta_type is ThinkingDelta:
        return ThinkingDelta(text)
    return SignatureDelta(text) if delta_type is SignatureDelta else RedactedDelta(text)
