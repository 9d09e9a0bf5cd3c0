"""Sends on the socket of an asyncio transport without the event loop."""

from __future__ import annotations

import asyncio
import socket


class BorrowedSocket(socket.SocketType):
    """A socket object that never closes its file descriptor. After `detach`, every call raises OSError."""

    __slots__ = ()

    def __del__(self) -> None:
        self.detach()  # the inherited finalizer would close the descriptor, which the transport owns


def borrow_socket(transport: asyncio.BaseTransport) -> BorrowedSocket | None:
    """Return a socket for the transport's file descriptor, or None if the transport has none or encrypts.

    The caller must call `detach` in `connection_lost`. Afterwards the loop closes the descriptor, and the system
    reuses its number for another connection.
    """
    transport_socket = transport.get_extra_info("socket")
    if transport.get_extra_info("sslcontext") is not None:  # the socket carries TLS records
        return None
    if transport_socket is None or transport_socket.fileno() < 0:
        return None
    try:
        # The loop has already made the descriptor non-blocking.
        return BorrowedSocket(
            transport_socket.family, transport_socket.type, transport_socket.proto, transport_socket.fileno()
        )
    except OSError:  # the peer has reset the connection
        return None
