"""The transport of `AsyncClient`, over `httpx2.AsyncClient`. `svc.client.transport` defines the interface."""

from __future__ import annotations

import asyncio
import contextlib
import math
import time
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import httpx2

from svc.client.blocking_transport import (
    SendTrace,
    build_http_request,
    http_client_options,
    translate_http_errors,
)
from svc.client.transport import ClientRequest, ClientResponse, RequestTimeouts
from svc.errors import UsageError
from svc.outbound_http import checked_environment, find_environment_proxy

T = TypeVar("T")


class AsyncTransport:
    """Sends requests with an httpx2 client. `direct` ignores the proxies of the environment."""

    websocket_module = "async_websocket"

    def __init__(self, base_url: str, http_client: httpx2.AsyncClient | None = None, *, direct: bool = False) -> None:
        if http_client is not None and not isinstance(http_client, httpx2.AsyncClient):
            raise UsageError("http_client of AsyncClient must be an httpx2.AsyncClient.")
        self._is_owner = http_client is None
        self.is_direct = direct
        self._proxy = find_environment_proxy(base_url) if self._is_owner and not direct else None
        with checked_environment():
            self._options = http_client_options(base_url, direct) if self._is_owner else {}
            self._http_client = http_client or httpx2.AsyncClient(**self._options)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._closing: set[asyncio.Task[None]] = set()

    async def send(self, request: ClientRequest, timeouts: RequestTimeouts) -> ClientResponse:
        trace = SendTrace()
        try:
            response = await self._send(request, timeouts, trace.on_event_async)
        except ConnectionError:
            if not trace.may_repeat(request):
                raise
            response = await self._send(request, timeouts)
        return AsyncResponse(response, timeouts.deadline, self._close_dropped)

    async def _send(
        self, request: ClientRequest, timeouts: RequestTimeouts, trace: Callable[..., Any] | None = None
    ) -> httpx2.Response:
        http_client = self._current_http_client()
        with translate_http_errors(self._proxy):
            http_request = build_http_request(http_client, request, timeouts, trace)
            async with _timeout_at(timeouts.deadline):
                return await http_client.send(http_request, stream=True, follow_redirects=False)

    def _current_http_client(self) -> httpx2.AsyncClient:
        """Return the client of this event loop: its connections cannot be used after another `asyncio.run`."""
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            raise UsageError("AsyncClient works only in an event loop of asyncio. Client needs none.") from None
        if self._is_owner and self._loop not in (None, loop):
            self._http_client = httpx2.AsyncClient(**self._options)
        self._loop = loop
        return self._http_client

    def _close_dropped(self, response: httpx2.Response) -> None:
        """Close a response that its reader has dropped. Called in any thread."""
        with contextlib.suppress(RuntimeError):  # the event loop is closed, and the connection with it
            if self._loop is not None:
                self._loop.call_soon_threadsafe(self._start_closing, response)

    def _start_closing(self, response: httpx2.Response) -> None:
        task = asyncio.get_running_loop().create_task(response.aclose())
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    async def run_blocking(self, work: Callable[[], T]) -> T:
        return await asyncio.to_thread(work)

    async def close(self) -> None:
        await asyncio.gather(*self._closing, return_exceptions=True)
        if self._is_owner:
            await self._current_http_client().aclose()


class AsyncResponse:
    """A response."""

    def __init__(
        self, response: httpx2.Response, deadline: float, on_dropped: Callable[[httpx2.Response], None]
    ) -> None:
        self.status = response.status_code
        self.headers: Mapping[str, str] = response.headers
        self.is_complete = False
        self._response, self._deadline = response, deadline
        self._on_dropped = on_dropped
        self._chunks = response.aiter_bytes()

    async def read(self) -> bytes:
        with translate_http_errors():
            async with _timeout_at(self._deadline):
                chunk = await anext(self._chunks, b"")
        if not chunk:
            self.is_complete = True
        return chunk

    async def finish(self, seconds: float) -> None:
        with contextlib.suppress(OSError):  # includes TimeoutError
            async with asyncio.timeout(seconds):
                while await self.read():
                    pass
        await self.close()

    async def close(self) -> None:
        await self._response.aclose()

    def __del__(self) -> None:
        """Cancel a response that its reader has dropped, which the connection pool would keep open."""
        if not self._response.is_closed:
            self._on_dropped(self._response)


def _timeout_at(deadline: float) -> asyncio.Timeout:
    return asyncio.timeout(None if deadline == math.inf else deadline - time.monotonic())
