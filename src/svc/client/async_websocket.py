"""WebSockets of `AsyncClient`, with `websockets.asyncio`."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed

from svc.client.transport import WebSocketReceiver

T = TypeVar("T")


async def open_websocket(url: str, headers: Mapping[str, str], **options: Any) -> AsyncWebSocket:
    """Connect and do the handshake. Raises OSError, and InvalidHandshake of `websockets`."""
    return AsyncWebSocket(await connect(url, additional_headers=headers, **options))


class AsyncWebSocket:
    """A WebSocket. `svc.client.transport` defines the interface."""

    def __init__(self, connection: ClientConnection) -> None:
        self._connection = connection
        self._waiters: set[asyncio.Future[None]] = set()
        self._is_receiving = False
        self._received_at = time.monotonic()

    async def send(self, message: str | bytes, timeout: float) -> None:
        try:
            async with asyncio.timeout(timeout):
                await self._connection.send(message)
        except ConnectionClosed as error:
            raise ConnectionError(str(error)) from error

    async def receive_until(
        self, take: Callable[[], T | None], receiver: WebSocketReceiver, idle_timeout: float, deadline: float
    ) -> T:
        started_at = time.monotonic()
        while (result := take()) is None:
            idle_deadline = max(started_at, self._received_at) + idle_timeout
            remaining = min(deadline, idle_deadline) - time.monotonic()
            if remaining <= 0:
                raise TimeoutError
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(remaining):
                    await (self._wait_for_change() if self._is_receiving else self._receive(receiver))
        return result

    async def _wait_for_change(self) -> None:
        waiter = asyncio.get_running_loop().create_future()
        self._waiters.add(waiter)
        try:
            await waiter
        finally:
            self._waiters.discard(waiter)

    async def _receive(self, receiver: WebSocketReceiver) -> None:
        """Receive one message. A cancelled call loses none."""
        self._is_receiving = True
        try:
            raw = await self._connection.recv(decode=False)
        except ConnectionClosed as error:
            receiver.on_close(error)
        else:
            self._received_at = time.monotonic()
            receiver.on_message(raw)
        finally:
            self._is_receiving = False
            self._wake()

    def _wake(self) -> None:
        for waiter in self._waiters:
            if not waiter.done():
                waiter.set_result(None)

    def update(self, change: Callable[[], None]) -> None:
        change()
        self._wake()

    def caller_id(self) -> int:
        return id(asyncio.current_task())

    def abort(self) -> None:
        self._connection.transport.abort()
