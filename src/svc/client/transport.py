"""Byte streams to a server behind one seam; here the blocking ones, asyncio's are in `loop`. No HTTP here.

All of the SDK is written once, as coroutines over `Net`. The blocking net never suspends, so `run` drives a coroutine
to its end without an event loop.
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
"""Seconds."""
MAX_READ_AHEAD_BYTES = 64 << 20
"""Bytes that may come while we still write; a server that says more before it was heard out is cut off."""


class ServerOrigin(msgspec.Struct, frozen=True):
    """Where a connection goes."""

    host: str
    port: int
    tls: bool


class TransportConnection(Protocol):
    """One connection. Times are seconds; TimeoutError when they are over, other OSErrors when it breaks."""

    async def read(self, timeout: float) -> bytes:
        """The next bytes; none at the end."""

    def write(self, data: bytes, timeout: float) -> None:
        """Gives bytes away; the order of calls is the order of bytes."""

    async def drain(self, timeout: float) -> None:
        """Waits until the other side has taken what was pushed, or nearly."""

    @property
    def is_stale(self) -> bool:
        """An unused connection that the other side has closed, or said something on."""

    def close(self) -> None: ...


class ClientTransport(Protocol):
    """How bytes move and time passes."""

    async def connect(self, origin: ServerOrigin, timeout: float) -> TransportConnection: ...

    async def sleep(self, seconds: float) -> None: ...

    async def run_blocking(self, work: Callable[[], T]) -> T:
        """Runs blocking work."""


def run_sync(coroutine: Coroutine[Any, Any, T]) -> T:
    """Drives a coroutine over the blocking net, which never suspends."""
    try:
        coroutine.send(None)
    except StopIteration as stop:
        result: T = stop.value
        return result
    coroutine.close()
    raise RuntimeError("a coroutine over the blocking net has suspended")


class BlockingTransport:
    """For `Client`."""

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
        time.sleep(seconds)  # noqa: ASYNC251 there is no loop to be blocked

    async def run_blocking(self, work: Callable[[], T]) -> T:
        return work()


class BlockingConnection:
    """Reads while it writes, so that two sides that are both full of words do not wait for each other for ever.

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
            # Whoever writes may take what comes, so this looks again now and then.
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
        """Nothing to wait for: `push` has waited."""

    def _read_available(self) -> None:
        """What has come, without waiting."""
        if self._at_eof:
            return
        with contextlib.suppress(ssl.SSLWantReadError, ssl.SSLWantWriteError, BlockingIOError):
            data = self._socket.recv(TRANSPORT_CHUNK_BYTES)
            self._at_eof = not data
            self._read_ahead += data
        if len(self._read_ahead) > MAX_READ_AHEAD_BYTES:
            raise ConnectionError("the server says too much before it was heard out")

    def _wait_ready(self, wake_at: float, deadline: float, *, for_write: bool) -> None:
        now = time.monotonic()
        if now >= deadline:
            raise TimeoutError("timed out")
        fd = self._socket.fileno()
        if fd < 0:
            raise ConnectionError("the connection was closed here")
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
    """Verifies certificates and names; `SSL_CERT_FILE` names other authorities."""
    context = ssl.create_default_context()
    context.set_alpn_protocols(["http/1.1"])
    return context
