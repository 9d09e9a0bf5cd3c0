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

from svc.gateway.turns import Turns
from svc.gateway.writer import Writer

LONGEST: Final = 16 * 1024
"""Plain bytes in one piece of TLS, at most."""
PART: Final = 64 * 1024
"""Bytes that are sealed at once: OpenSSL keeps the room for them as long as the connection lasts."""
MOST_OWN: Final = 64 * 1024
"""Bytes of TLS's own that a provider is answered on one connection: some 2,000 times new keys."""


class Transport(Protocol):
    """What a connection needs of what is below it; `asyncio.Transport` has all of it."""

    def write(self, data: bytes, /) -> None: ...

    def writelines(self, parts: tuple[bytes, ...], /) -> None: ...

    def get_write_buffer_size(self) -> int: ...

    def pause_reading(self) -> None: ...

    def resume_reading(self) -> None: ...

    def is_reading(self) -> bool: ...

    def is_closing(self) -> bool: ...

    def abort(self) -> None: ...


class Upper(Protocol):
    """Who speaks through it; told of nothing before the handshake has succeeded."""

    def connection_made(self, transport: Transport, /) -> None: ...

    def data_received(self, data: bytes, /) -> None: ...

    def connection_lost(self, exc: Exception | None, /) -> None: ...


class TlsTransport:
    """The client's side of one TLS connection: a BufferedProtocol of asyncio's below, a transport above, by methods.

    `secured` has a result once the handshake has succeeded, and an OSError if it failed. Whoever waits for it aborts
    when it takes too long. The provider's end of data without TLS's own end is an error: something may be missing.
    """

    __deletable__ = ("_upper",)
    __slots__ = (
        "_broken",
        "_buffer",
        "_cut",
        "_feed",
        "_incoming",
        "_left",
        "_loop",
        "_object",
        "_outgoing",
        "_own",
        "_paused",
        "_ready",
        "_seal",
        "_sealed",
        "_transport",
        "_turns",
        "_unseal",
        "_upper",
        "_view",
        "_waits",
        "_writer",
        "secured",
    )

    _transport: asyncio.Transport

    def __init__(
        self, context: ssl.SSLContext, name: str, upper: Upper, buffer: bytearray, turns: Turns | None = None
    ) -> None:
        """The provider's certificate must be for `name`. `buffer` has room for LONGEST or more; it is used within calls
        only, so many may share it.
        """
        self._loop = asyncio.get_running_loop()
        self._upper = upper
        self._buffer = buffer
        self._view = memoryview(buffer)
        self._incoming = ssl.MemoryBIO()
        self._outgoing = ssl.MemoryBIO()
        self._object = context.wrap_bio(self._incoming, self._outgoing, server_hostname=name)
        inner: Any = getattr(self._object, "_sslobj", self._object)  # it passes on to this, through the interpreter
        self._seal: Callable[[bytes | memoryview], int] = inner.write
        self._unseal: Callable[[int, bytearray | memoryview], int] = inner.read
        self._feed: Callable[[bytes | memoryview], int] = self._incoming.write
        self._sealed: Callable[[], bytes] = self._outgoing.read
        self._ready = False
        self._paused = False
        self._turns = turns
        self._waits = False
        """For its turn to read."""
        self._left = False
        """OpenSSL has something that it was not asked for yet."""
        self._cut = False
        """OpenSSL has the beginning of something, whose rest has not come."""
        self._own = 0
        """Bytes of TLS's own that have been answered since the handshake."""
        self._broken: Exception | None = None
        self.secured: asyncio.Future[None] = self._loop.create_future()

    # asyncio's protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport  # type: ignore[assignment]
        self._writer = Writer(self._transport)
        self._handshake()

    def get_buffer(self, sizehint: int) -> bytearray:
        """The same one: what comes is taken out of it before anything else is laid in."""
        return self._buffer

    def buffer_updated(self, nbytes: int) -> None:
        self.data_received(self._view[:nbytes])
        if nbytes == len(self._buffer) and self._turns is not None and not self._transport.is_closing():
            self._waits = True
            self._transport.pause_reading()
            self._turns.wait(self)

    def read_on(self) -> None:
        """Its turn has come."""
        self._waits = False
        if not (self._paused or self._transport.is_closing()):
            self._transport.resume_reading()

    def data_received(self, data: bytes | memoryview) -> None:
        """Itself called by loops that take only its children for a BufferedProtocol."""
        self._feed(data)
        self._left = True
        if self._ready:
            self._hand_on()
        else:
            self._handshake()

    def eof_received(self) -> None:
        """Closes; `connection_lost` follows."""
        if self._broken is None:
            self._broken = ConnectionResetError("TLS was cut off")

    def pause_writing(self) -> None:
        """See `Connection.pause_writing`."""

    def resume_writing(self) -> None:
        """See above."""

    def connection_lost(self, exc: Exception | None) -> None:
        self._writer.close()
        upper = self._upper
        del self._upper  # each held the other: no garbage collector is needed
        error = exc or self._broken
        if self._ready:
            upper.connection_lost(error)
        elif not self.secured.done():
            failed = error if isinstance(error, OSError) else ConnectionResetError("closed in the TLS handshake")
            self.secured.set_exception(failed)
            self.secured.exception()  # whoever waited may have been cancelled: no complaint that nobody looked

    # within

    def _handshake(self) -> None:
        try:
            self._object.do_handshake()
        except ssl.SSLWantReadError:
            self._send()
        except ssl.SSLError as error:
            self._send()  # the alert
            self._broken = error.with_traceback(None)  # whose frames hold this
            self._transport.close()
        else:
            self._send()
            if self.secured.done():  # nobody waits any more
                self._transport.abort()
                return
            self._ready = True
            self.secured.set_result(None)
            self._upper.connection_made(self)
            self._left = self._incoming.pending > 0
            self._hand_on()

    def _hand_on(self) -> None:
        """What has come, as much at once as the buffer takes, as long as it is wanted."""
        while self._left and not self._paused and not self._transport.is_closing():
            count = self._fill()
            if self._outgoing.pending:
                self._answer()
            if count:
                self._upper.data_received(self._view[:count].tobytes())

    def _fill(self) -> int:
        """Plain bytes that are in the buffer now; 0 when there are none yet, or no more."""
        filled = 0
        room = len(self._buffer)
        self._left = self._cut = False
        try:
            while room >= LONGEST:  # into less a part could go, whose rest nobody would see
                count = self._unseal(room, self._view[filled:] if filled else self._buffer)
                if not count:  # the end, said in TLS
                    self._transport.abort()
                    return filled
                filled += count
                room -= count
                if not self._incoming.pending:
                    return filled
            self._left = True
        except ssl.SSLWantReadError:
            self._cut = True
        except ssl.SSLError as error:
            self._broken = error.with_traceback(None)
            self._transport.abort()
        return filled

    def _answer(self) -> None:
        """To something of TLS's own. Who asks without end, and reads no answer, would fill our memory."""
        self._own += self._outgoing.pending
        if self._own <= MOST_OWN:
            self._send()
        else:
            self._broken = self._broken or ConnectionAbortedError("TLS asks for new keys without end")
            self._transport.abort()

    def _send(self) -> None:
        if self._outgoing.pending:
            self._writer.write(self._sealed())

    # a transport

    def write(self, data: bytes) -> None:
        """Seals and sends. What OpenSSL refuses ends the connection."""
        if len(data) > PART:
            self.writelines((data,))
            return
        try:
            self._seal(data)  # all of it: memory is never full
        except ssl.SSLError as error:
            self._broken = error.with_traceback(None)
            self._transport.abort()
        else:
            self._writer.write(self._sealed())

    def writelines(self, parts: tuple[bytes, ...]) -> None:
        sealed: list[bytes] = []
        try:
            for part in parts:
                view = memoryview(part)
                for start in range(0, len(part), PART):
                    self._seal(view[start : start + PART])
                    sealed.append(self._sealed())
        except ssl.SSLError as error:
            self._broken = error.with_traceback(None)
            self._transport.abort()
        else:
            self._writer.writelines(sealed)

    def get_write_buffer_size(self) -> int:
        return self._transport.get_write_buffer_size()

    def pause_reading(self) -> None:
        if not self._paused:
            self._paused = True
            self._transport.pause_reading()

    def resume_reading(self) -> None:
        """Never hands on anything from within this call."""
        if self._paused:
            self._paused = False
            self._loop.call_soon(self._resume)

    def _resume(self) -> None:
        self._hand_on()
        if not (self._paused or self._waits or self._transport.is_closing()):
            self._transport.resume_reading()

    def is_reading(self) -> bool:
        """False, too, while something has come that was not handed on: a new request's answer it cannot be."""
        return not (self._paused or self._waits or self._cut or self._left or self._transport.is_closing())

    def is_closing(self) -> bool:
        return self._transport.is_closing()

    def abort(self) -> None:
        self._transport.abort()
