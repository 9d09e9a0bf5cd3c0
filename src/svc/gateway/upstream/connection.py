"""One HTTP/1.1 connection to a provider, which calls use one after the other. llhttp (httptools) parses responses.

idle ── start ──> waiting ── head ──> reading ── end ──> idle (in the pool) or closed
                     └── connection lost or invalid HTTP ──> closed
"""

from __future__ import annotations

import logging
from typing import Final, Protocol

import httptools

from svc.gateway.net.io_batch import IoBatch
from svc.gateway.net.read_mode import MAX_DIRECT_READ_BYTES, BufferedRead
from svc.gateway.net.socket_writer import SocketWriter
from svc.gateway.net.tls import ConnectionTransport
from svc.gateway.routing.providers import UpstreamOrigin
from svc.gateway.upstream.call import CallConnection, ResponseReceiver, UpstreamCall
from svc.gateway.upstream.splice import Splice
from svc.gateway.upstream.stream_poller import StreamPoller

log = logging.getLogger("svc.gateway")

LF_BYTE: Final = 10
MAX_RESPONSE_HEAD_BYTES: Final = 64 * 1024
"""Maximum bytes of a response head, and of consecutive input outside the body.

Such input is an interim response, a chunk extension or a trailer.
"""
HEADER_OVERHEAD_BYTES: Final = 64
"""Bytes added to the size of each header, which limits the number of headers to about 1,000."""


class ConnectionPool(Protocol):
    """The pool that opens connections and keeps idle ones."""

    fast_paths: bool
    """Whether connections may reuse the cached parse of a response head."""
    body_parts: list[bytes]
    """The body parts of one read. All connections share the list: each read empties it."""
    io_batch: IoBatch
    """Handles small reads of several connections together."""
    stream_poller: StreamPoller
    """Forwards the chunks of streams without TLS."""

    def connect(self, origin: UpstreamOrigin, call: UpstreamCall) -> None:
        """Send a call's request on a new connection."""

    def add(self, connection: UpstreamConnection) -> None:
        """Register an open connection."""

    def release(self, connection: UpstreamConnection) -> None:
        """Keep a connection for the next request."""

    def remove(self, connection: UpstreamConnection) -> None:
        """Unregister a closed connection."""


class UpstreamConnection(CallConnection):
    """One connection to an origin. It has the methods of asyncio.Protocol, or of PlaintextProtocol over TLS.

    llhttp calls the `on_…` methods, except `on_large_read`.
    """

    __deletable__ = ("_feed", "_parser")
    __slots__ = (
        "_between_chunks",
        "_body_parts",
        "_call",
        "_ends_with_close",
        "_feed",
        "_has_unhandled_read",
        "_head_size",
        "_headers",
        "_is_reusable",
        "_last_read_bytes",
        "_may_resend",
        "_message_complete",
        "_non_body_bytes",
        "_parser",
        "_pool",
        "_receiver",
        "_socket_writer",
        "buffered_read",
        "idle_since",
        "io_batch",
        "on_body",
        "origin",
        "splice",
        "stream_poller",
        "transport",
    )

    transport: ConnectionTransport

    def __init__(self, pool: ConnectionPool, origin: UpstreamOrigin) -> None:
        self._pool = pool
        self.origin = origin
        self.idle_since = 0.0
        self.io_batch = pool.io_batch
        self.stream_poller = pool.stream_poller
        self._has_unhandled_read = False
        """Whether `io_batch` has a read of this connection."""
        self._body_parts = pool.body_parts
        self.on_body = pool.body_parts.append
        """The callback of llhttp for body data. It is a method of the list, so that no Python frame runs per chunk."""
        self._call: UpstreamCall | None = None
        self._receiver: ResponseReceiver | None = None
        """The receiver of `_call`. A copy saves one attribute access per chunk."""
        self._headers: dict[bytes, bytes] = {}
        self._head_size = 0
        self._non_body_bytes = 0
        """Consecutive bytes outside the body. Body data resets it."""
        self.splice: Splice | None = None
        """Forwards the next read if it can. None whenever the parser is not between two chunks."""
        self._between_chunks = False
        self._message_complete = False
        self._is_reusable = False
        self._ends_with_close = False
        self._last_read_bytes = 0
        """Bytes of the last read that the splice did not forward completely."""
        self.buffered_read: BufferedRead | None = None
        """The protocol that reads from the transport. None over TLS."""
        self._socket_writer: SocketWriter | None = None
        """None over TLS, where TlsTransport has its own."""
        self._may_resend = False
        """Whether a close is an idle timeout of the provider, and not a failure.

        True while a reused connection has received nothing since the current request.
        """

    @property
    def is_usable(self) -> bool:
        """Whether the connection is open and has no unread data, which would corrupt the next response."""
        return not self._has_unhandled_read and self.transport.is_reading()

    def start(self, call: UpstreamCall, *, reused: bool) -> None:
        """Send a call's request on this connection, which must be idle."""
        if call.receiver is None:  # cancelled while connecting
            self.close()
            return
        self._call = call
        self._receiver = call.receiver
        call.connection = self
        self._ends_with_close = False
        self._message_complete = False
        self._head_size = self._non_body_bytes = 0
        self._may_resend = reused
        writer = self._socket_writer or self.transport
        if len(call.request_parts) > 1:
            writer.writelines(call.request_parts)
        elif self._socket_writer is not None:
            self._socket_writer.write_later(call.request_parts[0])
        else:
            self.transport.write(call.request_parts[0])

    def enable_splice(self, splice: Splice) -> None:
        """Let the splice forward the next reads. After a small read it replaces this object as the protocol."""
        self.splice = splice
        splice.enable(self)

    def _disable_splice(self) -> None:
        if self.splice is not None:
            self.splice.disable()
            self.splice = None

    def close(self) -> None:
        """Close the connection at once, without sending buffered data."""
        self._release()
        self.transport.abort()

    def abort(self) -> None:
        """Close the connection after an internal error. `connection_lost` reports it to the receiver."""
        self.transport.abort()

    def _release(self) -> UpstreamCall | None:
        call, self._call = self._call, None
        self._receiver = None
        self._disable_splice()
        if call is not None:
            call.connection = None
        return call

    # the methods of asyncio.Protocol

    def connection_made(self, transport: ConnectionTransport) -> None:
        self.transport = transport
        if self.buffered_read is not None:
            self._socket_writer = SocketWriter(transport, self.io_batch)  # type: ignore[arg-type]
        self._parser = httptools.HttpResponseParser(self)
        self._feed = self._parser.feed_data
        self._pool.add(self)

    def data_received(self, data: bytes) -> None:
        """Handle a read. `Splice.data_received` replaces this method for small reads of a stream without TLS."""
        splice = self.splice
        is_large = len(data) > MAX_DIRECT_READ_BYTES
        if is_large:
            self.on_large_read()
        if splice is None and self.buffered_read is not None and (not is_large or self._has_unhandled_read):
            self._has_unhandled_read = True  # over TLS, TlsTransport has added the read
            self.io_batch.add(self, data, is_request=False)
            return
        start = splice.forward(data) if splice is not None else 0
        if start < len(data):
            self.handle_data(data, start)
        if splice is not None and splice.is_enabled and self.buffered_read is not None:
            self.buffered_read.use_polled(len(data), splice)

    def handle_read(self, data: bytes) -> None:
        """Parse a read of the batch."""
        self._has_unhandled_read = False
        self.handle_data(data, 0)

    def on_large_read(self) -> None:
        """Return to buffered reads after a read of more than MAX_DIRECT_READ_BYTES."""
        if self.buffered_read is not None:
            self.buffered_read.on_large_read()

    def pause_reading(self) -> None:
        """Stop reading until `resume_reading`."""
        if self.buffered_read is None:
            self.transport.pause_reading()
            return
        self.buffered_read.use_buffered()  # the next read may be large: data accumulates during the pause
        self.buffered_read.pause_reading()

    def resume_reading(self) -> None:
        """Continue reading."""
        if self.buffered_read is None:
            self.transport.resume_reading()
        else:
            self.buffered_read.resume_reading()

    def handle_data(self, data: bytes, start: int) -> None:
        """Parse `data` from offset `start`: the splice has not forwarded these bytes."""
        self._disable_splice()
        self._last_read_bytes = len(data)
        if self._call is None:  # data without a request would be parsed as the start of the next response
            self.transport.abort()
            return
        self._may_resend = False
        receiver = self._receiver
        try:
            if self._parse(data, start):
                self._deliver_body(data[-1])
        except Exception:  # an internal error must not count as a failure of the provider
            log.exception("error while handling a response")
            self.close()
            if receiver is not None:
                receiver.on_internal_error()

    def _parse(self, data: bytes, start: int) -> bool:
        """Feed `data` from offset `start` to llhttp. Return False if the call has failed, because of invalid HTTP."""
        try:
            self._feed(data[start:] if start else data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            parsed_body, receiver = b"".join(self._body_parts), self._receiver
            self._body_parts.clear()
            # The client gets the data before the error. Without a sink, another backend is tried.
            if parsed_body and receiver is not None and receiver.sink is not None:
                receiver.on_body(parsed_body)
            self._fail(f"sent invalid HTTP: {error.__context__ or error}")
            return False
        if self._body_parts or self._message_complete:
            self._non_body_bytes = 0
        else:
            self._non_body_bytes += len(data) - start
            if self._non_body_bytes > MAX_RESPONSE_HEAD_BYTES:
                self._fail(f"sent more than {MAX_RESPONSE_HEAD_BYTES // 1024} KiB of consecutive data outside the body")
                return False
        return True

    def _deliver_body(self, last_byte: int) -> None:
        """Deliver the body data of one read, and the end of the response. `last_byte` is the last byte of the read."""
        receiver, body = self._receiver, self._body_parts
        if body:
            data = body[0] if len(body) == 1 else b"".join(body)
            body.clear()
            if receiver is not None:
                receiver.on_body(data)  # one call for all chunks of a read
        if self._message_complete:
            self._finish()
        elif not self._between_chunks or last_byte != LF_BYTE:
            self._disable_splice()

    def eof_received(self) -> None:
        """Handle the last data, and let the transport close the connection. `connection_lost` follows."""
        self.io_batch.handle()

    def pause_writing(self) -> None:
        """Do nothing: the whole request is in memory until the provider reads it."""

    def resume_writing(self) -> None:
        """Do nothing, as in `pause_writing`."""

    def connection_lost(self, exc: Exception | None) -> None:
        self._pool.remove(self)
        if self.buffered_read is not None:
            self.buffered_read.stop_polling()
            self.buffered_read = None
        if self._socket_writer is not None:
            self._socket_writer.close()
        del self._parser, self._feed  # breaks a reference cycle: both hold this connection
        if self._call is None:
            return
        if self._may_resend:
            call = self._release()
            if call is not None and call.receiver is not None:
                call.receiver.on_resend()
                self._pool.connect(self.origin, call)
        elif self._ends_with_close and exc is None:  # the close ends the body (RFC 9112, section 6.3)
            receiver = self._call.receiver
            self._release()
            if receiver is not None:
                receiver.on_end()
        else:
            self._fail(f"connection closed: {exc}" if exc else "connection closed")

    def _fail(self, reason: str) -> None:
        call = self._release()
        self.transport.abort()
        if call is not None:
            call.fail(reason, connected=True)

    # llhttp

    def on_message_begin(self) -> None:
        if self._message_complete:
            raise ValueError("more than one response")
        self._headers = {}
        self._between_chunks = False

    def on_header(self, name: bytes, value: bytes) -> None:
        self._head_size += len(name) + len(value) + HEADER_OVERHEAD_BYTES
        if self._head_size > MAX_RESPONSE_HEAD_BYTES:
            raise ValueError("head too large")
        self._headers[name.lower()] = value

    def on_headers_complete(self) -> None:
        status = self._parser.get_status_code()
        if status < 200:  # ignore interim responses (RFC 9110, section 15.2)
            if status < 100:
                raise ValueError(f"status {status}")
            return
        headers = self._headers
        self._ends_with_close = b"content-length" not in headers and b"transfer-encoding" not in headers
        if self._receiver is not None:
            self._receiver.on_head(status, headers)

    def on_chunk_header(self) -> None:
        self._between_chunks = False

    def on_chunk_complete(self) -> None:
        self._between_chunks = True

    def on_message_complete(self) -> None:
        if self._parser.get_status_code() < 200:
            return
        self._message_complete = True
        self._is_reusable = self._parser.should_keep_alive()  # valid only in this callback

    def _finish(self) -> None:
        call = self._release()  # None if the receiver cancelled the call in `on_body`
        if self._is_reusable and self._is_idle():  # the pool checks again before the next use
            if self.buffered_read is not None:
                self.buffered_read.use_direct(self._last_read_bytes)
            self._pool.release(self)
        else:
            self.transport.abort()
        if call is not None:
            self.io_batch.schedule_step(call)

    def _is_idle(self) -> bool:
        """Return whether the request is sent completely and the connection reads.

        The client may have paused it at the last chunk. Over TLS, data after the response also makes this False.
        """
        is_reading = (
            self.transport.is_reading() if self.buffered_read is None else self.buffered_read.return_to_transport()
        )
        return is_reading and not self.transport.get_write_buffer_size()
