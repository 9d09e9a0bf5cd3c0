"""Recording what an agent sends: a tap before the gateway, and a proxy that rejects and records every other host."""

from __future__ import annotations

import contextlib
import socket
import threading
from dataclasses import dataclass, field
from types import TracebackType
from typing import Self

import httptools

from tests.fakes.tcp_proxy import TcpProxy


@dataclass
class Request:
    """One request of an agent."""

    method: str = ""
    path: str = ""
    headers: list[tuple[str, str]] = field(default_factory=list)
    body: bytes = b""


class Tap(TcpProxy):
    """Forwards to the gateway and records the bytes of the client, connection by connection."""

    def __init__(self, target: int) -> None:
        super().__init__(target)
        self._received: dict[socket.socket, bytearray] = {}

    def _pass(self, source: socket.socket, sink: socket.socket, chunk_bytes: int) -> None:
        if source in self._clients:
            self._received[source] = bytearray()
            source = _Recording(source, self._received[source])  # type: ignore[assignment]
        super()._pass(source, sink, chunk_bytes)

    def requests(self) -> list[Request]:
        """Return the complete requests, in the order of their connections."""
        return [request for data in self._received.values() for request in _parse(bytes(data))]


class _Recording:
    """A socket whose received bytes are recorded."""

    def __init__(self, inner: socket.socket, received: bytearray) -> None:
        self._inner = inner
        self._received = received

    def recv(self, size: int) -> bytes:
        data = self._inner.recv(size)
        self._received += data
        return data

    def shutdown(self, how: int) -> None:
        self._inner.shutdown(how)


def _parse(data: bytes) -> list[Request]:
    """Return the complete requests of one connection."""
    found: list[Request] = []
    current = Request()

    class Callbacks:
        def on_message_begin(self) -> None:
            nonlocal current
            current = Request()

        def on_url(self, url: bytes) -> None:
            current.path += url.decode("latin-1")

        def on_header(self, name: bytes, value: bytes) -> None:
            current.headers.append((name.decode("latin-1").lower(), value.decode("latin-1")))

        def on_body(self, part: bytes) -> None:
            current.body += part

        def on_message_complete(self) -> None:
            current.method = parser.get_method().decode("latin-1")
            found.append(current)

    parser = httptools.HttpRequestParser(Callbacks())
    with contextlib.suppress(httptools.HttpParserError, httptools.HttpParserUpgrade):
        parser.feed_data(data)
    return found


class RejectingProxy:
    """An HTTP proxy that answers 403 to everything. `hosts` are the hosts that were asked for."""

    def __init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self.hosts: set[str] = set()
        self._thread = threading.Thread(target=self._accept, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join(5)

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            with client, contextlib.suppress(OSError):
                client.settimeout(2)
                words = client.recv(4096).decode("latin-1").split(" ")
                if len(words) > 1:
                    self.hosts.add(words[1].removeprefix("http://").split("/")[0].rpartition(":")[0] or words[1])
                client.sendall(b"HTTP/1.1 403 Forbidden\r\ncontent-length: 0\r\nconnection: close\r\n\r\n")
