"""The gateway's uvicorn server, which reports readiness and always closes its listeners."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Awaitable, Callable, Iterator

import uvicorn

from svc.gateway.net import allocator
from svc.gateway.net.server_tls import ServerTls


class GatewayServer(uvicorn.Server):
    """A server that calls `on_ready` when it listens, and awaits `before_shutdown` before it closes connections."""

    def __init__(
        self,
        config: uvicorn.Config,
        on_ready: Callable[[], None],
        before_shutdown: Callable[[], Awaitable[None]],
        tls: ServerTls | None = None,
    ) -> None:
        super().__init__(config)
        self._tls = tls
        self._on_ready = on_ready
        self._before_shutdown = before_shutdown

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Install no signal handlers: `svc.app.stop_signals` handles signals, from before the server's start."""
        yield

    def stop(self, signal_number: int) -> None:
        """Stop the server after the requests in progress. A second SIGINT does not wait for them."""
        self.handle_exit(signal_number, None)

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
        await self._before_shutdown()  # uvicorn would close the connections without an error response
        await super().shutdown(sockets)
