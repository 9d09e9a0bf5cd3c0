"""A provider that sends events as fast as the client reads them, on any number of connections, without end."""

from __future__ import annotations

import contextlib
import socket
import threading
from types import TracebackType
from typing import Self

from tests.fakes import openai_wire

BLOCK = 256 * 1024


class FloodProvider:
    """Uses one thread per connection, which ends with its connection. `address` is `http://127.0.0.1:PORT`."""

    def __init__(self) -> None:
        first, text = openai_wire.stream("x")[:2]
        chunk = b"%x\r\n%b\r\n" % (len(text), text)
        self._head = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
        self._head += b"%x\r\n%b\r\n" % (len(first), first)
        self._block = chunk * (BLOCK // len(chunk))
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=1024)
        self.address = f"http://127.0.0.1:{self._listener.getsockname()[1]}"

    def __enter__(self) -> Self:
        threading.Thread(target=self._accept, name="flood", daemon=True).start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        with client, contextlib.suppress(OSError):
            while b"\r\n\r\n" not in client.recv(1 << 16):
                pass
            client.sendall(self._head)
            while True:
                client.sendall(self._block)
