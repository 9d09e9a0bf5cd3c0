"""The socket of a connection that the loop owns, to send on it without the loop."""

from __future__ import annotations

import asyncio
import socket


class BorrowedSocket(socket.SocketType):
    """Never closes the descriptor, which is the loop's. From `detach` on, every call raises OSError."""

    __slots__ = ()

    def __del__(self) -> None:
        self.detach()  # in place of what a socket does when it is let go of, which is to close


def borrow_socket(transport: asyncio.BaseTransport) -> BorrowedSocket | None:
    """None where it has no descriptor of its own. To be detached when `connection_lost` is called: after that the loop
    closes the descriptor, and the system gives its number to another connection.
    """
    owned = transport.get_extra_info("socket")
    if owned is None or owned.fileno() < 0:
        return None
    try:
        return BorrowedSocket(
            owned.family, owned.type, owned.proto, owned.fileno()
        )  # it does not block: the loop has seen to that
    except OSError:  # reset just now
        return None
