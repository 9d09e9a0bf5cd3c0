"""Forwards text chunks from the provider's connection to the client's connection without parsing them.

This is the hottest path. Nearly every chunk of a long stream passes through here, or through a `StreamPoller` only.

    provider ── read ──> ChunkConverter ── chunks that match a template ──> client
                               └── the rest ──> the provider's connection, which parses it

Without TLS, a `StreamPoller` forwards reads that match as a whole. The splice handles the others.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Protocol

from svc.dialects.fastpath.chunk_template import ChunkTemplate
from svc.gateway.net.read_mode import MAX_DIRECT_READ_BYTES, ConnectionEvents, EventForwarder
from svc.gateway.net.socket_writer import SocketWriter
from svc.gateway.upstream.chunk_converter import create_converter
from svc.gateway.upstream.stream_poller import PolledStream, StreamPoller


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

    @property
    def stream_poller(self) -> StreamPoller:
        """The poller of the event loop."""

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
        "_has_forwarded",
        "_polled_stream",
        "_source",
        "_template",
        "_writer",
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
        self._has_forwarded = False
        """Whether `forward` has sent a chunk since the last `take_activity`."""
        self.is_enabled = False
        """Whether the next read may be forwarded."""
        self._polled_stream: PolledStream | None = None
        """The stream of the poller, which may have been stopped."""

    @property
    def forwarded_tokens(self) -> int:
        """Estimated tokens of the forwarded text."""
        return self._earlier_tokens + self._converter.tokens

    def take_activity(self) -> bool:
        """Return whether chunks were forwarded since the last call."""
        has_forwarded, self._has_forwarded = self._has_forwarded, False
        if self._polled_stream is not None and self._polled_stream.take_activity():
            return True
        return has_forwarded

    def enable(self, source: SpliceSource) -> None:
        """Forward the next reads of `source`, until `disable`."""
        self._events = self._source = source
        self.is_enabled = True

    def disable(self) -> None:
        """Pass the next reads to the provider's connection."""
        self.is_enabled = False
        if self._polled_stream is not None:
            self._polled_stream.disable_forwarding()

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
            self._has_forwarded = True
            self._writer.write(converted)
        return size

    # PollableProtocol

    def start_polling(self, fd: int, on_hangup: Callable[[], None]) -> PolledStream | None:
        """Let the poller read from the provider's socket. Return None if there is none."""
        poller = self._source.stream_poller
        self._has_forwarded = self.take_activity()
        self._polled_stream = poller.start(
            fd, on_data=self.data_received, on_unsent=self._writer.write, on_hangup=on_hangup
        )
        self._enable_polled_forwarding()
        return self._polled_stream

    def _enable_polled_forwarding(self) -> None:
        """Let the poller forward the next reads, unless the client has unsent data."""
        if self._polled_stream is not None and self.is_enabled:
            client_fd = self._writer.share_socket(self._polled_stream)
            if client_fd >= 0:
                self._polled_stream.enable_forwarding(self._converter, client_fd)

    # the methods of asyncio.Protocol

    def data_received(self, data: bytes) -> None:
        """Forward the chunks that match the template. The provider's connection handles the rest."""
        size = len(data)
        if size > MAX_DIRECT_READ_BYTES:
            self._source.on_large_read()
        start = self.forward(data) if self.is_enabled else 0
        if start < size:
            self._source.handle_data(data, start)
        elif self._polled_stream is not None:
            self._enable_polled_forwarding()
