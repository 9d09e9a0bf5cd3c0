"""The interface of the two transports, and `run_sync`. `blocking_transport` and `async_transport` implement it.

The client library is written once, as coroutines over `ClientTransport`. The blocking transport never suspends, so
`run_sync` can run a coroutine without an event loop.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import msgspec

if TYPE_CHECKING:
    from websockets.exceptions import ConnectionClosed

T = TypeVar("T")

SDK_MAX_IDLE_CONNECTIONS = 8
"""The maximum number of idle connections in the pool."""
SDK_IDLE_CONNECTION_SECONDS = 30.0


class ClientRequest(msgspec.Struct, frozen=True):
    """An HTTP request."""

    method: str
    url: str
    headers: Mapping[str, str]
    body: bytes = b""

    def __repr__(self) -> str:
        return f"ClientRequest({self.method!r}, {self.url!r})"  # never the key


class RequestTimeouts(msgspec.Struct, frozen=True):
    """Timeouts in seconds. `idle` is the longest wait for a byte. `deadline` is a time of the monotonic clock."""

    connect: float
    idle: float
    deadline: float


class ClientResponse(Protocol):
    """A response whose body is read in chunks. Methods raise TimeoutError, or ConnectionError if the response fails."""

    status: int
    headers: Mapping[str, str]
    """The headers. Their names are case-insensitive."""
    is_complete: bool
    """Whether the whole body was read."""

    async def read(self) -> bytes:
        """Return the next bytes of the body, or b"" at its end."""

    async def finish(self, seconds: float) -> None:
        """Read what follows the last event of a stream, for at most some seconds, and close the response.

        The connection is then reusable. Failures are ignored, since the stream is complete without it.
        """

    async def close(self) -> None:
        """Cancel the rest of the response. Safe to call twice."""


class ClientTransport(Protocol):
    """Sends requests and waits."""

    websocket_module: str
    """The module of `svc.client` that opens WebSockets."""
    is_direct: bool
    """Whether the proxies of the environment are ignored."""

    async def send(self, request: ClientRequest, timeouts: RequestTimeouts) -> ClientResponse:
        """Return the response to a request. Raises TimeoutError and ConnectionError."""

    async def sleep(self, seconds: float) -> None: ...

    async def run_blocking(self, work: Callable[[], T]) -> T:
        """Run blocking work."""

    async def close(self) -> None:
        """Close the connections, unless the caller of the SDK owns them."""


class WebSocketReceiver(Protocol):
    """Handles the messages of a WebSocket. The connection calls one method at a time."""

    def on_message(self, raw: bytes) -> None: ...

    def on_close(self, error: ConnectionClosed) -> None: ...


class WebSocketConnection(Protocol):
    """A WebSocket. Several threads or tasks may call its methods at the same time."""

    async def send(self, message: str | bytes, timeout: float) -> None:
        """Send a message. Raises TimeoutError after `timeout` seconds, and ConnectionError if the WebSocket is closed.

        The connection cannot be used after a TimeoutError.
        """

    async def receive_until(
        self, take: Callable[[], T | None], receiver: WebSocketReceiver, idle_timeout: float, deadline: float
    ) -> T:
        """Receive until `take` returns a result, and return it. `receiver` handles each message.

        If several callers wait, one of them receives for all. `take` runs before the first message and after each.
        Raises TimeoutError after `idle_timeout` seconds without a message, and at `deadline` of the monotonic clock.
        """

    def update(self, change: Callable[[], None]) -> None:
        """Run `change` while no callback of `receive_until` runs. Each caller of `receive_until` checks again."""

    def caller_id(self) -> int:
        """Return the id of the current thread or task."""

    def abort(self) -> None:
        """Close the connection without a message. Safe to call twice."""


def run_sync(coroutine: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine over the blocking transport, which never suspends."""
    try:
        coroutine.send(None)
    except StopIteration as stop:
        result: T = stop.value
        return result
    coroutine.close()
    raise RuntimeError("a coroutine over the blocking transport has suspended")
