"""The keep-alive of a WebSocket, with a client that waits for the application and one that is silent."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import functools
import os
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

import uvicorn
import websockets

from svc.app.listeners import listen
from svc.gateway.server.websocket import WebSocketProtocol

PING_SECONDS = 0.2
CONTEXT: Any = SimpleNamespace(config=SimpleNamespace(current=SimpleNamespace(policy=SimpleNamespace(write_timeout=5))))


class CountingApplication:
    """Accepts a WebSocket. After `resume`, it reads three messages and sends their number."""

    def __init__(self) -> None:
        self.resume = asyncio.Event()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        await receive()
        await send({"type": "websocket.accept"})
        await self.resume.wait()
        messages = [await receive() for _ in range(3)]
        received = [message for message in messages if message["type"] == "websocket.receive"]
        await send({"type": "websocket.send", "text": str(len(received))})


@contextlib.asynccontextmanager
async def serve(application: CountingApplication) -> AsyncIterator[int]:
    """Serve the application with short keep-alive times, and yield the port."""
    listener = listen("127.0.0.1", 0)
    protocol: Any = functools.partial(WebSocketProtocol, CONTEXT)
    config = uvicorn.Config(
        application,
        ws=protocol,
        ws_per_message_deflate=False,
        ws_ping_interval=PING_SECONDS,
        ws_ping_timeout=PING_SECONDS,
        lifespan="off",
        log_config=None,
        timeout_graceful_shutdown=1,
    )
    server = uvicorn.Server(config)
    task = asyncio.create_task(server.serve([listener]))
    try:
        yield listener.getsockname()[1]
    finally:
        application.resume.set()
        server.should_exit = True
        await task


async def test_websocket_whose_messages_wait_for_application_is_not_closed() -> None:
    application = CountingApplication()
    async with (
        serve(application) as port,
        websockets.connect(f"ws://127.0.0.1:{port}/", ping_interval=None) as client,
    ):
        for _ in range(3):
            await client.send(b"audio")
        await asyncio.sleep(5 * PING_SECONDS)  # pongs wait behind the messages, which nobody reads
        application.resume.set()
        assert await client.recv() == "3"


async def test_websocket_silent_client_is_closed() -> None:
    async with serve(CountingApplication()) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        key = base64.b64encode(os.urandom(16)).decode()
        writer.write(
            f"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
            f"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: {key}\r\n\r\n".encode()
        )
        assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 101")
        async with asyncio.timeout(20):
            received = await reader.read()  # until the gateway closes the connection
        assert (1011).to_bytes(2, "big") + b"keepalive ping timeout" in received
        writer.close()
