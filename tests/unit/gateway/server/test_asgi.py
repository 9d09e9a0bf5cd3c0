"""Requests that a connection passes to the ASGI application."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import weakref
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
import uvicorn
from uvicorn.server import ServerState

from svc.gateway.server.asgi import MAX_BODY_PART_BYTES, AsgiProtocol

LARGE_BODY = bytes(range(256)) * 4096
"""Four parts."""
OK = b"HTTP/1.1 200 OK"


def head(body: bytes) -> bytes:
    return b"POST /upload HTTP/1.1\r\nhost: a\r\ncontent-length: %d\r\n\r\n" % len(body)


class Application:
    """Reads each request completely, or not at all, and responds without a body."""

    def __init__(self) -> None:
        self.reads_body = True
        self.messages: list[dict[str, Any]] = []

    async def __call__(self, scope: Any, receive: Callable[[], Any], send: Callable[[Any], Any]) -> None:
        self.messages.clear()
        while self.reads_body and (not self.messages or self.messages[-1].get("more_body")):
            self.messages.append(await receive())
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"0")]})
        await send({"type": "http.response.body", "body": b""})


@contextlib.asynccontextmanager
async def connect(application: Application) -> AsyncIterator[tuple[AsgiProtocol, asyncio.StreamReader]]:
    config = uvicorn.Config(application, lifespan="off", log_config=None)
    config.load()
    protocols: list[AsgiProtocol] = []

    def make_protocol() -> AsgiProtocol:
        protocols.append(AsgiProtocol(lambda: None, config=config, server_state=ServerState(), app_state={}))
        return protocols[-1]

    server = await asyncio.get_running_loop().create_server(make_protocol, "127.0.0.1", 0)
    async with server:
        reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
        while not protocols:
            await asyncio.sleep(0.01)
        yield protocols[0], reader
        writer.close()


async def read_status(reader: asyncio.StreamReader) -> bytes:
    response = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 10)
    return response.partition(b"\r\n")[0]


@pytest.mark.parametrize("size", [0, 1, MAX_BODY_PART_BYTES, MAX_BODY_PART_BYTES + 1, len(LARGE_BODY)])
@pytest.mark.parametrize("received_bytes", [1000, 100_000, len(LARGE_BODY)])
async def test_body_arrives_complete_in_parts_of_limited_size(size: int, received_bytes: int) -> None:
    application, body = Application(), LARGE_BODY[:size]
    async with connect(application) as (protocol, reader):
        received = [body[start : start + received_bytes] for start in range(0, size, received_bytes)]
        protocol.receive_request(head(body), received)
        assert await read_status(reader) == OK
    parts = [message["body"] for message in application.messages]
    assert b"".join(parts) == body
    assert max(map(len, parts)) <= MAX_BODY_PART_BYTES


async def test_request_after_an_unread_body_is_served() -> None:
    application = Application()
    async with connect(application) as (protocol, reader):
        application.reads_body = False
        protocol.receive_request(head(LARGE_BODY), [LARGE_BODY])
        assert await read_status(reader) == OK
        application.reads_body = True
        for body in (b"second", LARGE_BODY):
            protocol.receive_request(head(body), [body])
            assert await read_status(reader) == OK
            assert b"".join(message["body"] for message in application.messages) == body


async def test_lost_connection_ends_the_request_and_drops_the_rest_of_the_body() -> None:
    application = Application()
    async with connect(application) as (protocol, _):
        protocol.receive_request(head(LARGE_BODY), [LARGE_BODY])
        assert protocol.transport is not None
        protocol.transport.abort()
        async with asyncio.timeout(10):
            while not application.messages or application.messages[-1]["type"] != "http.disconnect":
                await asyncio.sleep(0.01)
    assert sum(len(message.get("body", b"")) for message in application.messages) < len(LARGE_BODY)


async def test_closed_connection_is_freed_without_garbage_collection() -> None:
    gc.disable()
    try:
        async with connect(Application()) as (protocol, reader):
            protocol.receive_request(head(LARGE_BODY), [LARGE_BODY])
            assert await read_status(reader) == OK
            connection = weakref.ref(protocol)
            del protocol
        async with asyncio.timeout(10):
            while connection() is not None:
                await asyncio.sleep(0.01)
    finally:
        gc.enable()
