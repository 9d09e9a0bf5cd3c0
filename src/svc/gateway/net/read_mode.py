"""Switches a connection between buffered, direct and polled reads. No HTTP.

buffered ── a small read ──> direct ── a large read, or the client reads slowly ──> buffered
                             └── polled, for the chunks of a stream ──┘

Buffered reads (asyncio.BufferedProtocol) have a limited size, and can go straight into the buffer of a long body.
Direct reads (asyncio.Protocol) need fewer calls per chunk, but have no limit of their own. Polled reads bypass the
loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final, Protocol

from svc.gateway.net.io_batch import IoBatch
from svc.gateway.net.read_scheduler import LIMITED_READ_BYTES, MIN_LARGE_READ_BYTES, ReadScheduler

MAX_DIRECT_READ_BYTES: Final = 8 * 1024
"""A direct read of more bytes from a provider returns the connection to buffered reads."""
MAX_DIRECT_REQUEST_BYTES: Final = 64 * 1024
"""The same for a client's connection, which reads most requests at once. The loop reads up to 256 KB at once."""


class ConnectionEvents(Protocol):
    """The methods of asyncio.Protocol for events other than received data."""

    def eof_received(self) -> None: ...

    def pause_writing(self) -> None: ...

    def resume_writing(self) -> None: ...

    def connection_lost(self, exc: Exception | None, /) -> None: ...


class EventForwarder:
    """The base of protocols that read for a connection in its place. It gets all other events."""

    __slots__ = ("_events",)

    _events: ConnectionEvents

    def eof_received(self) -> None:
        self._events.eof_received()

    def pause_writing(self) -> None:
        self._events.pause_writing()

    def resume_writing(self) -> None:
        self._events.resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        self._events.connection_lost(exc)


class SwitchableProtocol(ConnectionEvents, Protocol):
    """A client connection, as DirectRead calls it. It has the methods of asyncio.BufferedProtocol as well."""

    def receive(self, data: bytes, /) -> None:
        """Handle received data."""

    def wait_turn(self) -> None:
        """Pause reading until a later turn of the loop, after a large read."""


class DirectRead(EventForwarder):
    """Reads for a client connection while its requests are small. It has the methods of asyncio.Protocol."""

    __slots__ = ("_batch", "_is_direct", "_protocol", "_transport")

    def __init__(self, protocol: SwitchableProtocol, transport: asyncio.Transport, batch: IoBatch) -> None:
        self._events = self._protocol = protocol
        self._transport = transport
        self._batch = batch
        self._is_direct = False

    def use_direct(self, size: int) -> None:
        """Switch to direct reads, unless the last read of `size` bytes was large."""
        if size <= MAX_DIRECT_REQUEST_BYTES and not self._is_direct:
            self._is_direct = True
            self._transport.set_protocol(self)  # type: ignore[arg-type]

    def use_buffered(self) -> None:
        """Switch to buffered reads."""
        if self._is_direct:
            self._is_direct = False
            self._transport.set_protocol(self._protocol)  # type: ignore[arg-type]

    # the methods of asyncio.Protocol

    def data_received(self, data: bytes) -> None:
        if len(data) <= MAX_DIRECT_REQUEST_BYTES:
            self._batch.add(self, data, is_request=True)
            return
        self._batch.handle()  # a small read of this connection may wait
        self.use_buffered()
        self._protocol.wait_turn()
        self._protocol.receive(data)

    def eof_received(self) -> None:
        self._batch.handle()
        self._protocol.eof_received()

    # BatchedReader

    def handle_read(self, data: bytes) -> None:
        if not self._transport.is_closing():
            self._protocol.receive(data)

    def abort(self) -> None:
        self._transport.abort()


class DirectProtocol(ConnectionEvents, Protocol):
    """The methods of asyncio.Protocol. An implementation must not have `get_buffer`: uvloop would call it."""

    def data_received(self, data: bytes, /) -> None: ...


class PolledRead(Protocol):
    """Reads from a socket in place of its transport, which pauses reading."""

    def stop(self) -> None:
        """Stop reading. Call this before the socket is closed."""


class PollableProtocol(DirectProtocol, Protocol):
    """A protocol of direct reads that can read without the loop."""

    def start_polling(self, fd: int, on_hangup: Callable[[], None], /) -> PolledRead | None:
        """Read from a socket, until `PolledRead.stop`. Return None if this is not possible.

        Call `on_hangup` when the peer has closed the connection. It stops the read, and the transport reads the rest.
        """


class BufferedReadProtocol(DirectProtocol, Protocol):
    """The upstream connection that a BufferedRead serves."""

    buffered_read: BufferedRead | None

    def connection_made(self, transport: asyncio.Transport, /) -> None: ...


class BufferedRead(EventForwarder):
    """Reads for an upstream connection, with a limit per read. It has the methods of asyncio.BufferedProtocol.

    During direct reads, the connection or its splice replaces it as the transport's protocol.
    """

    __slots__ = (
        "_awaits_turn",
        "_buffer",
        "_direct_protocol",
        "_is_paused",
        "_polled_read",
        "_protocol",
        "_scheduler",
        "_transport",
        "_view",
    )

    _transport: asyncio.Transport

    def __init__(
        self, protocol: BufferedReadProtocol, buffer: bytearray, scheduler: ReadScheduler | None = None
    ) -> None:
        """Connections may share `buffer`: each read is copied out of it at once."""
        self._events = self._protocol = protocol
        self._buffer = buffer
        self._view = memoryview(buffer)
        self._scheduler = scheduler
        self._is_paused = False
        """Whether the connection has called `pause_reading`."""
        self._awaits_turn = False
        """Whether reading is paused until `on_turn`."""
        self._direct_protocol: DirectProtocol | None = None
        """The protocol of direct reads. None during buffered reads."""
        self._polled_read: PolledRead | None = None
        """The polled reads, during which the transport's are paused."""

    def use_direct(self, size: int, protocol: DirectProtocol | None = None) -> None:
        """Switch to direct reads by `protocol` (default: the connection), unless the last read of `size` was large."""
        protocol = protocol or self._protocol
        if size <= MAX_DIRECT_READ_BYTES and self._direct_protocol is not protocol and self._transport.is_reading():
            self._direct_protocol = protocol
            self._transport.set_protocol(protocol)  # type: ignore[arg-type]

    def use_polled(self, size: int, protocol: PollableProtocol) -> None:
        """Switch to polled reads by `protocol` if it can, else to direct reads, as `use_direct` does."""
        self.use_direct(size, protocol)
        if self._direct_protocol is protocol and self._transport.is_reading():
            transport_socket = self._transport.get_extra_info("socket")
            if transport_socket is not None:
                self._polled_read = protocol.start_polling(transport_socket.fileno(), self.stop_polling)
                if self._polled_read is not None:
                    self._transport.pause_reading()

    def stop_polling(self) -> None:
        """Let the transport read again after polled reads, unless it is closing."""
        polled_read, self._polled_read = self._polled_read, None
        if polled_read is not None:
            polled_read.stop()
            self._resume_if_allowed()

    def use_buffered(self) -> None:
        """Switch to buffered reads."""
        self.stop_polling()
        if self._direct_protocol is not None:
            self._direct_protocol = None
            self._transport.set_protocol(self)  # type: ignore[arg-type]

    def on_large_read(self) -> None:
        """Switch to buffered reads after a large direct read, and read on in a later turn of the loop."""
        if self._direct_protocol is not None:
            self.use_buffered()
            self._wait_turn()

    # The transport's reading is paused by the connection, by the end of a turn, by polled reads, or by several of them.

    def pause_reading(self) -> None:
        """Stop reading until `resume_reading`."""
        self._is_paused = True
        if not (self._awaits_turn or self._transport.is_closing()):
            self._transport.pause_reading()

    def resume_reading(self) -> None:
        """Continue reading, in the connection's next turn if it waits for one."""
        self._is_paused = False
        self._resume_if_allowed()

    def on_turn(self) -> None:
        """Continue reading, unless the connection has paused it."""
        self._awaits_turn = False
        self._resume_if_allowed()

    def return_to_transport(self) -> bool:
        """Stop polling and waiting for a turn, because the response is complete. Return whether the transport reads."""
        self.stop_polling()
        if self._awaits_turn and not (self._is_paused or self._transport.is_closing()):
            self._awaits_turn = False
            self._transport.resume_reading()
        return self._transport.is_reading()

    def _wait_turn(self) -> None:
        if self._scheduler is None or self._polled_read is not None:  # a poller limits its reads itself
            return
        if not (self._awaits_turn or self._transport.is_closing()):
            self._awaits_turn = True
            self._transport.pause_reading()
            self._scheduler.schedule(self)

    def _resume_if_allowed(self) -> None:
        is_held = self._is_paused or self._awaits_turn or self._polled_read is not None
        if not (is_held or self._transport.is_closing()):
            self._transport.resume_reading()

    def detach(self) -> None:
        """Report the connection as lost after its connection attempt was cancelled.

        Hazard: uvloop may then neither call `connection_lost` nor release its references to the protocol's methods.
        """
        for idle_protocol in (asyncio.BufferedProtocol(), asyncio.Protocol()):  # uvloop keeps references for each type
            self._transport.set_protocol(idle_protocol)
        self._protocol.connection_lost(None)

    # the methods of asyncio.BufferedProtocol

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
        """Handle received data as asyncio.Protocol does.

        Event loops that require a subclass of asyncio.BufferedProtocol call it. uvloop needs it as well: without it,
        uvloop would keep calling the method of the previous protocol.
        """
        self._protocol.data_received(data)
