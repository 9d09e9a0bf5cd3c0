"""The gateway's server: uvicorn's, which says when it answers, and never leaves a listener open behind it."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Awaitable, Callable, Iterator

import uvicorn

from svc.gateway.net import allocator


class GatewayServer(uvicorn.Server):
    """`before_shutdown` is awaited before connections are told to end."""

    def __init__(
        self, config: uvicorn.Config, on_ready: Callable[[], None], before_shutdown: Callable[[], Awaitable[None]]
    ) -> None:
        super().__init__(config)
        self._on_ready = on_ready
        self._before_shutdown = before_shutdown

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leaves the signals to `svc.stopping`, which has them from before the server's start."""
        yield

    def stop(self, signal_number: int) -> None:
        """Ends it after what runs; a second SIGINT does not wait for that."""
        self.handle_exit(signal_number, None)

    async def serve(self, sockets: list[socket.socket] | None = None) -> None:
        """Serve until `stop`. When this returns or raises, the listeners are closed."""
        try:
            await super().serve(sockets)
        except BaseException as error:
            self._close_listeners(sockets)
            if self.started and isinstance(error, Exception):  # what runs is finished
                await self.shutdown(sockets)
            raise

    def _close_listeners(self, sockets: list[socket.socket] | None) -> None:
        for server in getattr(self, "servers", []):  # uvicorn has none before its start
            server.close()
        for each in sockets or []:
            each.close()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        allocator.freeze_gc()
        if not self.should_exit:
            self._on_ready()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._close_listeners(sockets)
        await self._before_shutdown()  # uvicorn would cut them off without a word
        await super().shutdown(sockets)
