"""Forwards text chunks from the provider's connection to the client's connection without parsing them.

This is the hottest path. Nearly every chunk of a long stream passes through `Splice.data_received` only.

    provider ── read ──> ChunkConverter ── chunks that match a template ──> client
                               └── the rest ──> the provider's connection, which parses it
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Protocol

from svc.dialects.fastpath.chunk_template import ChunkTemplate
from svc.gateway.net.read_mode import MAX_DIRECT_READ_BYTES, ConnectionEvents, EventForwarder
from svc.gateway.net.socket_writer import SocketWriter
from svc.gateway.upstream.chunk_converter import create_converter


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
        "_convert",
        "_converter",
        "_earlier_tokens",
        "_source",
        "_template",
        "_writer",
        "has_forwarded",
        "is_enabled",
    )

    _source: SpliceSource

    def __init__(self, writer: SocketWriter, template: ChunkTemplate) -> None:
        self._template = template
        self._converter = create_converter(template)
        self._convert = self._converter.convert
        """The method of `_converter`. A copy saves a lookup per chunk."""
        self._earlier_tokens = 0
        """Tokens that converters of earlier templates have counted."""
        self._writer = writer
        """Writes after a disconnect are dropped silently. The client's connection detects the disconnect itself."""
        self.has_forwarded = False
        """Whether a chunk was forwarded since the attempt last reset this to False."""
        self.is_enabled = False
        """Whether the next read may be forwarded. The provider's connection sets and resets it."""

    @property
    def forwarded_tokens(self) -> int:
        """Estimated tokens of the forwarded text."""
        return self._earlier_tokens + self._converter.tokens

    def enable(self, source: SpliceSource) -> None:
        """Forward the next reads of `source`, until `is_enabled` is False."""
        self._events = self._source = source
        self.is_enabled = True

    def set_template(self, template: ChunkTemplate) -> None:
        """Forward only chunks that match `template`."""
        if template is not self._template:
            self._earlier_tokens += self._converter.tokens
            self._template = template
            self._converter = create_converter(template)
            self._convert = self._converter.convert

    def forward(self, data: bytes) -> int:
        """Send the matching chunks at the start of `data`. Return how many bytes of `data` were sent."""
        converted = self._convert(data)
        size = len(data) if converted is data else self._converter.converted_bytes
        if converted:
            self.has_forwarded = True
            self._writer.write(converted)
        return size

    # the methods of asyncio.Protocol

    def data_received(self, data: bytes) -> None:
        """Forward the chunks that match the template. The provider's connection handles the rest."""
        size = len(data)
        if size > MAX_DIRECT_READ_BYTES:
            self._source.on_large_read()
        start = self.forward(data) if self.is_enabled else 0
        if start < size:
            self._source.handle_data(data, start)
