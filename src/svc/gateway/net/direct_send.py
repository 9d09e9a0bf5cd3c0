"""Sends on a non-blocking socket, with the C module `_direct_send` where it is compiled.

`socket.send` releases the GIL, and raises an error for a full socket. Both cost more than the rest of a short send.
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
    """Return a function that sends data on a non-blocking socket, and returns how many bytes the socket has accepted.

    It returns 0 if the socket's buffer is full, and after an error. It must not be called after the socket is closed.
    """
    return _SocketSender(sock).send if _COMPILED_SENDER is None else _COMPILED_SENDER(sock.fileno()).send
