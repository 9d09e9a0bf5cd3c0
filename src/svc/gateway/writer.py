"""Writes to a connection: straight to its socket, or through the loop while something waits there.

The loop's transport would send at once, too, but takes more steps, and its `write` costs the kernel more than a `send`.
The price: `send` lets other threads have the interpreter, which uvloop's `write` does not. None here keeps it for long.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable

from svc.gateway.borrowed import borrow


class Writer:
    """Of one transport, from `connection_made` to `connection_lost`. Whoever writes past it, says so by `doubt`.

    It does not know that the transport is closing: who may write then, asks the transport first.
    """

    __slots__ = ("_borrowed", "_clear", "_send", "_transport")

    def __init__(self, transport: asyncio.Transport) -> None:
        self._transport: asyncio.Transport | None = transport
        self._borrowed = borrow(transport)
        self._send: Callable[[bytes], int] | None = self._borrowed.send if self._borrowed is not None else None
        self._clear = False
        """Nothing waits in the loop; False if that is not known."""

    def write(self, data: bytes) -> None:
        """As the transport's `write`: what the socket does not take now waits in the loop."""
        if not self._clear or self._send is None:
            self._through_loop(data)
            return
        try:
            sent = self._send(data)
        except OSError:  # it is full, or broken: the loop will find that out, if by a broken pipe in place of a reset
            sent = 0
        if sent < len(data):
            self._through_loop(memoryview(data)[sent:] if sent else data)

    def writelines(self, parts: Iterable[bytes]) -> None:
        """As the transport's."""
        self._clear = False
        if self._transport is not None:
            self._transport.writelines(parts)

    def _through_loop(self, data: bytes | memoryview) -> None:
        to = self._transport
        if to is not None:
            to.write(data)
            self._clear = not (to.get_write_buffer_size() or to.is_closing())  # an aborted one forgets what waits

    def doubt(self) -> None:
        """Somebody else has written, or may: that may wait in the loop."""
        self._clear = False

    def close(self) -> None:
        """The connection is lost: what is written from now on goes nowhere."""
        if self._borrowed is not None:
            self._borrowed.detach()
        self._transport = self._send = None
