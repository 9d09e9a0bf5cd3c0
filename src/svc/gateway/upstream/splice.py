"""Chunks of plain text on their way from a provider's connection to the client's: as they are, framing and all.

On the hottest path: of a long stream, nearly every piece goes through `Relay.data_received` and nothing else.

    e3 CRLF data: {"id":"c1",…,"delta":{"content":" Hello"},"finish_reason":null}]} LF LF CRLF
    └line─┘ └───────────────── prefix ───────────────┘└text┘└────────── suffix ──────────────┘
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
"""The size line of a chunk, by the chunk's size with all its framing; empty where no chunk has that size."""
_FRAMED_BYTES_BY_SIZE_LINE: Final = {line: size for size, line in enumerate(FRAMED_CHUNK_SIZE_LINES) if line}
"""The other way round."""
_MAX_SIZE_LINE_BYTES: Final = max(map(len, _FRAMED_BYTES_BY_SIZE_LINE))
_LINE_FEED: Final = 10
_TOKENS_BY_TEXT_BYTES: Final = tuple(
    max(1, int(length / ASCII_CHARS_PER_TOKEN)) if length else 0 for length in range(len(FRAMED_CHUNK_SIZE_LINES))
)
"""In a text, by its length."""


class StreamSink(ABC):
    """Receives the chunks of a stream."""

    __slots__ = ()

    @abstractmethod
    def write(self, chunk: bytes, is_last: bool) -> None: ...

    def chunk_writer(self) -> SocketWriter | None:
        """Where chunks of HTTP/1.1 may be written instead, from now on; None if they may not."""
        return None


class SpliceSource(Protocol):
    """The connection to the provider."""

    def handle_data(self, data: bytes, start: int, /) -> None:
        """What has come, from `begin` on."""

    def on_large_read(self) -> None:
        """A large one has come."""

    def eof_received(self) -> None: ...

    def pause_writing(self) -> None: ...

    def resume_writing(self) -> None: ...

    def connection_lost(self, exc: Exception | None, /) -> None: ...


class Splice:
    """Of one attempt, whose client takes chunks. What it does not carry goes the long way, and loses nothing.

    It reads for the provider's connection while what comes is small: a Protocol of asyncio's, by its methods.
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
        """Says nothing when the client has just left: that is the door's matter, in the loop's next turn."""
        self._template: ChunkTemplate | None = None
        self._prefix = self._suffix = b""
        self.forwarded_tokens = 0
        """In what it has carried, by the rule of `estimate.completion_tokens`."""
        self.has_forwarded = False
        """It has carried something since this was last set to False."""
        self.is_enabled = False
        """The next chunk may be carried. Its connection says so, and takes it back."""

    def enable(self, source: SpliceSource) -> None:
        """What comes from there may be carried, until `laid` is taken back."""
        self._source = source
        self.is_enabled = True

    def set_template(self, template: ChunkTemplate) -> None:
        """Carries chunks of this frame only, from now on. It has to be `plain`."""
        if self._template is not template:
            self._template = template
            self._prefix, self._suffix = template.prefix, _chunk_ending(template.suffix)

    def forward(self, data: bytes) -> int:
        """Sends the chunks of the frame that `data` begins with; how many bytes these are."""
        size = len(data)
        if size >= len(FRAMED_CHUNK_SIZE_LINES):
            return self._forward_many(data)
        size_line = FRAMED_CHUNK_SIZE_LINES[size]
        text_prefix_start = len(size_line)
        start, stop = text_prefix_start + len(self._prefix), size - len(self._suffix)
        if (
            text_prefix_start > 0
            and data.startswith(size_line)
            and data[text_prefix_start:start] == self._prefix
            and data.endswith(self._suffix)
            and is_plain_json_text(data, start, stop)
        ):  # one chunk, as nearly always
            self._send(data, _TOKENS_BY_TEXT_BYTES[stop - start])
            return size
        return self._forward_many(data)

    def _forward_many(self, data: bytes) -> int:
        """Of a read that was late: the long way would take ten times as long, and make the next one late, too."""
        offset = tokens = 0
        while (size := _framed_bytes_at(data, offset)) > 0:
            start, end = offset + len(FRAMED_CHUNK_SIZE_LINES[size]), offset + size
            text, stop = start + len(self._prefix), end - len(self._suffix)
            if (
                data[start:text] != self._prefix
                or data[stop:end] != self._suffix
                or not is_plain_json_text(data, text, stop)
            ):
                break
            tokens += _TOKENS_BY_TEXT_BYTES[stop - text]
            offset = end
        if offset:
            self._send(data[:offset], tokens)
        return offset

    def _send(self, data: bytes, tokens: int) -> None:
        self.has_forwarded = True
        self.forwarded_tokens += tokens
        self._writer.write(data)

    # asyncio

    def data_received(self, data: bytes) -> None:
        size = len(data)
        if size > MAX_DIRECT_READ_BYTES:
            self._source.on_large_read()
        begin = self.forward(data) if self.is_enabled else 0
        if begin < size:
            self._source.handle_data(data, begin)

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
    """One object for all streams that end their chunks alike: it stays in the CPU's cache."""
    return suffix + _CRLF


def _chunk_ending(suffix: bytes) -> bytes:
    return _shared_ending(suffix) if len(suffix) < len(FRAMED_CHUNK_SIZE_LINES) else suffix + _CRLF


def _framed_bytes_at(data: bytes, offset: int) -> int:
    """Of the chunk that begins there, with its framing; 0 if its size is written in another way, or it is not whole."""
    line_end = data.find(_LINE_FEED, offset, offset + _MAX_SIZE_LINE_BYTES)
    size = _FRAMED_BYTES_BY_SIZE_LINE.get(data[offset : line_end + 1], 0) if line_end > offset else 0
    return size if offset + size <= len(data) else 0
