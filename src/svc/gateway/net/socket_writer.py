"""Writes to a connection: straight to its socket, or through the loop while something waits there.

The loop's transport would send at once, too, but takes more steps, and its `write` costs the kernel more than a `send`.
The price: `send` lets other threads have the interpreter, which uvloop's `write` does not. None here keeps it for long.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable

from svc.gateway.net.borrowed_socket import borrow_socket


class SocketWriter:
    """Of one transport, from `connection_made` to `connection_lost`. Whoever writes past it, says so by `doubt`.

    It does not know that the transport is closing: who may write then, asks the transport first.
    """

    __slots__ = ("_borrowed_socket", "_is_drained", "_send", "_transport")

    def __init__(self, transport: asyncio.Transport) -> None:
        self._transport: asyncio.Transport | None = transport
        self._borrowed_socket = borrow_socket(transport)
        self._send: Callable[[bytes], int] | None = (
            self._borrowed_socket.send if self._borrowed_socket is not None else None
        )
        self._is_drained = False
        """Nothing waits in the loop; False if that is not known."""

    def write(self, data: bytes) -> None:
        """As the transport's `write`: what the socket does not take now waits in the loop."""
        if not self._is_drained or self._send is None:
            self._write_through_loop(data)
            return
        try:
            sent = self._send(data)
        except OSError:  # it is full, or broken: the loop will find that out, if by a broken pipe in place of a reset
            sent = 0
        if sent < len(data):
            self._write_through_loop(memoryview(data)[sent:] if sent else data)

    def writelines(self, parts: Iterable[bytes]) -> None:
        """As the transport's."""
        self._is_drained = False
        if self._transport is not None:
            self._transport.writelines(parts)

    def _write_through_loop(self, data: bytes | memoryview) -> None:
        transport = self._transport
        if transport is not None:
            transport.write(data)
            self._is_drained = not (
                transport.get_write_buffer_size() or transport.is_closing()
            )  # an aborted one forgets what waits

    def mark_dirty(self) -> None:
        """Somebody else has written, or may: that may wait in the loop."""
        self._is_drained = False

    def close(self) -> None:
        """The connection is lost: what is written from now on goes nowhere."""
        if self._borrowed_socket is not None:
            self._borrowed_socket.detach()
        self._transport = self._send = None
