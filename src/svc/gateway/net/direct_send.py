"""Sends on a non-blocking socket, with the C module `_direct_send` where it is compiled.

`socket.send` releases the GIL, and raises an error for a full socket. Both cost more than the rest of a short send.
The module in C releases the GIL only for more than 64 KiB.
"""

from __future__ import annotations

import socket
from collections.abc import Callable
from typing import Final, Protocol


class _Sender(Protocol):
    def send(self, data: bytes, /) -> int: ...


class _SocketSender:
    def __init__(self, sock: socket.SocketType) -> None:
        self._socket = sock

    def send(self, data: bytes) -> int:
        try:
            return self._socket.send(data)
        except OSError:
            return 0


def _load() -> Callable[[int], _Sender] | None:
    """Return the class of the C module."""
    try:
        from svc.gateway.net import _direct_send as module  # noqa: PLC0415 absent if the gateway runs from source
    except ImportError:
        return None
    return module.DirectSender


_COMPILED_SENDER: Final = _load()


def create_send(sock: socket.SocketType) -> Callable[[bytes], int]:
    """Return a function that sends `bytes` on a non-blocking socket, and returns how many of them it has accepted.

    It returns 0 if the socket's buffer is full, and after an error. Hazard: it keeps the number of the descriptor. So
    it must not be called after `sock` is detached or closed, when another connection may have the number.
    """
    return _SocketSender(sock).send if _COMPILED_SENDER is None else _COMPILED_SENDER(sock.fileno()).send
