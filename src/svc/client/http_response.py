"""One HTTP/1.1 request on a wire, and its answer piece by piece. No retries, no pool, no JSON."""

from __future__ import annotations

from collections.abc import Mapping

import httptools

from svc.client.transport import TransportConnection

SDK_MAX_RESPONSE_HEAD_BYTES = 256 << 10


class MalformedResponse(ConnectionError):
    """What came is no HTTP answer."""


class HttpResponse:
    """The head has come; the body comes with `read`."""

    def __init__(self, connection: TransportConnection) -> None:
        self.connection = connection
        self.status = 0
        self.headers: dict[str, str] = {}
        self.is_complete = False
        """The whole body has come."""
        self.is_reusable = False
        """And another request may go over this wire."""
        self._chunks: list[bytes] = []
        self._has_head = False
        self._parser = httptools.HttpResponseParser(self)

    async def read_head(self, timeout: float) -> None:
        """Waits for the head. Raises OSErrors: TimeoutError, ConnectionError, Malformed."""
        received_bytes = 0
        while not self._has_head:
            data = await self.connection.read(timeout)
            if not data:
                raise ConnectionError("the connection was closed before an answer came")
            received_bytes += len(data)
            if received_bytes > SDK_MAX_RESPONSE_HEAD_BYTES + (1 << 16):
                raise MalformedResponse("the answer's head is too long")
            self._feed(data)

    async def read(self, timeout: float) -> bytes:
        """The next bytes of the body; none when it is whole. Raises ConnectionError when it breaks off."""
        while not self._chunks and not self.is_complete:
            data = await self.connection.read(timeout)
            if data:
                self._feed(data)
            elif "content-length" in self.headers or "transfer-encoding" in self.headers:
                raise ConnectionError("the connection was closed in the middle of an answer")
            else:
                self.is_complete = True
        data = b"".join(self._chunks)
        self._chunks.clear()
        return data

    def _feed(self, data: bytes) -> None:
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            raise MalformedResponse(f"the answer is not HTTP: {error or type(error).__name__}") from None

    # the parser's callbacks

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
            self.headers.clear()  # 100 Continue and its like: the answer is still to come


def encode_request(method: str, path: str, host: str, headers: Mapping[str, str], body: bytes) -> bytes:
    """The request's bytes. Names and values are ours, or were checked."""
    lines = [f"{method} {path} HTTP/1.1", f"host: {host}"]
    lines += [f"{name}: {value}" for name, value in headers.items()]
    lines += [f"content-length: {len(body)}", "", ""] if body or method == "POST" else ["", ""]
    return "\r\n".join(lines).encode("ascii") + body
