"""The transport interface and its blocking implementation. `async_transport` has the asyncio one. No HTTP.

The client library is written once, as coroutines over `ClientTransport`. The blocking transport never suspends, so
`run_sync` can run a coroutine without an event loop.
"""

from __future__ import annotations

import contextlib
import select
import socket
import ssl
import threading
import time
from collections.abc import Callable, Coroutine
from typing import Any, Protocol, TypeVar

import msgspec

T = TypeVar("T")

TRANSPORT_CHUNK_BYTES = 1 << 16
READ_POLL_SECONDS = 0.25
"""The interval at which a reader checks for bytes that a writer has received."""
MAX_READ_AHEAD_BYTES = 64 << 20
"""Bytes that are buffered while a write is in progress. Above it the connection fails."""


class ServerOrigin(msgspec.Struct, frozen=True):
    """The address of a server."""

    host: str
    port: int
    tls: bool


class TransportConnection(Protocol):
    """A connection. Timeouts are in seconds. Methods raise TimeoutError, or another OSError if the connection fails."""

    async def read(self, timeout: float) -> bytes:
        """Return the next bytes, or b"" at the end."""

    def write(self, data: bytes, timeout: float) -> None:
        """Write or buffer bytes. Keeps the order of the calls."""

    async def drain(self, timeout: float) -> None:
        """Wait until the written bytes are sent, or nearly."""

    @property
    def is_stale(self) -> bool:
        """Whether the server has closed the idle connection, or sent something on it."""

    def close(self) -> None: ...


class ClientTransport(Protocol):
    """Opens connections and waits."""

    async def connect(self, origin: ServerOrigin, timeout: float) -> TransportConnection: ...

    async def sleep(self, seconds: float) -> None: ...

    async def run_blocking(self, work: Callable[[], T]) -> T:
        """Run blocking work."""


def run_sync(coroutine: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine over the blocking transport, which never suspends."""
    try:
        coroutine.send(None)
    except StopIteration as stop:
        result: T = stop.value
        return result
    coroutine.close()
    raise RuntimeError("a coroutine over the blocking transport has suspended")


class BlockingTransport:
    """Connects with blocking sockets."""

    async def connect(self, origin: ServerOrigin, timeout: float) -> TransportConnection:
        tcp_socket = socket.create_connection((origin.host, origin.port), timeout)
        try:
            tcp_socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            connected_socket = (
                create_tls_context().wrap_socket(tcp_socket, server_hostname=origin.host) if origin.tls else tcp_socket
            )
        except BaseException:
            tcp_socket.close()
            raise
        connected_socket.setblocking(False)
        return BlockingConnection(connected_socket)

    async def sleep(self, seconds: float) -> None:
        time.sleep(seconds)  # noqa: ASYNC251 no event loop is blocked

    async def run_blocking(self, work: Callable[[], T]) -> T:
        return work()


class BlockingConnection:
    """A connection that reads while it writes. Otherwise both sides could wait for each other with full buffers.

    One thread may read while another writes.
    """

    def __init__(self, sock: socket.socket) -> None:
        self._socket = sock
        self._lock = threading.Lock()
        self._read_ahead = bytearray()
        self._at_eof = False

    async def read(self, timeout: float) -> bytes:
        deadline = time.monotonic() + timeout
        while True:
            with self._lock:
                if not self._read_ahead and not self._at_eof:
                    self._read_available()
                if self._read_ahead or self._at_eof:
                    data = bytes(self._read_ahead)
                    self._read_ahead.clear()
                    return data
            # A writer may receive the bytes meanwhile, so this polls.
            self._wait_ready(min(deadline, time.monotonic() + READ_POLL_SECONDS), deadline, for_write=False)

    def write(self, data: bytes, timeout: float) -> None:
        view = memoryview(data)
        deadline = time.monotonic() + timeout
        while view:
            with self._lock:
                try:
                    view = view[self._socket.send(view[:TRANSPORT_CHUNK_BYTES]) :]
                    continue
                except (ssl.SSLWantReadError, ssl.SSLWantWriteError, BlockingIOError):
                    self._read_available()
            self._wait_ready(deadline, deadline, for_write=True)

    async def drain(self, timeout: float) -> None:
        """Return at once: `write` waits by itself."""

    def _read_available(self) -> None:
        """Receive available bytes without waiting."""
        if self._at_eof:
            return
        with contextlib.suppress(ssl.SSLWantReadError, ssl.SSLWantWriteError, BlockingIOError):
            data = self._socket.recv(TRANSPORT_CHUNK_BYTES)
            self._at_eof = not data
            self._read_ahead += data
        if len(self._read_ahead) > MAX_READ_AHEAD_BYTES:
            raise ConnectionError("the server sent too much before the request was complete")

    def _wait_ready(self, wake_at: float, deadline: float, *, for_write: bool) -> None:
        now = time.monotonic()
        if now >= deadline:
            raise TimeoutError("timed out")
        fd = self._socket.fileno()
        if fd < 0:
            raise ConnectionError("the connection was closed by the client")
        poller = select.poll()
        poller.register(fd, (0 if self._at_eof else select.POLLIN) | (select.POLLOUT if for_write else 0))
        poller.poll(max(0.0, wake_at - now) * 1000)

    @property
    def is_stale(self) -> bool:
        with self._lock:
            try:
                self._read_available()
            except OSError:
                return True
            return bool(self._read_ahead) or self._at_eof

    def close(self) -> None:
        self._socket.close()


def create_tls_context() -> ssl.SSLContext:
    """Create a context that verifies certificates and host names. `SSL_CERT_FILE` sets other authorities."""
    context = ssl.create_default_context()
    context.set_alpn_protocols(["http/1.1"])
    return context
