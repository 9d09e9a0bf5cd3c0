"""A TCP proxy that delays both directions without limiting their rate, and whose target can change."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from typing import Self

CONNECT_SECONDS = 5.0
MAX_QUEUED_CHUNKS = 64


class DelayingProxy:
    """Runs an event loop in a thread."""

    def __init__(self, host: str, port: int, target: tuple[str, int]) -> None:
        self.target = target
        """The address of new connections."""
        self.delay_seconds = 0.0
        """The delay of each direction."""
        self._host, self._port = host, port
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="delaying proxy", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        listening = asyncio.start_server(self._forward, self._host, self._port)
        self._server = asyncio.run_coroutine_threadsafe(listening, self._loop).result(CONNECT_SECONDS)
        return self

    def __exit__(self, *_: object) -> None:
        asyncio.run_coroutine_threadsafe(self._close(), self._loop).result(CONNECT_SECONDS)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(CONNECT_SECONDS)
        self._loop.close()

    async def _close(self) -> None:
        self._server.close()
        running = asyncio.all_tasks() - {task for task in (asyncio.current_task(),) if task is not None}
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)

    async def _forward(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Forward one connection until one side ends it."""
        # At the end of the proxy, asyncio would log the cancellation of this task.
        with contextlib.suppress(OSError, TimeoutError, asyncio.CancelledError), contextlib.closing(writer):
            async with asyncio.timeout(CONNECT_SECONDS):
                target_reader, target_writer = await asyncio.open_connection(*self.target)
            with contextlib.closing(target_writer):
                directions = (self._pump(reader, target_writer), self._pump(target_reader, writer))
                pumps = [asyncio.create_task(each) for each in directions]
                await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
                for pump in pumps:
                    pump.cancel()
                await asyncio.gather(*pumps, return_exceptions=True)

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        chunks: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue(MAX_QUEUED_CHUNKS)
        sender = asyncio.create_task(_send_when_due(chunks, writer))
        try:
            while data := await reader.read(65536):
                await chunks.put((self._loop.time() + self.delay_seconds, data))
            await chunks.put((0.0, b""))
            await sender
        finally:
            sender.cancel()


async def _send_when_due(chunks: asyncio.Queue[tuple[float, bytes]], writer: asyncio.StreamWriter) -> None:
    loop = asyncio.get_running_loop()
    while True:
        due, data = await chunks.get()
        if not data:
            return
        if (wait := due - loop.time()) > 0:
            await asyncio.sleep(wait)
        writer.write(data)
        await writer.drain()
