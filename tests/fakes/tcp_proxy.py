"""A TCP proxy before a fake. A test can delay, split, truncate or corrupt the bytes to the client."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import Self


class TcpProxy:
    """Listens on `port` and forwards to `target`. `chunk_bytes` limits each write to the client."""

    def __init__(self, target: int, *, port: int = 0, chunk_bytes: int = 65536) -> None:
        self._target = target
        self._chunk_bytes = chunk_bytes
        self._listener = socket.create_server(("127.0.0.1", port))
        self.port: int = self._listener.getsockname()[1]
        self.opened = 0
        self.delay_seconds = 0.0
        """The delay of the bytes to the client, which a test can change."""
        self._clients: list[socket.socket] = []
        self._servers: list[socket.socket] = []
        self._threads: list[threading.Thread] = []
        self._open = threading.Event()
        self._open.set()

    def __enter__(self) -> Self:
        self._run(self._accept)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.release()
        for each in (self._listener, *self._clients, *self._servers):
            with contextlib.suppress(OSError):  # it has already ended
                each.shutdown(socket.SHUT_RDWR)  # wakes the thread that reads from it
        for thread in self._threads:
            thread.join(5)
        for each in (self._listener, *self._clients, *self._servers):
            each.close()

    def _run(self, work: Callable[..., None], *args: object) -> None:
        self._threads.append(threading.Thread(target=work, args=args, daemon=True))
        self._threads[-1].start()

    def hold(self) -> None:
        """Send nothing more to the client until `release`."""
        self._open.clear()

    def release(self) -> None:
        self._open.set()

    def close_without_tls_alert(self) -> None:
        """Close the client's connections with FIN, without a TLS close_notify."""
        self.hold()
        for client in self._clients:
            with contextlib.suppress(OSError):  # it has already ended
                client.shutdown(socket.SHUT_WR)

    def inject(self, data: bytes) -> None:
        """Send these bytes to every client in the middle of the response."""
        for client in self._clients:
            client.sendall(data)

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            self.opened += 1
            self._clients.append(client)
            client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            server = socket.create_connection(("127.0.0.1", self._target))
            self._servers.append(server)
            self._run(self._pass, client, server, 65536)
            self._run(self._pass, server, client, self._chunk_bytes)

    def _pass(self, source: socket.socket, sink: socket.socket, chunk_bytes: int) -> None:
        try:
            while data := source.recv(65536):
                for start in range(0, len(data), chunk_bytes):
                    if sink in self._clients:
                        time.sleep(self.delay_seconds)
                        self._open.wait()
                    sink.sendall(data[start : start + chunk_bytes])
            sink.shutdown(socket.SHUT_WR)
        except OSError:  # one connection has ended, so the other is closed
            for each in (source, sink):
                with contextlib.suppress(OSError):
                    each.shutdown(socket.SHUT_RDWR)
