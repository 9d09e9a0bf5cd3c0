"""One HTTP/1.1 request on a wire, and its answer piece by piece. No retries, no pool, no JSON."""

from __future__ import annotations

from collections.abc import Mapping

import httptools

from svc.client.wires import Wire

MAX_HEAD = 256 << 10


class Malformed(ConnectionError):
    """What came is no HTTP answer."""


class Answer:
    """The head has come; the body comes with `read`."""

    def __init__(self, wire: Wire) -> None:
        self.wire = wire
        self.status = 0
        self.headers: dict[str, str] = {}
        self.ended = False
        """The whole body has come."""
        self.reusable = False
        """And another request may go over this wire."""
        self._pieces: list[bytes] = []
        self._complete_head = False
        self._parser = httptools.HttpResponseParser(self)

    async def begin(self, timeout: float) -> None:
        """Waits for the head. Raises OSErrors: TimeoutError, ConnectionError, Malformed."""
        seen = 0
        while not self._complete_head:
            data = await self.wire.read(timeout)
            if not data:
                raise ConnectionError("the connection was closed before an answer came")
            seen += len(data)
            if seen > MAX_HEAD + (1 << 16):
                raise Malformed("the answer's head is too long")
            self._feed(data)

    async def read(self, timeout: float) -> bytes:
        """The next bytes of the body; none when it is whole. Raises ConnectionError when it breaks off."""
        while not self._pieces and not self.ended:
            data = await self.wire.read(timeout)
            if data:
                self._feed(data)
            elif "content-length" in self.headers or "transfer-encoding" in self.headers:
                raise ConnectionError("the connection was closed in the middle of an answer")
            else:
                self.ended = True
        data = b"".join(self._pieces)
        self._pieces.clear()
        return data

    def _feed(self, data: bytes) -> None:
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            raise Malformed(f"the answer is not HTTP: {error or type(error).__name__}") from None

    # the parser's callbacks

    def on_header(self, name: bytes, value: bytes) -> None:
        self.headers[name.decode("latin-1").lower()] = value.decode("latin-1")

    def on_headers_complete(self) -> None:
        self.status = self._parser.get_status_code()
        if self.status >= 200:
            self._complete_head = True

    def on_body(self, data: bytes) -> None:
        self._pieces.append(data)

    def on_message_complete(self) -> None:
        if self.status >= 200:
            self.ended = True
            self.reusable = bool(self._parser.should_keep_alive())
        else:
            self.headers.clear()  # 100 Continue and its like: the answer is still to come


def encode(method: str, path: str, host: str, headers: Mapping[str, str], body: bytes) -> bytes:
    """The request's bytes. Names and values are ours, or were checked."""
    lines = [f"{method} {path} HTTP/1.1", f"host: {host}"]
    lines += [f"{name}: {value}" for name, value in headers.items()]
    lines += [f"content-length: {len(body)}", "", ""] if body or method == "POST" else ["", ""]
    return "\r\n".join(lines).encode("ascii") + body
