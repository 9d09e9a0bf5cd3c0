"""The asyncio transport of `AsyncClient`. `svc.client.transport` defines the interface."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeVar

from svc.client.transport import (
    MAX_READ_AHEAD_BYTES,
    TRANSPORT_CHUNK_BYTES,
    ServerOrigin,
    TransportConnection,
    create_tls_context,
)

T = TypeVar("T")


class AsyncTransport:
    """Connects with asyncio."""

    async def connect(self, origin: ServerOrigin, timeout: float) -> TransportConnection:
        async with asyncio.timeout(timeout):
            reader, writer = await asyncio.open_connection(
                origin.host,
                origin.port,
                ssl=create_tls_context() if origin.tls else None,
                limit=MAX_READ_AHEAD_BYTES // 2,
            )
        return AsyncConnection(reader, writer)

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    async def run_blocking(self, work: Callable[[], T]) -> T:
        return await asyncio.to_thread(work)


class AsyncConnection:
    """A connection with asyncio streams, which read ahead by themselves."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer
        self._loop = asyncio.get_running_loop()

    async def read(self, timeout: float) -> bytes:
        async with asyncio.timeout(timeout):
            return await self._reader.read(TRANSPORT_CHUNK_BYTES)

    def write(self, data: bytes, timeout: float) -> None:
        self._writer.write(data)

    async def drain(self, timeout: float) -> None:
        async with asyncio.timeout(timeout):
            await self._writer.drain()

    @property
    def is_stale(self) -> bool:
        is_other_loop = self._loop is not asyncio.get_running_loop()  # the same client in another `asyncio.run`
        return is_other_loop or self._reader.at_eof() or self._writer.is_closing()

    def close(self) -> None:
        if not self._loop.is_closed():
            self._writer.close()
