"""TLS to a provider: OpenSSL (the standard library's `ssl`) between the loop's transport and a connection. No HTTP.

    transport ── sealed bytes ──> TlsTransport ── plain bytes ──> connection
    transport <── sealed bytes ── TlsTransport <── write ── connection

The loop's own TLS asks OpenSSL once more after everything that it gets, to hear by an exception that there is nothing
more, and keeps a buffer of a quarter of a megabyte for each connection. This looks whether anything is left, and keeps
what one read and one part of a request need.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable
from typing import Any, Final, Protocol

from svc.gateway.net.read_scheduler import ReadScheduler
from svc.gateway.net.socket_writer import SocketWriter

MAX_TLS_RECORD_PLAINTEXT_BYTES: Final = 16 * 1024
"""Plain bytes in one piece of TLS, at most."""
ENCRYPT_PART_BYTES: Final = 64 * 1024
"""Bytes that are sealed at once: OpenSSL keeps the room for them as long as the connection lasts."""
MAX_TLS_CONTROL_BYTES: Final = 64 * 1024
"""Bytes of TLS's own that a provider is answered on one connection: some 2,000 times new keys."""


class ConnectionTransport(Protocol):
    """What a connection needs of what is below it; `asyncio.Transport` has all of it."""

    def write(self, data: bytes, /) -> None: ...

    def writelines(self, parts: tuple[bytes, ...], /) -> None: ...

    def get_write_buffer_size(self) -> int: ...

    def pause_reading(self) -> None: ...

    def resume_reading(self) -> None: ...

    def is_reading(self) -> bool: ...

    def is_closing(self) -> bool: ...

    def abort(self) -> None: ...


class PlaintextProtocol(Protocol):
    """Who speaks through it; told of nothing before the handshake has succeeded."""

    def connection_made(self, transport: ConnectionTransport, /) -> None: ...

    def data_received(self, data: bytes, /) -> None: ...

    def connection_lost(self, exc: Exception | None, /) -> None: ...


class TlsTransport:
    """The client's side of one TLS connection: a BufferedProtocol of asyncio's below, a transport above, by methods.

    `secured` has a result once the handshake has succeeded, and an OSError if it failed. Whoever waits for it aborts
    when it takes too long. The provider's end of data without TLS's own end is an error: something may be missing.
    """

    __deletable__ = ("_protocol",)
    __slots__ = (
        "_awaits_turn",
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
    ) -> None:
        """The provider's certificate must be for `name`. `buffer` has room for LONGEST or more; it is used within calls
        only, so many may share it.
        """
        self._loop = asyncio.get_running_loop()
        self._protocol = protocol
        self._buffer = buffer
        self._view = memoryview(buffer)
        self._incoming = ssl.MemoryBIO()
        self._outgoing = ssl.MemoryBIO()
        self._ssl_object = context.wrap_bio(self._incoming, self._outgoing, server_hostname=server_name)
        ssl_functions: Any = getattr(
            self._ssl_object, "_sslobj", self._ssl_object
        )  # it passes on to this, through the interpreter
        self._encrypt: Callable[[bytes | memoryview], int] = ssl_functions.write
        self._decrypt: Callable[[int, bytearray | memoryview], int] = ssl_functions.read
        self._write_incoming: Callable[[bytes | memoryview], int] = self._incoming.write
        self._read_outgoing: Callable[[], bytes] = self._outgoing.read
        self._is_handshake_done = False
        self._is_paused = False
        self._scheduler = scheduler
        self._awaits_turn = False
        """For its turn to read."""
        self._has_pending_data = False
        """OpenSSL has something that it was not asked for yet."""
        self._has_partial_record = False
        """OpenSSL has the beginning of something, whose rest has not come."""
        self._control_bytes = 0
        """Bytes of TLS's own that have been answered since the handshake."""
        self._error: Exception | None = None
        self.handshake_done: asyncio.Future[None] = self._loop.create_future()

    # asyncio's protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport  # type: ignore[assignment]
        self._writer = SocketWriter(self._transport)
        self._handshake()

    def get_buffer(self, sizehint: int) -> bytearray:
        """The same one: what comes is taken out of it before anything else is laid in."""
        return self._buffer

    def buffer_updated(self, nbytes: int) -> None:
        self.data_received(self._view[:nbytes])
        if nbytes == len(self._buffer) and self._scheduler is not None and not self._transport.is_closing():
            self._awaits_turn = True
            self._transport.pause_reading()
            self._scheduler.schedule(self)

    def on_turn(self) -> None:
        """Its turn has come."""
        self._awaits_turn = False
        if not (self._is_paused or self._transport.is_closing()):
            self._transport.resume_reading()

    def data_received(self, data: bytes | memoryview) -> None:
        """Itself called by loops that take only its children for a BufferedProtocol."""
        self._write_incoming(data)
        self._has_pending_data = True
        if self._is_handshake_done:
            self._deliver_plaintext()
        else:
            self._handshake()

    def eof_received(self) -> None:
        """Closes; `connection_lost` follows."""
        if self._error is None:
            self._error = ConnectionResetError("TLS was cut off")

    def pause_writing(self) -> None:
        """See `Connection.pause_writing`."""

    def resume_writing(self) -> None:
        """See above."""

    def connection_lost(self, exc: Exception | None) -> None:
        self._writer.close()
        protocol = self._protocol
        del self._protocol  # each held the other: no garbage collector is needed
        error = exc or self._error
        if self._is_handshake_done:
            protocol.connection_lost(error)
        elif not self.handshake_done.done():
            handshake_error = (
                error if isinstance(error, OSError) else ConnectionResetError("closed in the TLS handshake")
            )
            self.handshake_done.set_exception(handshake_error)
            self.handshake_done.exception()  # whoever waited may have been cancelled: no complaint that nobody looked

    # within

    def _handshake(self) -> None:
        try:
            self._ssl_object.do_handshake()
        except ssl.SSLWantReadError:
            self._flush_outgoing()
        except ssl.SSLError as error:
            self._flush_outgoing()  # the alert
            self._error = error.with_traceback(None)  # whose frames hold this
            self._transport.close()
        else:
            self._flush_outgoing()
            if self.handshake_done.done():  # nobody waits any more
                self._transport.abort()
                return
            self._is_handshake_done = True
            self.handshake_done.set_result(None)
            self._protocol.connection_made(self)
            self._has_pending_data = self._incoming.pending > 0
            self._deliver_plaintext()

    def _deliver_plaintext(self) -> None:
        """What has come, as much at once as the buffer takes, as long as it is wanted."""
        while self._has_pending_data and not self._is_paused and not self._transport.is_closing():
            count = self._decrypt_into_buffer()
            if self._outgoing.pending:
                self._send_control_data()
            if count:
                self._protocol.data_received(self._view[:count].tobytes())

    def _decrypt_into_buffer(self) -> int:
        """Plain bytes that are in the buffer now; 0 when there are none yet, or no more."""
        filled = 0
        free_space = len(self._buffer)
        self._has_pending_data = self._has_partial_record = False
        try:
            while (
                free_space >= MAX_TLS_RECORD_PLAINTEXT_BYTES
            ):  # into less a part could go, whose rest nobody would see
                count = self._decrypt(free_space, self._view[filled:] if filled else self._buffer)
                if not count:  # the end, said in TLS
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
        """To something of TLS's own. Who asks without end, and reads no answer, would fill our memory."""
        self._control_bytes += self._outgoing.pending
        if self._control_bytes <= MAX_TLS_CONTROL_BYTES:
            self._flush_outgoing()
        else:
            self._error = self._error or ConnectionAbortedError("TLS asks for new keys without end")
            self._transport.abort()

    def _flush_outgoing(self) -> None:
        if self._outgoing.pending:
            self._writer.write(self._read_outgoing())

    # a transport

    def write(self, data: bytes) -> None:
        """Seals and sends. What OpenSSL refuses ends the connection."""
        if len(data) > ENCRYPT_PART_BYTES:
            self.writelines((data,))
            return
        try:
            self._encrypt(data)  # all of it: memory is never full
        except ssl.SSLError as error:
            self._error = error.with_traceback(None)
            self._transport.abort()
        else:
            self._writer.write(self._read_outgoing())

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
        """Never hands on anything from within this call."""
        if self._is_paused:
            self._is_paused = False
            self._loop.call_soon(self._continue_reading)

    def _continue_reading(self) -> None:
        self._deliver_plaintext()
        if not (self._is_paused or self._awaits_turn or self._transport.is_closing()):
            self._transport.resume_reading()

    def is_reading(self) -> bool:
        """False, too, while something has come that was not handed on: a new request's answer it cannot be."""
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
