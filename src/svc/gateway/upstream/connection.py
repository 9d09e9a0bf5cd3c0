"""One HTTP/1.1 connection to a provider, and the calls that use it one after the other. llhttp (httptools) parses.

idle ── start ──> waiting ── head ──> reading ── end ──> idle (in the pool) or closed
                     └── lost, or not HTTP ──> closed
"""

from __future__ import annotations

import logging
from typing import Final, Protocol

import httptools

from svc.gateway.net.head_cache import ResponseHeadCache
from svc.gateway.net.read_mode import MAX_DIRECT_READ_BYTES, BufferedRead
from svc.gateway.net.socket_writer import SocketWriter
from svc.gateway.net.tls import ConnectionTransport
from svc.gateway.routing.providers import UpstreamOrigin
from svc.gateway.upstream.call import CallConnection, ResponseReceiver, UpstreamCall
from svc.gateway.upstream.splice import Splice

log = logging.getLogger("svc.gateway")

LF_BYTE: Final = 10
MAX_RESPONSE_HEAD_BYTES: Final = 64 * 1024
"""Bytes of a response head, and of consecutive input outside the body: interim responses, extensions, trailers."""
HEADER_OVERHEAD_BYTES: Final = 64
"""Bytes that a header counts beside its own, so that there are at most some thousand."""


class ConnectionPool(Protocol):
    """Where connections come from and go back to."""

    fast_paths: bool
    """Whether its connections may skip the parsing of heads that they know."""
    body_parts: list[bytes]
    """Where every connection's parser lays the body's parts of one read: used up before the next read."""

    def connect(self, origin: UpstreamOrigin, call: UpstreamCall) -> None: ...

    def add(self, connection: UpstreamConnection) -> None: ...

    def release(self, connection: UpstreamConnection) -> None: ...

    def remove(self, connection: UpstreamConnection) -> None: ...


class UpstreamConnection(CallConnection):
    """One connection to an origin: a Protocol of asyncio's, by its methods; over TLS those of an `Upper`.

    llhttp calls the `on_…` ones.
    """

    __deletable__ = ("_feed", "_parser")
    __slots__ = (
        "_awaiting_response",
        "_between_chunks",
        "_body_parts",
        "_call",
        "_ends_with_close",
        "_feed",
        "_head_cache",
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
        "on_body",
        "origin",
        "splice",
        "transport",
    )

    transport: ConnectionTransport

    def __init__(self, pool: ConnectionPool, origin: UpstreamOrigin) -> None:
        self._pool = pool
        self.origin = origin
        self.idle_since = 0.0
        self._body_parts = pool.body_parts
        self.on_body = pool.body_parts.append
        """For llhttp: no Python is run for a chunk but what handles it."""
        self._call: UpstreamCall | None = None
        self._receiver: ResponseReceiver | None = None
        """The call's: one step less for each piece."""
        self._headers: dict[bytes, bytes] = {}
        self._head_size = 0
        self._non_body_bytes = 0
        """Bytes since the last ones of a body."""
        self.splice: Splice | None = None
        """Carries the next read, if it can; forgotten wherever the parser is not between two chunks."""
        self._between_chunks = False
        self._awaiting_response = False
        """Whether no byte of the current response has been received."""
        self._head_cache = ResponseHeadCache(is_enabled=pool.fast_paths)
        self._message_complete = False
        self._is_reusable = False
        self._ends_with_close = False
        self._last_read_bytes = 0
        """Bytes of the last read that was not carried."""
        self.buffered_read: BufferedRead | None = None
        """What reads for this; None over TLS."""
        self._socket_writer: SocketWriter | None = None
        """None over TLS, which has its own."""
        self._may_resend = False
        """Used before, and silent since the present request: if it closes now, that is old age and no failure."""

    @property
    def is_usable(self) -> bool:
        """It is open, and nothing has come since it was parked, which the next answer would seem to begin with."""
        return self.transport.is_reading()

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
        self._awaiting_response = True
        writer = self._socket_writer or self.transport
        if len(call.request_parts) == 1:
            writer.write(call.request_parts[0])
        else:
            writer.writelines(call.request_parts)

    def enable_splice(self, splice: Splice) -> None:
        """It carries the next reads, if it can; the first of them comes from here, and if that is small, it reads."""
        self.splice = splice
        splice.enable(self)

    def _disable_splice(self) -> None:
        """What comes next is not for the relay."""
        if self.splice is not None:
            self.splice.is_enabled = False
            self.splice = None

    def close(self) -> None:
        """Close the connection at once, without sending buffered data."""
        self._release()
        self.transport.abort()

    def _release(self) -> UpstreamCall | None:
        call, self._call = self._call, None
        self._receiver = None
        self._disable_splice()
        if call is not None:
            call.connection = None
        return call

    # asyncio

    def connection_made(self, transport: ConnectionTransport) -> None:
        self.transport = transport
        if self.buffered_read is not None:
            self._socket_writer = SocketWriter(transport)  # type: ignore[arg-type]
        self._parser = httptools.HttpResponseParser(self)
        self._feed = self._parser.feed_data
        self._pool.add(self)

    def data_received(self, data: bytes) -> None:
        """Of what is no stream yet, of TLS, and while it is bounded; else see `Relay.data_received`."""
        if len(data) > MAX_DIRECT_READ_BYTES:
            self.on_large_read()
        splice = self.splice
        begin = splice.forward(data) if splice is not None else 0
        if begin < len(data):
            self.handle_data(data, begin)
        if splice is not None and splice.is_enabled and self.buffered_read is not None:
            self.buffered_read.use_direct(len(data), splice)

    def on_large_read(self) -> None:
        """A large one has come."""
        if self.buffered_read is not None:
            self.buffered_read.on_large_read()

    def pause_reading(self) -> None:
        """Nothing more is wanted, until `resume_reading`."""
        if self.buffered_read is None:
            self.transport.pause_reading()
            return
        self.buffered_read.pause_reading()
        self.buffered_read.use_buffered()  # what comes meanwhile will be there at once

    def resume_reading(self) -> None:
        if self.buffered_read is None:
            self.transport.resume_reading()
        else:
            self.buffered_read.resume_reading()

    def handle_data(self, data: bytes, start: int) -> None:
        """What was not carried: all from `begin` on."""
        self._disable_splice()
        self._last_read_bytes = len(data)
        if self._call is None:  # nobody asked: the connection's state cannot be known any more
            self.transport.abort()
            return
        self._may_resend = False
        is_first_read, self._awaiting_response, receiver = self._awaiting_response, False, self._receiver
        try:
            if (is_first_read and self._try_cached_head(data)) or self._parse(data, start, is_first_read):
                self._deliver_body(data[-1])
        except Exception:  # the edge: a fault of ours is not the provider's
            log.exception("fault while an answer was handled")
            self.close()
            if receiver is not None:
                receiver.on_internal_error()

    def _parse(self, data: bytes, begin: int, is_first_read: bool) -> bool:
        """False for what is not HTTP: it has failed. `fresh`: it is the beginning of an answer."""
        try:
            self._feed(data[begin:] if begin else data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            parsed_body, receiver = b"".join(self._body_parts), self._receiver
            self._body_parts.clear()
            if (
                parsed_body and receiver is not None and receiver.sink is not None
            ):  # before a stream begins: the next target
                receiver.on_body(parsed_body)
            self._fail(f"sent what is not HTTP: {error.__context__ or error}")
            return False
        if self._body_parts or self._message_complete:
            self._non_body_bytes = 0
        else:
            self._non_body_bytes += len(data) - begin
            if self._non_body_bytes > MAX_RESPONSE_HEAD_BYTES:
                self._fail(f"sent more than {MAX_RESPONSE_HEAD_BYTES // 1024} KiB in a row that are no body")
                return False
        if is_first_read and self._message_complete:
            status = self._parser.get_status_code() if self._is_reusable else 0
            self._head_cache.learn(data, sum(map(len, self._body_parts)), status, self._headers)
        return True

    def _deliver_body(self, last_byte: int) -> None:
        """What one read has brought of the body, and its end. `last`: the byte that it ended with."""
        receiver, body = self._receiver, self._body_parts
        if body:
            data = body[0] if len(body) == 1 else b"".join(body)
            body.clear()
            if receiver is not None:
                receiver.on_body(data)  # one piece for each read, however many chunks it came in
        if self._message_complete:
            self._finish()
        elif not self._between_chunks or last_byte != LF_BYTE:
            self._disable_splice()

    def _try_cached_head(self, data: bytes) -> bool:
        """Take the whole response without the parser, if it has the head of the last one."""
        head_cache, receiver = self._head_cache, self._receiver
        body = head_cache.match_body(data) if head_cache.status and receiver is not None else b""
        if not body or receiver is None:
            return False
        self._message_complete = self._is_reusable = True
        receiver.on_head(head_cache.status, head_cache.headers)
        self._body_parts.append(body)
        return True

    def eof_received(self) -> None:
        """Closes; `connection_lost` follows."""

    def pause_writing(self) -> None:
        """Do nothing: a request is in memory anyway while the provider does not read it."""

    def resume_writing(self) -> None:
        """See above."""

    def connection_lost(self, exc: Exception | None) -> None:
        self._pool.remove(self)
        self.buffered_read = None
        if self._socket_writer is not None:
            self._socket_writer.close()
        del self._parser, self._feed  # which, like it, hold this: no garbage collector is needed
        if self._call is None:
            return
        if self._may_resend:
            call = self._release()
            if call is not None and call.receiver is not None:
                call.receiver.on_resend()
                self._pool.connect(self.origin, call)
        elif self._ends_with_close and exc is None:  # no length and no chunks: the close ends the body
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
            raise ValueError("more than one answer")
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
        self._is_reusable = self._parser.should_keep_alive()  # llhttp knows it only in this callback

    def _finish(self) -> None:
        call = self._release()  # None if its last piece made it let go
        if self._is_reusable and self._is_idle():  # whether it is still open is looked at when it is used
            if self.buffered_read is not None:
                self.buffered_read.use_direct(self._last_read_bytes)
            self._pool.release(self)
        else:
            self.transport.abort()
        if call is not None and call.receiver is not None:
            call.receiver.on_end()

    def _is_idle(self) -> bool:
        """All is sent, and it reads: it may have been paused for a client by the very piece that was the last.

        Over TLS, nothing has come beyond the answer either, which the next request's answer would begin with.
        """
        is_reading = self.transport.is_reading() or (self.buffered_read is not None and self.buffered_read.end_turn())
        return is_reading and not self.transport.get_write_buffer_size()
