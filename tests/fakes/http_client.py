"""A client on a plain socket, for requests that no library would send. httptools parses the responses.

with RawClient(port) as raw:
    raw.send(b"GET /health HTTP/1.1\\r\
host: x\\r\
\\r\
")
    got = raw.read()
    got.status, got.headers["content-type"], got.json
"""

from __future__ import annotations

import json
import socket
import struct
from typing import Any, Self

import httptools


class Got:
    """A response. `whole` is false if the connection ended before the response was complete."""

    def __init__(self) -> None:
        self.status = 0
        self.header_list: list[tuple[str, str]] = []
        self.chunks: list[bytes] = []
        self.whole = False
        self.headed = False

    @property
    def body(self) -> bytes:
        self.chunks[:] = [b"".join(self.chunks)]
        return self.chunks[0]

    @property
    def headers(self) -> dict[str, str]:
        return dict(self.header_list)

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def code(self) -> str:
        return str(self.json["error"]["code"])


class RawClient:
    """A connection from `source` to 127.0.0.1:port. Every wait raises TimeoutError after `timeout` seconds."""

    def __init__(self, port: int, *, timeout: float = 30.0, source: str = "127.0.0.1") -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=timeout, source_address=(source, 0))
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._parser: Any = None
        self._done: list[Got] = []
        self._got = Got()
        self._continue_count = 0
        self._new_parser()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()

    def send(self, data: bytes) -> None:
        self.socket.sendall(data)

    def request(
        self,
        method: str,
        path: str,
        body: bytes | dict[str, Any] | None = None,
        *,
        key: str | None = None,
        headers: dict[str, str] | None = None,
    ) -> Got:
        """Send an ordinary request and return its response."""
        self.send(request_bytes(method, path, body, key=key, headers=headers))
        return self.read(head_only=method == "HEAD")

    def read(self, *, head_only: bool = False) -> Got:
        """Return the next response, without 1xx responses. If the connection ends first, return the part received."""
        while True:
            if self._done:
                return self._done.pop(0)
            if head_only and self._got.headed:
                got, self._got = self._got, Got()
                self._new_parser()
                return got
            if not self._receive():
                return self._ended()

    def read_until(self, mark: bytes) -> Got:
        """Return the response so far, once its body contains `mark` or the response has ended."""
        while mark not in self._got.body:
            if self._done:
                return self._done[0]
            if not self._receive():
                return self._ended()
        return self._got

    def read_continue(self) -> bool:
        """Wait for a 100 response that no earlier call has consumed."""
        while not self._continue_count and self._receive():
            continue
        count, self._continue_count = self._continue_count, 0
        return count == 1

    def closed(self) -> bool:
        """Wait until the server closes the connection without more data. Raises TimeoutError."""
        try:
            return self.socket.recv(1) == b""
        except ConnectionError:
            return True

    def reset(self) -> None:
        """Close with RST."""
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.socket.close()

    def _receive(self) -> bool:
        try:
            data = self.socket.recv(65536)
        except ConnectionError:
            return False
        if data:
            self._parser.feed_data(data)
        return bool(data)

    def _ended(self) -> Got:
        got, self._got = self._got, Got()
        framed = {"content-length", "transfer-encoding"} & {name for name, _ in got.header_list}
        got.whole = got.headed and not framed
        return got

    def _new_parser(self) -> None:
        self._parser = httptools.HttpResponseParser(self)

    # httptools callbacks

    def on_message_begin(self) -> None:
        self._got = Got()

    def on_header(self, name: bytes, value: bytes) -> None:
        self._got.header_list.append((name.decode("latin-1").lower(), value.decode("latin-1")))

    def on_headers_complete(self) -> None:
        self._got.status = self._parser.get_status_code()
        self._got.headed = True

    def on_body(self, data: bytes) -> None:
        self._got.chunks.append(data)

    def on_message_complete(self) -> None:
        if self._got.status >= 200:
            self._got.whole = True
            self._done.append(self._got)
            self._got = Got()
        elif self._got.status == 100:
            self._continue_count += 1


def request_bytes(
    method: str,
    path: str,
    body: bytes | dict[str, Any] | None = None,
    *,
    key: str | None = None,
    headers: dict[str, str] | None = None,
) -> bytes:
    """Return an ordinary request as bytes. `headers` replace the default ones. An empty value removes one."""
    data = json.dumps(body).encode() if isinstance(body, dict) else body
    named = {"host": "127.0.0.1"}
    if key is not None:
        named["authorization"] = f"Bearer {key}"
    if data is not None:
        named |= {"content-type": "application/json", "content-length": str(len(data))}
    named |= headers or {}
    lines = [f"{method} {path} HTTP/1.1", *(f"{name}: {value}" for name, value in named.items() if value)]
    return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1") + (data or b"")
