"""How much a connection reads at once: what it has room for, or all that has come. No HTTP.

A read that fills the buffer ends the connection's turn (`turns.py`): what else has come is read in a later one.

bounded ── small ones, used up as they come ──> free ── a large one, or a client that does not read ──> bounded

Bounded, a provider that says much costs no more than a part of it, however slowly the client reads, and a client's long
body is read straight into its place. Free, the loop asks nobody for room before it reads: a quarter less for a piece
of a stream. What has come in the meantime for a client that did not read is a large one at once, so it is bounded
before it goes on.
"""

from __future__ import annotations

import asyncio
from typing import Final, Protocol

from svc.gateway.net.read_scheduler import LIMITED_READ_BYTES, MIN_LARGE_READ_BYTES, ReadScheduler

MAX_DIRECT_READ_BYTES: Final = 8 * 1024
"""Bytes that have come at once, at most, as long as it is free: the pieces of a second, when the loop was late."""


class SwitchableProtocol(Protocol):
    """A BufferedProtocol of asyncio's, by its methods, that need not be one while what comes is small."""

    def receive(self, data: bytes, /) -> None: ...

    def wait_turn(self) -> None:
        """Much has come at once: what follows is read in a later turn of the loop."""

    def eof_received(self) -> None: ...

    def pause_writing(self) -> None: ...

    def resume_writing(self) -> None: ...

    def connection_lost(self, exc: Exception | None, /) -> None: ...


class DirectRead:
    """Reads for a client's connection while its requests are small: a Protocol of asyncio's, by its methods."""

    __slots__ = ("_is_direct", "_protocol", "_transport")

    def __init__(self, protocol: SwitchableProtocol, transport: asyncio.Transport) -> None:
        self._protocol = protocol
        self._transport = transport
        self._is_direct = False

    def use_direct(self, size: int) -> None:
        """The last one had `size` bytes."""
        if size <= MAX_DIRECT_READ_BYTES and not self._is_direct:
            self._is_direct = True
            self._transport.set_protocol(self)  # type: ignore[arg-type]

    def use_buffered(self) -> None:
        """A large one has come, or is to come."""
        if self._is_direct:
            self._is_direct = False
            self._transport.set_protocol(self._protocol)  # type: ignore[arg-type]

    # asyncio

    def data_received(self, data: bytes) -> None:
        if len(data) > MAX_DIRECT_READ_BYTES:
            self.use_buffered()
            self._protocol.wait_turn()
        self._protocol.receive(data)

    def eof_received(self) -> None:
        self._protocol.eof_received()

    def pause_writing(self) -> None:
        self._protocol.pause_writing()

    def resume_writing(self) -> None:
        self._protocol.resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        self._protocol.connection_lost(exc)


class DirectProtocol(Protocol):
    """A Protocol of asyncio's, by its methods; it has to be one that the loop does not ask for room."""

    def data_received(self, data: bytes, /) -> None: ...

    def eof_received(self) -> None: ...

    def pause_writing(self) -> None: ...

    def resume_writing(self) -> None: ...

    def connection_lost(self, exc: Exception | None, /) -> None: ...


class BufferedReadProtocol(DirectProtocol, Protocol):
    """That a connection is made for."""

    buffered_read: BufferedRead | None

    def connection_made(self, transport: asyncio.Transport, /) -> None: ...


class BufferedRead:
    """A BufferedProtocol of asyncio's, by its methods, for an `Upper`, which or whose relay can read in its place."""

    __slots__ = (
        "_awaits_turn",
        "_buffer",
        "_direct_protocol",
        "_is_paused",
        "_protocol",
        "_scheduler",
        "_transport",
        "_view",
    )

    _transport: asyncio.Transport

    def __init__(
        self, protocol: BufferedReadProtocol, buffer: bytearray, scheduler: ReadScheduler | None = None
    ) -> None:
        """`buffer` may be shared: what is read is used up before the next read."""
        self._protocol = protocol
        self._buffer = buffer
        self._view = memoryview(buffer)
        self._scheduler = scheduler
        self._is_paused = False
        """The upper one does not want to read."""
        self._awaits_turn = False
        """For its turn."""
        self._direct_protocol: DirectProtocol | None = None
        """Who reads in its place."""

    def use_direct(self, size: int, protocol: DirectProtocol | None = None) -> None:
        """`reads`, or else the upper one, hands small pieces on, as they come; the last one had `size` bytes."""
        protocol = protocol or self._protocol
        if size <= MAX_DIRECT_READ_BYTES and self._direct_protocol is not protocol and self._transport.is_reading():
            self._direct_protocol = protocol
            self._transport.set_protocol(protocol)  # type: ignore[arg-type]

    def use_buffered(self) -> None:
        """Nothing is read for a while, and the next one may be large."""
        if self._direct_protocol is not None:
            self._direct_protocol = None
            self._transport.set_protocol(self)  # type: ignore[arg-type]

    def on_large_read(self) -> None:
        """A large one has come."""
        if self._direct_protocol is not None:
            self.use_buffered()
            self._wait_turn()

    # reading, which the upper one may stop, and the end of a turn

    def pause_reading(self) -> None:
        self._is_paused = True
        if not (self._awaits_turn or self._transport.is_closing()):
            self._transport.pause_reading()

    def resume_reading(self) -> None:
        self._is_paused = False
        self._resume_if_allowed()

    def on_turn(self) -> None:
        """Its turn has come."""
        self._awaits_turn = False
        self._resume_if_allowed()

    def end_turn(self) -> bool:
        """Return whether it reads. One that waits for its turn alone reads on now: the upper one has all it wanted."""
        if self._awaits_turn and not (self._is_paused or self._transport.is_closing()):
            self._awaits_turn = False
            self._transport.resume_reading()
        return self._transport.is_reading()

    def _wait_turn(self) -> None:
        if self._scheduler is not None and not (self._awaits_turn or self._transport.is_closing()):
            self._awaits_turn = True
            self._transport.pause_reading()
            self._scheduler.schedule(self)

    def _resume_if_allowed(self) -> None:
        if not (self._is_paused or self._awaits_turn or self._transport.is_closing()):
            self._transport.resume_reading()

    def detach(self) -> None:
        """Nobody waits for it any more, and the loop may neither say that it is closed nor let go of who reads it."""
        for idle_protocol in (asyncio.BufferedProtocol(), asyncio.Protocol()):  # uvloop keeps the methods of both kinds
            self._transport.set_protocol(idle_protocol)
        self._protocol.connection_lost(None)

    # asyncio

    def connection_made(self, transport: asyncio.Transport) -> None:
        self._transport = transport
        self._protocol.buffered_read = self
        self._protocol.connection_made(transport)

    def get_buffer(self, sizehint: int) -> bytearray | memoryview:
        return (
            self._view[:LIMITED_READ_BYTES]
            if self._scheduler is not None and self._scheduler.is_budget_spent
            else self._buffer
        )

    def buffer_updated(self, nbytes: int) -> None:
        if nbytes >= MIN_LARGE_READ_BYTES and self._scheduler is not None:
            self._scheduler.record_large_read(nbytes)
        self._protocol.data_received(self._view[:nbytes].tobytes())
        if nbytes in (LIMITED_READ_BYTES, len(self._buffer)):
            self._wait_turn()

    def data_received(self, data: bytes) -> None:
        """For loops that take only its children for a BufferedProtocol. It has to be there in uvloop, too, which keeps
        this method of whoever has read before as long as there is no other.
        """
        self._protocol.data_received(data)

    def eof_received(self) -> None:
        self._protocol.eof_received()

    def pause_writing(self) -> None:
        self._protocol.pause_writing()

    def resume_writing(self) -> None:
        self._protocol.resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        self._protocol.connection_lost(exc)
