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

from svc.gateway.turns import LARGE, LITTLE, Turns

SMALL: Final = 8 * 1024
"""Bytes that have come at once, at most, as long as it is free: the pieces of a second, when the loop was late."""


class Reads(Protocol):
    """A BufferedProtocol of asyncio's, by its methods, that need not be one while what comes is small."""

    def read(self, data: bytes, /) -> None: ...

    def wait_turn(self) -> None:
        """Much has come at once: what follows is read in a later turn of the loop."""

    def eof_received(self) -> None: ...

    def pause_writing(self) -> None: ...

    def resume_writing(self) -> None: ...

    def connection_lost(self, exc: Exception | None, /) -> None: ...


class Free:
    """Reads for a client's connection while its requests are small: a Protocol of asyncio's, by its methods."""

    __slots__ = ("_reads", "_transport", "_used")

    def __init__(self, reads: Reads, transport: asyncio.Transport) -> None:
        self._reads = reads
        self._transport = transport
        self._used = False

    def let(self, size: int) -> None:
        """The last one had `size` bytes."""
        if size <= SMALL and not self._used:
            self._used = True
            self._transport.set_protocol(self)  # type: ignore[arg-type]

    def bind(self) -> None:
        """A large one has come, or is to come."""
        if self._used:
            self._used = False
            self._transport.set_protocol(self._reads)  # type: ignore[arg-type]

    # asyncio

    def data_received(self, data: bytes) -> None:
        if len(data) > SMALL:
            self.bind()
            self._reads.wait_turn()
        self._reads.read(data)

    def eof_received(self) -> None:
        self._reads.eof_received()

    def pause_writing(self) -> None:
        self._reads.pause_writing()

    def resume_writing(self) -> None:
        self._reads.resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        self._reads.connection_lost(exc)


class Small(Protocol):
    """A Protocol of asyncio's, by its methods; it has to be one that the loop does not ask for room."""

    def data_received(self, data: bytes, /) -> None: ...

    def eof_received(self) -> None: ...

    def pause_writing(self) -> None: ...

    def resume_writing(self) -> None: ...

    def connection_lost(self, exc: Exception | None, /) -> None: ...


class Upper(Small, Protocol):
    """That a connection is made for."""

    bounded: Bounded | None

    def connection_made(self, transport: asyncio.Transport, /) -> None: ...


class Bounded:
    """A BufferedProtocol of asyncio's, by its methods, for an `Upper`, which or whose relay can read in its place."""

    __slots__ = ("_buffer", "_is_held", "_reads", "_transport", "_turns", "_upper", "_view", "_waits")

    _transport: asyncio.Transport

    def __init__(self, upper: Upper, buffer: bytearray, turns: Turns | None = None) -> None:
        """`buffer` may be shared: what is read is used up before the next read."""
        self._upper = upper
        self._buffer = buffer
        self._view = memoryview(buffer)
        self._turns = turns
        self._is_held = False
        """The upper one does not want to read."""
        self._waits = False
        """For its turn."""
        self._reads: Small | None = None
        """Who reads in its place."""

    def let(self, size: int, reads: Small | None = None) -> None:
        """`reads`, or else the upper one, hands small pieces on, as they come; the last one had `size` bytes."""
        reads = reads or self._upper
        if size <= SMALL and self._reads is not reads and self._transport.is_reading():
            self._reads = reads
            self._transport.set_protocol(reads)  # type: ignore[arg-type]

    def bind(self) -> None:
        """Nothing is read for a while, and the next one may be large."""
        if self._reads is not None:
            self._reads = None
            self._transport.set_protocol(self)  # type: ignore[arg-type]

    def bind_large(self) -> None:
        """A large one has come."""
        if self._reads is not None:
            self.bind()
            self._wait_turn()

    # reading, which the upper one may stop, and the end of a turn

    def pause_reading(self) -> None:
        self._is_held = True
        if not (self._waits or self._transport.is_closing()):
            self._transport.pause_reading()

    def resume_reading(self) -> None:
        self._is_held = False
        self._read_if_wanted()

    def read_on(self) -> None:
        """Its turn has come."""
        self._waits = False
        self._read_if_wanted()

    def end_turn(self) -> bool:
        """Return whether it reads. One that waits for its turn alone reads on now: the upper one has all it wanted."""
        if self._waits and not (self._is_held or self._transport.is_closing()):
            self._waits = False
            self._transport.resume_reading()
        return self._transport.is_reading()

    def _wait_turn(self) -> None:
        if self._turns is not None and not (self._waits or self._transport.is_closing()):
            self._waits = True
            self._transport.pause_reading()
            self._turns.wait(self)

    def _read_if_wanted(self) -> None:
        if not (self._is_held or self._waits or self._transport.is_closing()):
            self._transport.resume_reading()

    def forget(self) -> None:
        """Nobody waits for it any more, and the loop may neither say that it is closed nor let go of who reads it."""
        for nobody in (asyncio.BufferedProtocol(), asyncio.Protocol()):  # uvloop keeps the methods of both kinds
            self._transport.set_protocol(nobody)
        self._upper.connection_lost(None)

    # asyncio

    def connection_made(self, transport: asyncio.Transport) -> None:
        self._transport = transport
        self._upper.bounded = self
        self._upper.connection_made(transport)

    def get_buffer(self, sizehint: int) -> bytearray | memoryview:
        return self._view[:LITTLE] if self._turns is not None and self._turns.is_spent else self._buffer

    def buffer_updated(self, nbytes: int) -> None:
        if nbytes >= LARGE and self._turns is not None:
            self._turns.spend(nbytes)
        self._upper.data_received(self._view[:nbytes].tobytes())
        if nbytes in (LITTLE, len(self._buffer)):
            self._wait_turn()

    def data_received(self, data: bytes) -> None:
        """For loops that take only its children for a BufferedProtocol. It has to be there in uvloop, too, which keeps
        this method of whoever has read before as long as there is no other.
        """
        self._upper.data_received(data)

    def eof_received(self) -> None:
        self._upper.eof_received()

    def pause_writing(self) -> None:
        self._upper.pause_writing()

    def resume_writing(self) -> None:
        self._upper.resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        self._upper.connection_lost(exc)
