"""The gateway's uvicorn server, which reports readiness and always closes its listeners."""

from __future__ import annotations

import asyncio
import contextlib
import math
import socket
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterator

import uvicorn

from svc.gateway.net import allocator
from svc.gateway.net.server_tls import ServerTls
from svc.gateway.server.connection import ClientConnection


class GatewayServer(uvicorn.Server):
    """A server that calls `on_ready` when it listens, and awaits `before_shutdown` before it closes connections.

    `wait_for_sessions` returns when no WebSocket has a live session.
    """

    def __init__(
        self,
        config: uvicorn.Config,
        on_ready: Callable[[], None],
        before_shutdown: Callable[[], Awaitable[None]],
        wait_for_sessions: Callable[[], Coroutine[None, None, None]],
        tls: ServerTls | None = None,
    ) -> None:
        super().__init__(config)
        self._tls = tls
        self._on_ready = on_ready
        self._before_shutdown = before_shutdown
        self._wait_for_sessions = wait_for_sessions
        self._is_retiring = False
        self._is_stopped = asyncio.Event()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Install no signal handlers: `svc.app.stop_signals` handles signals, from before the server's start."""
        yield

    def stop(self, signal_number: int) -> None:
        """Stop the server after the requests in progress. A second SIGINT does not wait for them."""
        self._is_stopped.set()
        self.handle_exit(signal_number, None)

    def retire(self) -> None:
        """Stop the server after the requests and the live sessions in progress. `stop` ends the sessions."""
        self._is_retiring = True
        self.should_exit = True

    async def serve(self, sockets: list[socket.socket] | None = None) -> None:
        """Serve until `stop`. When this returns or raises, the listeners are closed."""
        try:
            await super().serve(sockets)
        except BaseException as error:
            self._close_listeners(sockets)
            if self.started and isinstance(error, Exception):  # requests in progress complete
                await self.shutdown(sockets)
            raise

    def _close_listeners(self, sockets: list[socket.socket] | None) -> None:
        for server in getattr(self, "servers", []):  # uvicorn sets it at startup
            server.close()
        for listener in sockets or []:
            listener.close()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        # uvicorn's own settings cannot take a context.
        self.config.ssl = self._tls.context if self._tls is not None else None
        await super().startup(sockets)
        allocator.freeze_gc()
        if not self.should_exit:
            self._on_ready()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._close_listeners(sockets)
        if self._tls is not None:
            await self._tls.wait_for_handshakes()
        if self._is_retiring:
            await self._drain_sessions()
        await self._before_shutdown()  # uvicorn would close the connections without an error response
        await super().shutdown(sockets)

    async def _drain_sessions(self) -> None:
        """Wait for the live sessions, up to the drain timeout. Requests get the rest of it."""
        for connection in list(self.server_state.connections):
            if isinstance(connection, ClientConnection):
                connection.shutdown()
        timeout, start = float(self.config.timeout_graceful_shutdown or 0), time.monotonic()
        tasks = [asyncio.create_task(self._wait_for_sessions()), asyncio.create_task(self._wait_for_stop())]
        try:
            await asyncio.wait(tasks, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        self.config.timeout_graceful_shutdown = max(1, math.ceil(timeout - (time.monotonic() - start)))

    async def _wait_for_stop(self) -> None:
        await self._is_stopped.wait()
