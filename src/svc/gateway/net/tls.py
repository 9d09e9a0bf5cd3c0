"""TLS between the event loop's transport and a connection to a provider, with OpenSSL (`ssl`). No HTTP.

    transport ── ciphertext ──> TlsTransport ── plaintext ──> connection
    transport <── ciphertext ── TlsTransport <── write ────── connection

The loop's own TLS costs one exception per read, and a buffer of 256 KiB per connection. This needs neither.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable
from typing import Any, Final, Protocol

from svc.gateway.net.io_batch import IoBatch
from svc.gateway.net.read_mode import MAX_DIRECT_READ_BYTES
from svc.gateway.net.read_scheduler import ReadScheduler
from svc.gateway.net.socket_writer import SocketWriter

MAX_TLS_RECORD_PLAINTEXT_BYTES: Final = 16 * 1024
"""Maximum plaintext bytes of one record (RFC 8446, section 5.1)."""
ENCRYPT_PART_BYTES: Final = 64 * 1024
"""Bytes that are encrypted at once. OpenSSL keeps a buffer of this size until the connection closes."""
MAX_TLS_CONTROL_BYTES: Final = 64 * 1024
"""Maximum bytes of handshake messages sent after the handshake. They suffice for about 2,000 key updates."""


class ConnectionTransport(Protocol):
    """The methods of a transport that a connection uses. `asyncio.Transport` has all of them."""

    def write(self, data: bytes, /) -> None: ...

    def writelines(self, parts: tuple[bytes, ...], /) -> None: ...

    def get_write_buffer_size(self) -> int: ...

    def pause_reading(self) -> None: ...

    def resume_reading(self) -> None: ...

    def is_reading(self) -> bool: ...

    def is_closing(self) -> bool: ...

    def abort(self) -> None: ...


class PlaintextProtocol(Protocol):
    """The connection above TlsTransport. No method is called before the handshake has succeeded."""

    def connection_made(self, transport: ConnectionTransport, /) -> None: ...

    def data_received(self, data: bytes, /) -> None: ...

    def connection_lost(self, exc: Exception | None, /) -> None: ...


class TlsTransport:
    """The client side of one TLS connection.

    It has the methods of asyncio.BufferedProtocol for the loop, and those of a transport for the connection.
    `handshake_done` gets a result after the handshake, or an OSError. The caller aborts a handshake that takes too
    long. The end of the TCP stream without `close_notify` is an error (RFC 8446, section 6.1): data may be missing.
    """

    __deletable__ = ("_protocol",)
    __slots__ = (
        "_awaits_turn",
        "_batch",
        "_buffer",
        "_control_bytes",
        "_decrypt",
        "_encrypt",
        "_error",
        "_has_partial_record",
        "_has_pending_data",
        "_incoming",
        "_is_handshake_done",
        "_is_paused",
        "_loop",
        "_outgoing",
        "_protocol",
        "_read_outgoing",
        "_scheduler",
        "_ssl_object",
        "_transport",
        "_view",
        "_write_incoming",
        "_writer",
        "handshake_done",
    )

    _transport: asyncio.Transport

    def __init__(
        self,
        context: ssl.SSLContext,
        server_name: str,
        protocol: PlaintextProtocol,
        buffer: bytearray,
        scheduler: ReadScheduler | None = None,
        batch: IoBatch | None = None,
    ) -> None:
        """Create the transport for a server whose certificate must match `server_name`.

        `buffer` must hold at least MAX_TLS_RECORD_PLAINTEXT_BYTES. Transports may share it: no data stays in it
        between calls.
        """
        self._loop = asyncio.get_running_loop()
        self._protocol = protocol
        self._buffer = buffer
        self._view = memoryview(buffer)
        self._incoming = ssl.MemoryBIO()
        self._outgoing = ssl.MemoryBIO()
        self._ssl_object = context.wrap_bio(self._incoming, self._outgoing, server_hostname=server_name)
        # The C object saves one Python call per read and write.
        ssl_functions: Any = getattr(self._ssl_object, "_sslobj", self._ssl_object)
        self._encrypt: Callable[[bytes | memoryview], int] = ssl_functions.write
        self._decrypt: Callable[[int, bytearray | memoryview], int] = ssl_functions.read
        self._write_incoming: Callable[[bytes | memoryview], int] = self._incoming.write
        self._read_outgoing: Callable[[], bytes] = self._outgoing.read
        self._is_handshake_done = False
        self._is_paused = False
        self._scheduler = scheduler
        self._batch = batch
        self._awaits_turn = False
        """Whether reading is paused until `on_turn`."""
        self._has_pending_data = False
        """Whether OpenSSL may hold data that has not been decrypted."""
        self._has_partial_record = False
        """Whether OpenSSL holds an incomplete record."""
        self._control_bytes = 0
        """Bytes of handshake messages sent after the handshake."""
        self._error: Exception | None = None
        self.handshake_done: asyncio.Future[None] = self._loop.create_future()

    # the methods of asyncio.BufferedProtocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport  # type: ignore[assignment]
        self._writer = SocketWriter(self._transport, self._batch)
        self._handshake()

    def get_buffer(self, sizehint: int) -> bytearray:
        """Return the shared buffer. `buffer_updated` copies the data out of it before the next read."""
        return self._buffer

    def buffer_updated(self, nbytes: int) -> None:
        self.data_received(self._view[:nbytes])
        if nbytes == len(self._buffer) and self._scheduler is not None and not self._transport.is_closing():
            self._awaits_turn = True
            self._transport.pause_reading()
            self._scheduler.schedule(self)

    def on_turn(self) -> None:
        """Continue reading, unless the connection has paused it."""
        self._awaits_turn = False
        if not (self._is_paused or self._transport.is_closing()):
            self._transport.resume_reading()

    def data_received(self, data: bytes | memoryview) -> None:
        """Decrypt received data. Loops that require a subclass of asyncio.BufferedProtocol call it directly."""
        self._write_incoming(data)
        self._has_pending_data = True
        if not self._is_handshake_done:
            self._handshake()
        elif self._batch is not None and len(data) <= MAX_DIRECT_READ_BYTES:
            self._batch.add(self, b"", is_request=False)
        else:
            self._deliver_plaintext()

    def handle_read(self, data: bytes) -> None:
        """Deliver what OpenSSL has. `data` is empty: `data_received` has passed it to OpenSSL."""
        self._deliver_plaintext()

    def eof_received(self) -> None:
        """Record the missing `close_notify`. The transport closes, and `connection_lost` follows."""
        if self._batch is not None:
            self._batch.handle()
        if self._error is None:
            self._error = ConnectionResetError("the TLS stream was truncated")

    def pause_writing(self) -> None:
        """Do nothing: the whole request is in memory until the provider reads it."""

    def resume_writing(self) -> None:
        """Do nothing, as in `pause_writing`."""

    def connection_lost(self, exc: Exception | None) -> None:
        self._writer.close()
        protocol = self._protocol
        del self._protocol  # breaks a reference cycle: the connection holds this transport
        error = exc or self._error
        if self._is_handshake_done:
            protocol.connection_lost(error)
        elif not self.handshake_done.done():
            handshake_error = (
                error if isinstance(error, OSError) else ConnectionResetError("closed during the TLS handshake")
            )
            self.handshake_done.set_exception(handshake_error)
            self.handshake_done.exception()  # avoids asyncio's warning if the waiting task was cancelled

    def _handshake(self) -> None:
        try:
            self._ssl_object.do_handshake()
        except ssl.SSLWantReadError:
            self._flush_outgoing()
        except ssl.SSLError as error:
            self._flush_outgoing()  # sends the alert
            self._error = error.with_traceback(None)  # breaks a reference cycle: the frames hold this transport
            self._transport.close()
        else:
            self._flush_outgoing()
            if self.handshake_done.done():  # the waiting task was cancelled
                self._transport.abort()
                return
            self._is_handshake_done = True
            self.handshake_done.set_result(None)
            self._protocol.connection_made(self)
            self._has_pending_data = self._incoming.pending > 0
            self._deliver_plaintext()

    def _deliver_plaintext(self) -> None:
        """Deliver the pending data, at most one buffer per call, until the connection pauses reading."""
        while self._has_pending_data and not self._is_paused and not self._transport.is_closing():
            count = self._decrypt_into_buffer()
            if self._outgoing.pending:
                self._send_control_data()
            if count:
                self._protocol.data_received(self._view[:count].tobytes())

    def _decrypt_into_buffer(self) -> int:
        """Decrypt into the buffer, and return the number of bytes. 0 means no whole record, the end, or an error."""
        filled = 0
        free_space = len(self._buffer)
        self._has_pending_data = self._has_partial_record = False
        try:
            # With less space, OpenSSL could keep a part of a record, which `_incoming.pending` does not show.
            while free_space >= MAX_TLS_RECORD_PLAINTEXT_BYTES:
                count = self._decrypt(free_space, self._view[filled:] if filled else self._buffer)
                if not count:  # the provider has sent `close_notify`
                    self._transport.abort()
                    return filled
                filled += count
                free_space -= count
                if not self._incoming.pending:
                    return filled
            self._has_pending_data = True
        except ssl.SSLWantReadError:
            self._has_partial_record = True
        except ssl.SSLError as error:
            self._error = error.with_traceback(None)
            self._transport.abort()
        return filled

    def _send_control_data(self) -> None:
        """Send OpenSSL's handshake messages, up to a limit.

        A provider that requests key updates without reading the responses would fill the memory.
        """
        self._control_bytes += self._outgoing.pending
        if self._control_bytes <= MAX_TLS_CONTROL_BYTES:
            self._flush_outgoing()
        else:
            self._error = self._error or ConnectionAbortedError("too many TLS key updates")
            self._transport.abort()

    def _flush_outgoing(self) -> None:
        if self._outgoing.pending:
            self._writer.write(self._read_outgoing())

    # the methods of a transport

    def write(self, data: bytes) -> None:
        """Encrypt and send. An error of OpenSSL ends the connection."""
        if len(data) > ENCRYPT_PART_BYTES:
            self.writelines((data,))
            return
        try:
            self._encrypt(data)  # never a part of it: a memory BIO is never full
        except ssl.SSLError as error:
            self._error = error.with_traceback(None)
            self._transport.abort()
        else:
            self._writer.write_later(self._read_outgoing())

    def writelines(self, parts: tuple[bytes, ...]) -> None:
        ciphertext: list[bytes] = []
        try:
            for part in parts:
                view = memoryview(part)
                for start in range(0, len(part), ENCRYPT_PART_BYTES):
                    self._encrypt(view[start : start + ENCRYPT_PART_BYTES])
                    ciphertext.append(self._read_outgoing())
        except ssl.SSLError as error:
            self._error = error.with_traceback(None)
            self._transport.abort()
        else:
            self._writer.writelines(ciphertext)

    def get_write_buffer_size(self) -> int:
        return self._transport.get_write_buffer_size()

    def pause_reading(self) -> None:
        if not self._is_paused:
            self._is_paused = True
            self._transport.pause_reading()

    def resume_reading(self) -> None:
        """Continue reading. The connection's `data_received` is never called before this returns."""
        if self._is_paused:
            self._is_paused = False
            self._loop.call_soon(self._continue_reading)

    def _continue_reading(self) -> None:
        self._deliver_plaintext()
        if not (self._is_paused or self._awaits_turn or self._transport.is_closing()):
            self._transport.resume_reading()

    def is_reading(self) -> bool:
        """Return whether the connection reads and no received data is undelivered.

        Undelivered data on an idle connection is not part of the next response, so the connection must not be reused.
        """
        return not (
            self._is_paused
            or self._awaits_turn
            or self._has_partial_record
            or self._has_pending_data
            or self._transport.is_closing()
        )

    def is_closing(self) -> bool:
        return self._transport.is_closing()

    def abort(self) -> None:
        self._transport.abort()
