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

PIECE = 1 << 16
LOOK_AGAIN = 0.25
"""Seconds."""
AHEAD = 64 << 20
"""Bytes that may come while we still write; a server that says more before it was heard out is cut off."""


class Origin(msgspec.Struct, frozen=True):
    """Where a connection goes."""

    host: str
    port: int
    tls: bool


class Wire(Protocol):
    """One connection. Times are seconds; TimeoutError when they are over, other OSErrors when it breaks."""

    async def read(self, timeout: float) -> bytes:
        """The next bytes; none at the end."""

    def push(self, data: bytes, timeout: float) -> None:
        """Gives bytes away; the order of calls is the order of bytes."""

    async def settle(self, timeout: float) -> None:
        """Waits until the other side has taken what was pushed, or nearly."""

    @property
    def stale(self) -> bool:
        """An unused connection that the other side has closed, or said something on."""

    def close(self) -> None: ...


class Net(Protocol):
    """How bytes move and time passes."""

    async def connect(self, origin: Origin, timeout: float) -> Wire: ...

    async def sleep(self, seconds: float) -> None: ...

    async def call(self, work: Callable[[], T]) -> T:
        """Runs blocking work."""


def run(work: Coroutine[Any, Any, T]) -> T:
    """Drives a coroutine over the blocking net, which never suspends."""
    try:
        work.send(None)
    except StopIteration as done:
        result: T = done.value
        return result
    work.close()
    raise RuntimeError("a coroutine over the blocking net has suspended")


class BlockingNet:
    """For `Client`."""

    async def connect(self, origin: Origin, timeout: float) -> Wire:
        plain = socket.create_connection((origin.host, origin.port), timeout)
        try:
            plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            secured = tls().wrap_socket(plain, server_hostname=origin.host) if origin.tls else plain
        except BaseException:
            plain.close()
            raise
        secured.setblocking(False)
        return BlockingWire(secured)

    async def sleep(self, seconds: float) -> None:
        time.sleep(seconds)  # noqa: ASYNC251 there is no loop to be blocked

    async def call(self, work: Callable[[], T]) -> T:
        return work()


class BlockingWire:
    """Reads while it writes, so that two sides that are both full of words do not wait for each other for ever.

    One thread may read while another writes.
    """

    def __init__(self, sock: socket.socket) -> None:
        self._socket = sock
        self._lock = threading.Lock()
        self._ahead = bytearray()
        self._ended = False

    async def read(self, timeout: float) -> bytes:
        deadline = time.monotonic() + timeout
        while True:
            with self._lock:
                if not self._ahead and not self._ended:
                    self._take()
                if self._ahead or self._ended:
                    data = bytes(self._ahead)
                    self._ahead.clear()
                    return data
            # Whoever writes may take what comes, so this looks again now and then.
            self._wait(min(deadline, time.monotonic() + LOOK_AGAIN), deadline, write=False)

    def push(self, data: bytes, timeout: float) -> None:
        view = memoryview(data)
        deadline = time.monotonic() + timeout
        while view:
            with self._lock:
                try:
                    view = view[self._socket.send(view[:PIECE]) :]
                    continue
                except (ssl.SSLWantReadError, ssl.SSLWantWriteError, BlockingIOError):
                    self._take()
            self._wait(deadline, deadline, write=True)

    async def settle(self, timeout: float) -> None:
        """Nothing to wait for: `push` has waited."""

    def _take(self) -> None:
        """What has come, without waiting."""
        if self._ended:
            return
        with contextlib.suppress(ssl.SSLWantReadError, ssl.SSLWantWriteError, BlockingIOError):
            data = self._socket.recv(PIECE)
            self._ended = not data
            self._ahead += data
        if len(self._ahead) > AHEAD:
            raise ConnectionError("the server says too much before it was heard out")

    def _wait(self, until: float, deadline: float, *, write: bool) -> None:
        now = time.monotonic()
        if now >= deadline:
            raise TimeoutError("timed out")
        place = self._socket.fileno()
        if place < 0:
            raise ConnectionError("the connection was closed here")
        waiting = select.poll()
        waiting.register(place, (0 if self._ended else select.POLLIN) | (select.POLLOUT if write else 0))
        waiting.poll(max(0.0, until - now) * 1000)

    @property
    def stale(self) -> bool:
        with self._lock:
            try:
                self._take()
            except OSError:
                return True
            return bool(self._ahead) or self._ended

    def close(self) -> None:
        self._socket.close()


def tls() -> ssl.SSLContext:
    """Verifies certificates and names; `SSL_CERT_FILE` names other authorities."""
    context = ssl.create_default_context()
    context.set_alpn_protocols(["http/1.1"])
    return context
