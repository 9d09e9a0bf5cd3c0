"""WebSockets of `Client`, with `websockets.sync`. A thread of that library receives messages ahead of their reader."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from websockets.exceptions import ConnectionClosed
from websockets.sync.client import ClientConnection, connect


async def open_websocket(url: str, headers: Mapping[str, str], **options: Any) -> BlockingWebSocket:
    """Connect and do the handshake. Raises OSError, and InvalidHandshake of `websockets`."""
    return BlockingWebSocket(connect(url, additional_headers=headers, legacy=True, **options))


class BlockingWebSocket:
    """A WebSocket. One thread may send while another receives."""

    def __init__(self, connection: ClientConnection) -> None:
        self._connection = connection

    async def send(self, message: str | bytes) -> None:
        try:
            self._connection.send(message)
        except ConnectionClosed as error:
            raise ConnectionError(str(error)) from error

    async def receive(self, timeout: float) -> bytes | None:
        try:
            return self._connection.recv(timeout, decode=False)
        except ConnectionClosed as error:
            if error.rcvd is not None:
                return None
            raise ConnectionError(str(error)) from error

    def abort(self) -> None:
        self._connection.close_socket()
