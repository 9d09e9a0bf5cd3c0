"""Byte streams on an event loop, for `AsyncClient`. See `wires`."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeVar

from svc.client.wires import AHEAD, PIECE, Origin, Wire, tls

T = TypeVar("T")


class LoopNet:
    """For `AsyncClient`."""

    async def connect(self, origin: Origin, timeout: float) -> Wire:
        async with asyncio.timeout(timeout):
            reader, writer = await asyncio.open_connection(
                origin.host, origin.port, ssl=tls() if origin.tls else None, limit=AHEAD // 2
            )
        return LoopWire(reader, writer)

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    async def call(self, work: Callable[[], T]) -> T:
        return await asyncio.to_thread(work)


class LoopWire:
    """The stream reader reads ahead by itself."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer
        self._loop = asyncio.get_running_loop()

    async def read(self, timeout: float) -> bytes:
        async with asyncio.timeout(timeout):
            return await self._reader.read(PIECE)

    def push(self, data: bytes, timeout: float) -> None:
        self._writer.write(data)

    async def settle(self, timeout: float) -> None:
        async with asyncio.timeout(timeout):
            await self._writer.drain()

    @property
    def stale(self) -> bool:
        other = self._loop is not asyncio.get_running_loop()  # one `asyncio.run` after another, with the same client
        return other or self._reader.at_eof() or self._writer.is_closing()

    def close(self) -> None:
        if not self._loop.is_closed():
            self._writer.close()
