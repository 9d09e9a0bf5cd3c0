"""Sends one HTTP/1.1 request on a connection and reads the response in chunks. No retries, pool or JSON.

https://www.rfc-editor.org/rfc/rfc9112
"""

from __future__ import annotations

from collections.abc import Mapping

import httptools

from svc.client.transport import TransportConnection

SDK_MAX_RESPONSE_HEAD_BYTES = 256 << 10


class MalformedResponse(ConnectionError):
    """The server did not send an HTTP response."""


class HttpResponse:
    """A response. `read_head` reads its head, `read` its body."""

    def __init__(self, connection: TransportConnection) -> None:
        self.connection = connection
        self.status = 0
        self.headers: dict[str, str] = {}
        self.is_complete = False
        """The whole body was received."""
        self.is_reusable = False
        """The response is complete, and the connection can be reused."""
        self._chunks: list[bytes] = []
        self._has_head = False
        self._parser = httptools.HttpResponseParser(self)

    async def read_head(self, timeout: float) -> None:
        """Read the head. Raises TimeoutError, ConnectionError and MalformedResponse, which are OSErrors."""
        received_bytes = 0
        while not self._has_head:
            data = await self.connection.read(timeout)
            if not data:
                raise ConnectionError("the connection was closed before a response")
            received_bytes += len(data)
            if received_bytes > SDK_MAX_RESPONSE_HEAD_BYTES + (1 << 16):
                raise MalformedResponse("the response head is too long")
            self._feed(data)

    async def read(self, timeout: float) -> bytes:
        """Return the next bytes of the body, or b"" at its end. Raises ConnectionError if it is interrupted."""
        while not self._chunks and not self.is_complete:
            data = await self.connection.read(timeout)
            if data:
                self._feed(data)
            elif "content-length" in self.headers or "transfer-encoding" in self.headers:
                raise ConnectionError("the connection was closed during the response")
            else:
                self.is_complete = True
        data = b"".join(self._chunks)
        self._chunks.clear()
        return data

    def _feed(self, data: bytes) -> None:
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            raise MalformedResponse(f"the response is not HTTP: {error or type(error).__name__}") from None

    # callbacks of the parser

    def on_header(self, name: bytes, value: bytes) -> None:
        self.headers[name.decode("latin-1").lower()] = value.decode("latin-1")

    def on_headers_complete(self) -> None:
        self.status = self._parser.get_status_code()
        if self.status >= 200:
            self._has_head = True

    def on_body(self, data: bytes) -> None:
        self._chunks.append(data)

    def on_message_complete(self) -> None:
        if self.status >= 200:
            self.is_complete = True
            self.is_reusable = bool(self._parser.should_keep_alive())
        else:
            self.headers.clear()  # 1xx: the final response follows (RFC 9110, section 15.2)


def encode_request(method: str, path: str, host: str, headers: Mapping[str, str], body: bytes) -> bytes:
    """Encode the request. Callers check header names and values."""
    lines = [f"{method} {path} HTTP/1.1", f"host: {host}"]
    lines += [f"{name}: {value}" for name, value in headers.items()]
    lines += [f"content-length: {len(body)}", "", ""] if body or method == "POST" else ["", ""]
    return "\r\n".join(lines).encode("ascii") + body
