"""The registry as a server on a bound socket: desk, threads and doors, from start to stop."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import socket
import sqlite3
from collections.abc import AsyncIterator, Callable, Iterator

import uvicorn

from svc.errors import SvcError
from svc.registry.desk import Desk
from svc.registry.front import Front
from svc.registry.routes import application
from svc.registry.sending import Lanes

log = logging.getLogger("svc.registry")

WATCH_SECONDS = 1.0


class Server(uvicorn.Server):
    """uvicorn's server, which says when it answers."""

    def __init__(self, config: uvicorn.Config, ready: Callable[[], None]) -> None:
        super().__init__(config)
        self._ready = ready

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leaves the signals to `svc.stopping`, which has them from before the server's start."""
        yield

    def stop(self, number: int) -> None:
        """Ends it after what runs; a second SIGINT does not wait for that."""
        self.handle_exit(number, None)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self._ready()


@contextlib.asynccontextmanager
async def prepared(desk: Desk, ready: Callable[[], None], *, drain_seconds: int = 30) -> AsyncIterator[Server]:
    """A server to run; what it needs is there while the context is."""
    lanes = Lanes()
    config = uvicorn.Config(
        application(desk),
        http=functools.partial(Front, desk, lanes),  # type: ignore[arg-type]
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        timeout_graceful_shutdown=drain_seconds,
        timeout_keep_alive=75,
        backlog=2048,
    )
    watch = asyncio.create_task(_watch(desk))
    try:
        yield Server(config, ready)
    finally:
        watch.cancel()
        await asyncio.wait([watch])
        await desk.hashing.close()
        desk.shelf.clear()
        lanes.close()


async def _watch(desk: Desk) -> None:
    """Takes in what other tools add to index.json, and hashes what came without a hash."""
    said = ""
    while True:
        try:
            await asyncio.to_thread(desk.refresh)
            await desk.hashing.settle(WATCH_SECONDS)
            said = ""
        except (OSError, sqlite3.Error, SvcError) as error:
            if str(error) != said:  # once, not at every look
                log.exception("index.json could not be followed")
            said = str(error)
        await asyncio.sleep(WATCH_SECONDS)
