"""Forwards plain text chunks from the provider's connection to the client's connection without parsing them.

This is the hottest path. Nearly every chunk of a long stream passes through `Splice.data_received` only.

    e3 CRLF data: {"id":"c1",…,"delta":{"content":" Hello"},"finish_reason":null}]} LF LF CRLF
    └size─┘ └───────────────── prefix ───────────────┘└text┘└────────── suffix ──────────────┘
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from functools import lru_cache
from typing import Final, Protocol

from svc.dialects.fastpath.chunk_template import ChunkTemplate, is_plain_json_text
from svc.dialects.token_estimate import ASCII_CHARS_PER_TOKEN
from svc.gateway.net.read_mode import MAX_DIRECT_READ_BYTES
from svc.gateway.net.socket_writer import SocketWriter
from svc.wire.http_chunk import CHUNK_SIZE_LINES

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

    def chunk_writer(self) -> SocketWriter | None:
        """Return the writer for framed HTTP/1.1 chunks that bypass `write`, or None if the response has none."""
        return None


class SpliceSource(Protocol):
    """The connection to the provider."""

    def handle_data(self, data: bytes, start: int, /) -> None:
        """Parse `data` from offset `start`: the splice has not forwarded these bytes."""

    def on_large_read(self) -> None:
        """Handle a read of more than MAX_DIRECT_READ_BYTES."""

    def eof_received(self) -> None: ...

    def pause_writing(self) -> None: ...

    def resume_writing(self) -> None: ...

    def connection_lost(self, exc: Exception | None, /) -> None: ...


class Splice:
    """Forwards the chunks of one stream that match a template. All other bytes go to `SpliceSource.handle_data`.

    It has the methods of asyncio.Protocol, and replaces the connection as the transport's protocol for small reads.
    """

    __slots__ = (
        "_prefix",
        "_source",
        "_suffix",
        "_template",
        "_writer",
        "forwarded_tokens",
        "has_forwarded",
        "is_enabled",
    )

    _source: SpliceSource

    def __init__(self, writer: SocketWriter) -> None:
        self._writer = writer
        """Writes after a disconnect are dropped silently. The client's connection detects the disconnect itself."""
        self._template: ChunkTemplate | None = None
        self._prefix = self._suffix = b""
        self.forwarded_tokens = 0
        """Estimated tokens of the forwarded text."""
        self.has_forwarded = False
        """Whether a chunk was forwarded since the attempt last reset this to False."""
        self.is_enabled = False
        """Whether the next read may be forwarded. The provider's connection sets and resets it."""

    def enable(self, source: SpliceSource) -> None:
        """Forward the next reads of `source`, until `is_enabled` is False."""
        self._source = source
        self.is_enabled = True

    def set_template(self, template: ChunkTemplate) -> None:
        """Forward only chunks that match `template`. Its `is_plain` must be True."""
        if self._template is not template:
            self._template = template
            self._prefix, self._suffix = template.prefix, _chunk_ending(template.suffix)

    def forward(self, data: bytes) -> int:
        """Send the matching chunks at the start of `data`. Return how many bytes were sent."""
        size = len(data)
        if size >= len(FRAMED_CHUNK_SIZE_LINES):
            return self._forward_many(data)
        size_line = FRAMED_CHUNK_SIZE_LINES[size]
        prefix_start = len(size_line)
        text_start, text_end = prefix_start + len(self._prefix), size - len(self._suffix)
        # The common case: the read is exactly one chunk.
        if (
            prefix_start > 0
            and data.startswith(size_line)
            and data[prefix_start:text_start] == self._prefix
            and data.endswith(self._suffix)
            and is_plain_json_text(data, text_start, text_end)
        ):
            self._send(data, _TOKENS_BY_TEXT_BYTES[text_end - text_start])
            return size
        return self._forward_many(data)

    def _forward_many(self, data: bytes) -> int:
        """Forward a read of several chunks, which occurs when the loop is late. Parsing them would delay it further."""
        offset = tokens = 0
        while (size := _framed_bytes_at(data, offset)) > 0:
            chunk_start, chunk_end = offset + len(FRAMED_CHUNK_SIZE_LINES[size]), offset + size
            text_start, text_end = chunk_start + len(self._prefix), chunk_end - len(self._suffix)
            if (
                data[chunk_start:text_start] != self._prefix
                or data[text_end:chunk_end] != self._suffix
                or not is_plain_json_text(data, text_start, text_end)
            ):
                break
            tokens += _TOKENS_BY_TEXT_BYTES[text_end - text_start]
            offset = chunk_end
        if offset:
            self._send(data[:offset], tokens)
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

    def eof_received(self) -> None:
        self._source.eof_received()

    def pause_writing(self) -> None:
        self._source.pause_writing()

    def resume_writing(self) -> None:
        self._source.resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        self._source.connection_lost(exc)


@lru_cache(maxsize=64)
def _shared_ending(suffix: bytes) -> bytes:
    """Return one object for all streams with the same suffix, so that it stays in the CPU's cache."""
    return suffix + _CRLF


def _chunk_ending(suffix: bytes) -> bytes:
    return _shared_ending(suffix) if len(suffix) < len(FRAMED_CHUNK_SIZE_LINES) else suffix + _CRLF


def _framed_bytes_at(data: bytes, offset: int) -> int:
    """Return the framed size of the chunk at `offset`, or 0 if it is incomplete or its size line is not canonical."""
    line_end = data.find(_LINE_FEED, offset, offset + _MAX_SIZE_LINE_BYTES)
    size = _FRAMED_BYTES_BY_SIZE_LINE.get(data[offset : line_end + 1], 0) if line_end > offset else 0
    return size if offset + size <= len(data) else 0
