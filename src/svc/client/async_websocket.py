"""WebSockets of `AsyncClient`, with `websockets.asyncio`."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed


async def open_websocket(url: str, headers: Mapping[str, str], **options: Any) -> AsyncWebSocket:
    """Connect and do the handshake. Raises OSError, and InvalidHandshake of `websockets`."""
    return AsyncWebSocket(await connect(url, additional_headers=headers, **options))


class AsyncWebSocket:
    """A WebSocket. One task may send while another receives."""

    def __init__(self, connection: ClientConnection) -> None:
        self._connection = connection

    async def send(self, message: str | bytes) -> None:
        try:
            await self._connection.send(message)
        except ConnectionClosed as error:
            raise ConnectionError(str(error)) from error

    async def receive(self, timeout: float) -> bytes | None:
        try:
            async with asyncio.timeout(timeout):
                return await self._connection.recv(decode=False)
        except ConnectionClosed as error:
            if error.rcvd is not None:
                return None
            raise ConnectionError(str(error)) from error

    def abort(self) -> None:
        self._connection.transport.abort()
