"""The transport of `Client`, over `httpx2.Client`. `svc.client.transport` defines the interface."""

from __future__ import annotations

import contextlib
import math
import os
import socket
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeVar

import httpx2

from svc.client.transport import (
    SDK_IDLE_CONNECTION_SECONDS,
    SDK_MAX_IDLE_CONNECTIONS,
    ClientRequest,
    ClientResponse,
    RequestTimeouts,
    run_sync,
)
from svc.errors import UsageError
from svc.outbound_http import (
    HTTP_ERRORS,
    checked_environment,
    describe_http_error,
    find_environment_proxy,
    select_tls_context,
    supports_http2,
)

T = TypeVar("T")

IDLE_CLOSE_SECONDS = 0.25
"""A server that closes an idle connection while a request arrives does so within this time of the request."""


class BlockingTransport:
    """Sends requests with an httpx2 client. `direct` ignores the proxies of the environment."""

    websocket_module = "blocking_websocket"

    def __init__(self, base_url: str, http_client: httpx2.Client | None = None, *, direct: bool = False) -> None:
        if http_client is not None and not isinstance(http_client, httpx2.Client):
            raise UsageError("http_client of Client must be an httpx2.Client.")
        self._is_owner = http_client is None
        self.is_direct = direct
        self._base_url = base_url
        self._proxy = find_environment_proxy(base_url) if self._is_owner and not direct else None
        self._pid = os.getpid()
        self._http_client = http_client or self._create_http_client()

    async def send(self, request: ClientRequest, timeouts: RequestTimeouts) -> ClientResponse:
        trace = SendTrace()
        try:
            response = self._send(request, timeouts, trace.on_event)
        except ConnectionError:
            if not trace.may_repeat(request):
                raise
            response = self._send(request, timeouts)
        return BlockingResponse(response, timeouts.deadline)

    def _send(
        self, request: ClientRequest, timeouts: RequestTimeouts, trace: Callable[..., None] | None = None
    ) -> httpx2.Response:
        with translate_http_errors(self._proxy):
            http_client = self._current_http_client()
            http_request = build_http_request(http_client, request, timeouts, trace)
            return http_client.send(http_request, stream=True, follow_redirects=False)

    def _current_http_client(self) -> httpx2.Client:
        """Return the client of this process: after a fork, both processes would read from the same connections."""
        if self._is_owner and self._pid != os.getpid():
            self._http_client, self._pid = self._create_http_client(), os.getpid()
        return self._http_client

    def _create_http_client(self) -> httpx2.Client:
        with checked_environment():
            return httpx2.Client(**http_client_options(self._base_url, self.is_direct))

    async def sleep(self, seconds: float) -> None:
        time.sleep(seconds)  # noqa: ASYNC251 no event loop is blocked

    async def run_blocking(self, work: Callable[[], T]) -> T:
        return work()

    async def close(self) -> None:
        if self._is_owner:
            self._http_client.close()


class BlockingResponse:
    """A response. Another thread may close it while one reads it."""

    def __init__(self, response: httpx2.Response, deadline: float) -> None:
        self.status = response.status_code
        self.headers: Mapping[str, str] = response.headers
        self.is_complete = False
        self._response = response
        self._chunks = response.iter_bytes()
        self._timed_out = False
        self._pid = os.getpid()
        self._deadline_timer: threading.Timer | None = None
        if deadline < math.inf:  # httpx2 limits each read, but not their sum
            self._deadline_timer = _start_timer(max(0.0, deadline - time.monotonic()), self)

    async def read(self) -> bytes:
        try:
            with translate_http_errors():
                chunk = next(self._chunks, b"")
        except ConnectionError:
            if self._timed_out:
                raise TimeoutError from None
            raise
        if self._timed_out:  # shutting down the socket may look like the end of the body
            raise TimeoutError
        if not chunk:
            self.is_complete = True
        return chunk

    async def finish(self, seconds: float) -> None:
        if self._response.http_version == "HTTP/2":  # closing ends the stream, not the connection
            await self.close()
            return
        timer = _start_timer(seconds, self)
        with contextlib.suppress(OSError):  # includes TimeoutError
            while await self.read():
                pass
        timer.cancel()
        await self.close()

    async def close(self) -> None:
        if self._deadline_timer is not None:
            self._deadline_timer.cancel()
        if not self.is_complete:
            self._shut_down()
        self._response.close()

    def __del__(self) -> None:
        """Cancel a response that its reader has dropped, which the connection pool would keep open."""
        run_sync(self.close())

    def on_deadline(self) -> None:
        """End the response: its time is over."""
        self._timed_out = True
        if not self.is_complete:  # else another request may use the connection
            self._shut_down()

    def _shut_down(self) -> None:
        """Wake a thread that waits for bytes. Closing the socket would not wake it."""
        stream = self._response.extensions.get("network_stream")
        if stream is None or self._response.http_version == "HTTP/2":  # other requests share the connection
            return
        if self._pid != os.getpid():  # a fork shares it: closing its descriptor is enough
            return
        connected_socket = stream.get_extra_info("socket")
        if isinstance(connected_socket, socket.socket):
            with contextlib.suppress(OSError):
                socket.socket.shutdown(connected_socket, socket.SHUT_RDWR)  # SSLSocket.shutdown discards its state


def _start_timer(seconds: float, response: BlockingResponse) -> threading.Timer:
    """End the response later, unless its reader has dropped it until then."""
    timer = threading.Timer(seconds, _end_response, (weakref.ref(response),))
    timer.daemon = True
    timer.start()
    return timer


def _end_response(reference: weakref.ref[BlockingResponse]) -> None:
    if (response := reference()) is not None:
        response.on_deadline()


class SendTrace:
    """Records how far a request came. https://httpx2.pydantic.dev/advanced/extensions/#trace"""

    def __init__(self) -> None:
        self._has_opened_connection = self._has_begun = False
        self._sent_at: float | None = None

    def on_event(self, name: str, info: Mapping[str, Any]) -> None:
        """Handle an event of httpcore2."""
        if name.startswith("connection."):
            self._has_opened_connection = True
        elif name.endswith(".send_request_headers.started"):
            self._has_begun = True
        elif name.endswith(".send_request_body.complete"):
            self._sent_at = time.monotonic()

    def may_repeat(self, request: ClientRequest) -> bool:
        """Return whether a failed request can be sent again at once: the server closed an idle connection.

        A server that closes the connection later may have executed a POST, and repeating it can cost money.
        """
        if not self._has_begun or self._has_opened_connection:
            return False
        is_early = self._sent_at is None or time.monotonic() - self._sent_at < IDLE_CLOSE_SECONDS
        return is_early or request.method == "GET"

    async def on_event_async(self, name: str, info: Mapping[str, Any]) -> None:
        """Handle an event of httpcore2 in an event loop."""
        self.on_event(name, info)


def build_http_request(
    http_client: Any, request: ClientRequest, timeouts: RequestTimeouts, trace: Callable[..., Any] | None
) -> httpx2.Request:
    """Build the request with the remaining time as its timeouts.

    Raises TimeoutError if there is none, and UsageError if the client is closed.
    """
    if http_client.is_closed:
        raise UsageError("The client is closed.")
    remaining = timeouts.deadline - time.monotonic()
    if remaining <= 0:
        raise TimeoutError
    timeout = httpx2.Timeout(min(timeouts.idle, remaining), connect=min(timeouts.connect, remaining))
    built: httpx2.Request = http_client.build_request(
        request.method,
        request.url,
        headers=request.headers,
        content=request.body or None,
        timeout=timeout,
        extensions={"trace": trace} if trace else None,
    )
    return built


def http_client_options(base_url: str, direct: bool) -> dict[str, Any]:
    """Return the options of the SDK's own httpx2 clients."""
    limits = httpx2.Limits(
        max_connections=None,
        max_keepalive_connections=SDK_MAX_IDLE_CONNECTIONS,
        keepalive_expiry=SDK_IDLE_CONNECTION_SECONDS,
    )
    return {
        "verify": select_tls_context(base_url, trust_env=not direct),
        "http2": supports_http2(),
        "limits": limits,
        "trust_env": not direct,
    }


@contextlib.contextmanager
def translate_http_errors(proxy: str | None = None) -> Iterator[None]:
    """Raise TimeoutError or ConnectionError for the exceptions of httpx2. `proxy` is that of a new connection."""
    try:
        yield
    except httpx2.TimeoutException as error:
        raise TimeoutError from error
    except HTTP_ERRORS as error:
        raise ConnectionError(describe_http_error(error, proxy)) from error
