"""A TCP line to a fake, whose bytes on the way to the client a test may hold up, cut into pieces, cut off or spoil."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable
from types import TracebackType
from typing import Self


class Line:
    """Listens at `port` and passes on to `target`. `piece` is the most bytes that the client gets at once."""

    def __init__(self, target: int, *, piece: int = 65536) -> None:
        self._target = target
        self._piece = piece
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self.opened = 0
        self._clients: list[socket.socket] = []
        self._servers: list[socket.socket] = []
        self._threads: list[threading.Thread] = []
        self._open = threading.Event()
        self._open.set()

    def __enter__(self) -> Self:
        self._run(self._accept)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.let_go()
        for each in (self._listener, *self._clients, *self._servers):
            with contextlib.suppress(OSError):  # it has ended already
                each.shutdown(socket.SHUT_RDWR)  # which wakes who waits at it
        for thread in self._threads:
            thread.join(5)
        for each in (self._listener, *self._clients, *self._servers):
            each.close()

    def _run(self, work: Callable[..., None], *args: object) -> None:
        self._threads.append(threading.Thread(target=work, args=args, daemon=True))
        self._threads[-1].start()

    def hold(self) -> None:
        """The client hears nothing more, until `let_go`."""
        self._open.clear()

    def let_go(self) -> None:
        self._open.set()

    def cut_off(self) -> None:
        """The client's connections end politely for TCP, and without a word in TLS."""
        self.hold()
        for client in self._clients:
            with contextlib.suppress(OSError):  # it has ended already
                client.shutdown(socket.SHUT_WR)

    def say(self, data: bytes) -> None:
        """To every client, in the middle of what the fake says."""
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
            self._run(self._pass, server, client, self._piece)

    def _pass(self, source: socket.socket, sink: socket.socket, piece: int) -> None:
        try:
            while data := source.recv(65536):
                for start in range(0, len(data), piece):
                    if sink in self._clients:
                        self._open.wait()
                    sink.sendall(data[start : start + piece])
            sink.shutdown(socket.SHUT_WR)
        except OSError:  # one of them is gone, and so is the other
            for each in (source, sink):
                with contextlib.suppress(OSError):
                    each.shutdown(socket.SHUT_RDWR)
