"""The socket of a connection that the loop owns, to send on it without the loop."""

from __future__ import annotations

import asyncio
import socket


class Borrowed(socket.SocketType):
    """Never closes the descriptor, which is the loop's. From `detach` on, every call raises OSError."""

    __slots__ = ()

    def __del__(self) -> None:
        self.detach()  # in place of what a socket does when it is let go of, which is to close


def borrow(transport: asyncio.BaseTransport) -> Borrowed | None:
    """None where it has no descriptor of its own. To be detached when `connection_lost` is called: after that the loop
    closes the descriptor, and the system gives its number to another connection.
    """
    own = transport.get_extra_info("socket")
    if own is None or own.fileno() < 0:
        return None
    try:
        return Borrowed(own.family, own.type, own.proto, own.fileno())  # it does not block: the loop has seen to that
    except OSError:  # reset just now
        return None
