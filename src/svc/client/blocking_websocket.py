"""WebSockets of `Client`, with `websockets.sync`. A thread of that library receives messages ahead of their reader."""

from __future__ import annotations

import contextlib
import os
import socket
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from websockets.exceptions import ConnectionClosed
from websockets.sync.client import ClientConnection, connect

from svc.client.transport import WebSocketReceiver

T = TypeVar("T")

ABORT_TIMEOUT_SECONDS = 1.0
"""The longest wait for the thread of the library, which ends at once unless its queue is full."""


async def open_websocket(url: str, headers: Mapping[str, str], **options: Any) -> BlockingWebSocket:
    """Connect and do the handshake. Raises OSError, and InvalidHandshake of `websockets`."""
    return BlockingWebSocket(connect(url, additional_headers=headers, legacy=True, **options))


class BlockingWebSocket:
    """A WebSocket. `svc.client.transport` defines the interface."""

    def __init__(self, connection: ClientConnection) -> None:
        self._connection = connection
        self._pid = os.getpid()
        self._send_lock = threading.Lock()
        self._changed = threading.Condition()
        self._is_receiving = False
        self._received_at = time.monotonic()

    async def send(self, message: str | bytes, timeout: float) -> None:
        deadline = time.monotonic() + timeout
        if not self._send_lock.acquire(timeout=timeout):
            raise TimeoutError
        try:
            # The thread of the library holds this mutex while it sends a pong to a server that does not read.
            if not self._connection.protocol_mutex.acquire(timeout=max(0.0, deadline - time.monotonic())):
                raise TimeoutError
            self._connection.protocol_mutex.release()
            with contextlib.suppress(OSError):  # the socket is closed: `send` below reports it
                self._connection.socket.settimeout(max(0.001, deadline - time.monotonic()))
            self._connection.send(message)
        except ConnectionClosed as error:
            if isinstance(error.__cause__, TimeoutError):
                raise TimeoutError from error
            raise ConnectionError(str(error)) from error
        finally:
            self._send_lock.release()

    async def receive_until(
        self, take: Callable[[], T | None], receiver: WebSocketReceiver, idle_timeout: float, deadline: float
    ) -> T:
        started_at = time.monotonic()
        with self._changed:
            while (result := take()) is None:
                idle_deadline = max(started_at, self._received_at) + idle_timeout
                remaining = min(deadline, idle_deadline) - time.monotonic()
                if remaining <= 0:
                    raise TimeoutError
                if self._is_receiving:
                    self._changed.wait(remaining)
                else:
                    self._receive(receiver, remaining)
            return result

    def _receive(self, receiver: WebSocketReceiver, timeout: float) -> None:
        """Receive one message, or nothing if the time is over. Releases the lock of `_changed` while it waits."""
        raw, closed = b"", None
        self._is_receiving = True
        self._changed.release()
        try:
            raw = self._connection.recv(timeout, decode=False)
        except TimeoutError:
            return
        except ConnectionClosed as error:
            closed = error
        finally:
            self._changed.acquire()
            self._is_receiving = False
            self._changed.notify_all()
        if closed is not None:
            receiver.on_close(closed)
        else:
            self._received_at = time.monotonic()
            receiver.on_message(raw)

    def update(self, change: Callable[[], None]) -> None:
        with self._changed:
            change()
            self._changed.notify_all()

    def caller_id(self) -> int:
        return threading.get_ident()

    def abort(self) -> None:
        connected_socket = self._connection.socket
        connected_socket = getattr(connected_socket, "ssl_socket", connected_socket)  # TLS in the TLS of a proxy
        if isinstance(connected_socket, socket.socket) and self._pid == os.getpid():  # a fork shares the connection
            with contextlib.suppress(OSError):  # wakes a thread that sends, which closing the socket would not do
                socket.socket.shutdown(connected_socket, socket.SHUT_RDWR)  # SSLSocket.shutdown discards its state
            # The thread of the library logs an error if the connection is closed while it handles data.
            self._connection.recv_events_thread.join(ABORT_TIMEOUT_SECONDS)
        self._connection.close_socket()
