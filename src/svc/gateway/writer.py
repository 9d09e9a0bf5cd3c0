"""Writes to a connection: straight to its socket, or through the loop while something waits there.

The loop's transport would send at once, too, but takes more steps, and its `write` costs the kernel more than a `send`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from svc.gateway.borrowed import borrow


class Writer:
    """Of one transport, from `connection_made` to `connection_lost`. Whoever writes past it, says so by `doubt`."""

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
            self._wait(data)
            return
        try:
            sent = self._send(data)
        except OSError:  # it is full, or broken: the loop will find out, and say so
            sent = 0
        if sent < len(data):
            self._wait(memoryview(data)[sent:] if sent else data)

    def _wait(self, data: bytes | memoryview) -> None:
        if self._transport is not None:
            self._transport.write(data)
            self._clear = not self._transport.get_write_buffer_size()

    def doubt(self) -> None:
        """Somebody else has written, or may: that may wait in the loop."""
        self._clear = False

    def close(self) -> None:
        """The connection is lost: what is written from now on goes nowhere."""
        if self._borrowed is not None:
            self._borrowed.detach()
        self._transport = self._send = None
