"""Writes to a connection's socket directly, or through its transport while the transport has buffered data.

`write_later` waits for the end of the current batch of reads (`io_batch`), so that writes follow one another.

A direct send (`direct_send`) costs less than uvloop's `write`.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
from collections.abc import Callable, Iterable
from typing import Final, Protocol

from svc.gateway.net.borrowed_socket import borrow_socket
from svc.gateway.net.direct_send import create_send
from svc.gateway.net.io_batch import IoBatch

_RESET_AT_CLOSE: Final = struct.pack("ii", 1, 0)
"""The value of SO_LINGER with which `close` sends a reset."""


class SocketUser(Protocol):
    """Sends on a writer's socket, while the writer has nothing to send."""

    def disable_forwarding(self) -> None:
        """Send no more."""


class SocketWriter:
    """Writes to one transport, from `connection_made` to `connection_lost`.

    Code that writes to the transport itself has to call `mark_dirty`, and code that closes it `flush`. The writer does
    not check whether the transport is closing: the caller does.
    """

    __slots__ = ("_batch", "_borrowed_socket", "_is_drained", "_send", "_transport", "_user", "_waiting")

    def __init__(self, transport: asyncio.Transport, batch: IoBatch | None = None) -> None:
        self._transport: asyncio.Transport | None = transport
        self._batch = batch
        self._waiting = b""
        """Data that is sent at the end of the batch."""
        self._borrowed_socket = borrow_socket(transport)
        self._send: Callable[[bytes], int] | None = (
            create_send(self._borrowed_socket) if self._borrowed_socket is not None else None
        )
        self._is_drained = False
        """Whether the transport's write buffer is known to be empty."""
        self._user: SocketUser | None = None
        """Sends on the socket as well."""

    def write(self, data: bytes) -> None:
        """Send data. The transport buffers the part that the socket does not accept now."""
        if self._waiting:
            data, self._waiting = self._waiting + data, b""
        if not self._is_drained or self._send is None:
            self._write_through_loop(data)
            return
        sent = self._send(data)
        if sent < len(data):  # the transport finds out whether the connection is lost
            self._write_through_loop(memoryview(data)[sent:] if sent else data)

    def write_later(self, data: bytes) -> None:
        """Send data at the end of the current batch, or now if there is none. Later writes follow it."""
        batch = self._batch
        if batch is None or not batch.is_handling:
            self.write(data)
        elif self._waiting:
            self._waiting += data
        else:
            self._stop_sharing()
            self._waiting = data
            batch.writers.append(self)

    def flush(self) -> None:
        """Send the data that waits for the end of the batch, unless the transport is closing."""
        waiting, self._waiting = self._waiting, b""
        if waiting and self._transport is not None and not self._transport.is_closing():
            self.write(waiting)

    def writelines(self, parts: Iterable[bytes]) -> None:
        """Send data as `Transport.writelines` does."""
        self.flush()
        self._stop_sharing()
        self._is_drained = False
        if self._transport is not None:
            self._transport.writelines(parts)

    def share_socket(self, user: SocketUser) -> int:
        """Let `user` send as well. Return the descriptor, or -1 if data waits to be sent.

        `user.disable_forwarding` is called before data waits again, and before the descriptor is closed.
        """
        if not self._is_drained or self._waiting or self._send is None or self._borrowed_socket is None:
            return -1
        if self._user is not user:
            self._stop_sharing()
            self._user = user
        return self._borrowed_socket.fileno()

    def _stop_sharing(self) -> None:
        user, self._user = self._user, None
        if user is not None:
            user.disable_forwarding()

    def _write_through_loop(self, data: bytes | memoryview) -> None:
        self._stop_sharing()
        transport = self._transport
        if transport is not None:
            transport.write(data)
            # An aborted transport reports an empty buffer, but must not be bypassed.
            self._is_drained = not (transport.get_write_buffer_size() or transport.is_closing())

    def mark_dirty(self) -> None:
        """Record that other code may write to the transport, so that its buffer may not be empty."""
        self.flush()
        self._stop_sharing()
        self._is_drained = False

    def reset(self) -> None:
        """Close the connection with a TCP reset. Unsent bytes are discarded."""
        if self._borrowed_socket is not None:
            with contextlib.suppress(OSError):
                self._borrowed_socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_AT_CLOSE)
        if self._transport is not None:
            self._transport.abort()

    def close(self) -> None:
        """Detach from the transport, whose connection is lost. Later writes are dropped."""
        self._stop_sharing()
        if self._borrowed_socket is not None:
            self._borrowed_socket.detach()
        self._transport = self._send = None
