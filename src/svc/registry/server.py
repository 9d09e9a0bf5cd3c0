"""Run the registry on a bound socket: create its services, threads and connections, and close them in order."""

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
from svc.registry.connection import RegistryConnection
from svc.registry.routes import create_app
from svc.registry.sendfile import SendThreadPool
from svc.registry.service import RegistryService

log = logging.getLogger("svc.registry")

INDEX_POLL_SECONDS = 1.0
REGISTRY_IDLE_TIMEOUT_SECONDS = 75
"""Idle time after which a connection is closed."""


class RegistryServer(uvicorn.Server):
    """uvicorn's server with a callback at readiness."""

    def __init__(self, config: uvicorn.Config, on_ready: Callable[[], None]) -> None:
        super().__init__(config)
        self._on_ready = on_ready

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Do nothing: `svc.app.stop_signals` handles signals, from before the server's start."""
        yield

    def stop(self, signal_number: int) -> None:
        """Stop after in-flight requests. A second SIGINT stops at once."""
        self.handle_exit(signal_number, None)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self._on_ready()


@contextlib.asynccontextmanager
async def open_server(
    service: RegistryService, on_ready: Callable[[], None], *, drain_seconds: int = 30
) -> AsyncIterator[RegistryServer]:
    """Create a server and its resources, which exist for the context's duration."""
    send_pool = SendThreadPool()
    config = uvicorn.Config(
        create_app(service),
        http=functools.partial(RegistryConnection, service, send_pool),  # type: ignore[arg-type]
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        timeout_graceful_shutdown=drain_seconds,
        timeout_keep_alive=REGISTRY_IDLE_TIMEOUT_SECONDS,
        backlog=2048,
    )
    index_task = asyncio.create_task(_follow_index(service))
    try:
        yield RegistryServer(config, on_ready)
    finally:
        index_task.cancel()
        await asyncio.wait([index_task])
        await service.hasher.close()
        service.open_files.clear()
        send_pool.close()


async def _follow_index(service: RegistryService) -> None:
    """Import changes of other tools to index.json, and hash entries without a hash."""
    last_error = ""
    while True:
        try:
            await asyncio.to_thread(service.refresh)
            await service.hasher.hash_pending(INDEX_POLL_SECONDS)
            last_error = ""
        except (OSError, sqlite3.Error, SvcError) as error:
            if str(error) != last_error:  # log each error once
                is_known = isinstance(error, SvcError)
                log.error("changes of other servers and tools cannot be read: %s", error, exc_info=not is_known)
            last_error = str(error)
        await asyncio.sleep(INDEX_POLL_SECONDS)
