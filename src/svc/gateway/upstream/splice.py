"""Forwards text chunks from the provider's connection to the client's connection without parsing them.

This is the hottest path. Nearly every chunk of a long stream passes through `Splice.data_received` only.

    e3 CRLF data: {"id":"c1",…,"delta":{"content":" Hello"},"finish_reason":null}]} LF LF CRLF
    └size─┘ └───────────────── prefix ───────────────┘└text┘└────────── suffix ──────────────┘
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Final, Protocol

from svc.dialects.fastpath.chunk_template import ChunkTemplate
from svc.dialects.token_estimate import ASCII_CHARS_PER_TOKEN
from svc.gateway.net.read_mode import MAX_DIRECT_READ_BYTES, ConnectionEvents, EventForwarder
from svc.gateway.net.socket_writer import SocketWriter
from svc.wire.http_chunk import CHUNK_SIZE_LINES, SIZE_LINE_COUNT

_CRLF: Final = b"\r\n"
_SIZE_LINES_BY_FRAMED_BYTES: Final = {
    len(line) + size + len(_CRLF): line for size, line in enumerate(CHUNK_SIZE_LINES) if size
}
FRAMED_CHUNK_SIZE_LINES: Final = tuple(
    _SIZE_LINES_BY_FRAMED_BYTES.get(size, b"") for size in range(len(CHUNK_SIZE_LINES))
)
"""Size lines of chunks (RFC 9112, section 7.1), indexed by the bytes of the framed chunk: size line, data and CRLF.

The entry is empty if no chunk has that framed size.
"""
_FRAMED_BYTES_BY_SIZE_LINE: Final = {line: size for size, line in enumerate(FRAMED_CHUNK_SIZE_LINES) if line}
_MAX_SIZE_LINE_BYTES: Final = max(map(len, _FRAMED_BYTES_BY_SIZE_LINE))
_CARRIAGE_RETURN: Final = 13
_LINE_FEED: Final = 10
_TOKENS_BY_TEXT_BYTES: Final = tuple(
    max(1, int(length / ASCII_CHARS_PER_TOKEN)) if length else 0 for length in range(len(FRAMED_CHUNK_SIZE_LINES))
)
"""Estimated tokens of a text, indexed by its bytes: the rule of `token_estimate.estimate_completion_tokens`."""


class StreamSink(ABC):
    """Receives the chunks of a stream."""

    __slots__ = ()

    @abstractmethod
    def write(self, chunk: bytes, is_last: bool) -> None:
        """Send a chunk to the client. `is_last` ends the response."""

    @abstractmethod
    def write_keep_alive(self, event: bytes) -> None:
        """Send an event that is not part of the response, unless the client has unread bytes."""

    def chunk_writer(self) -> SocketWriter | None:
        """Return the writer for framed HTTP/1.1 chunks that bypass `write`, or None if the response has none."""
        return None


class SpliceSource(ConnectionEvents, Protocol):
    """The connection to the provider."""

    def handle_data(self, data: bytes, start: int, /) -> None:
        """Parse `data` from offset `start`: the splice has not forwarded these bytes."""

    def on_large_read(self) -> None:
        """Handle a read of more than MAX_DIRECT_READ_BYTES."""


class Splice(EventForwarder):
    """Forwards the chunks of one stream that match a template. All other bytes go to `SpliceSource.handle_data`.

    It has the methods of asyncio.Protocol, and replaces the connection as the transport's protocol for small reads.
    """

    __slots__ = (
        "_source",
        "_template",
        "_writer",
        "forwarded_tokens",
        "has_forwarded",
        "is_enabled",
    )

    _source: SpliceSource

    def __init__(self, writer: SocketWriter, template: ChunkTemplate) -> None:
        self._template = template
        self._writer = writer
        """Writes after a disconnect are dropped silently. The client's connection detects the disconnect itself."""
        self.forwarded_tokens = 0
        """Estimated tokens of the forwarded text."""
        self.has_forwarded = False
        """Whether a chunk was forwarded since the attempt last reset this to False."""
        self.is_enabled = False
        """Whether the next read may be forwarded. The provider's connection sets and resets it."""

    def enable(self, source: SpliceSource) -> None:
        """Forward the next reads of `source`, until `is_enabled` is False."""
        self._events = self._source = source
        self.is_enabled = True

    def set_template(self, template: ChunkTemplate) -> None:
        """Forward only chunks that match `template`."""
        self._template = template

    def forward(self, data: bytes) -> int:
        """Send the matching chunks at the start of `data`. Return how many bytes were sent.

        A read is nearly always one chunk. It has several if the loop is late, and parsing them would delay it further.
        """
        template = self._template
        converted: list[bytes] = []
        offset = tokens = 0
        size = len(data)
        if (
            size >= len(FRAMED_CHUNK_SIZE_LINES)
            or not FRAMED_CHUNK_SIZE_LINES[size]
            or not data.startswith(FRAMED_CHUNK_SIZE_LINES[size])
        ):
            size = _framed_bytes_at(data, 0)
        while size > 0:
            chunk_start = offset + len(FRAMED_CHUNK_SIZE_LINES[size])
            text_end = template.find_text_end(data, chunk_start)
            end = template.find_chunk_end(data, text_end) if text_end >= 0 else -1
            if end != offset + size - len(_CRLF) or data[end] != _CARRIAGE_RETURN or data[end + 1] != _LINE_FEED:
                break
            text_start = chunk_start + len(template.prefix)
            if not template.is_identity:
                client_size = len(template.client_prefix) + text_end - text_start + len(template.client_suffix)
                if client_size >= SIZE_LINE_COUNT:
                    break
                converted += (CHUNK_SIZE_LINES[client_size], template.client_prefix, data[text_start:text_end])
                converted += (template.client_suffix, _CRLF)
            tokens += _TOKENS_BY_TEXT_BYTES[text_end - text_start]
            offset += size
            size = _framed_bytes_at(data, offset) if offset < len(data) else 0
        if offset and template.is_identity:
            self._send(data if offset == len(data) else data[:offset], tokens)
        elif offset:
            self._send(b"".join(converted), tokens)
        return offset

    def _send(self, data: bytes, tokens: int) -> None:
        self.has_forwarded = True
        self.forwarded_tokens += tokens
        self._writer.write(data)

    # the methods of asyncio.Protocol

    def data_received(self, data: bytes) -> None:
        """Forward the chunks that match the template. The provider's connection handles the rest."""
        size = len(data)
        if size > MAX_DIRECT_READ_BYTES:
            self._source.on_large_read()
        start = self.forward(data) if self.is_enabled else 0
        if start < size:
            self._source.handle_data(data, start)


def _framed_bytes_at(data: bytes, offset: int) -> int:
    """Return the framed size of the chunk at `offset`, or 0 if it is incomplete or its size line is not canonical."""
    line_end = data.find(_LINE_FEED, offset, offset + _MAX_SIZE_LINE_BYTES)
    size = _FRAMED_BYTES_BY_SIZE_LINE.get(data[offset : line_end + 1], 0) if line_end > offset else 0
    return size if offset + size <= len(data) else 0
