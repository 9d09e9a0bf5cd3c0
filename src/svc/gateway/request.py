"""A client's HTTP request while it is read, with the limits on its head. No sockets."""

from __future__ import annotations

from collections.abc import Mapping

from svc.dialects.base import Dialect
from svc.errors import InvalidRequest, SvcError
from svc.security import Key

MAX_HEADERS = 100
MAX_ECHOED = 128
"""Characters of a header that is echoed, such as a client's own request id."""


class Request:
    """Filled by the door's parser callbacks."""

    __slots__ = (
        "body",
        "chunkable",
        "client_request_id",
        "declared",
        "dialect",
        "expects",
        "headed",
        "headers",
        "keep_alive",
        "key",
        "known",
        "method",
        "origin",
        "path",
        "refusal",
        "size",
        "url",
        "waiting",
        "websocket",
    )

    def __init__(self) -> None:
        self.method = b""
        self.url = b""
        self.path = b""
        self.headers: list[tuple[bytes, bytes]] = []
        self.headed = False
        """The head has come."""
        self.body: list[bytes] = []
        self.size = 0
        self.declared = 0
        """Content-Length, 0 if there is none."""
        self.keep_alive = True
        self.chunkable = True
        """HTTP/1.1: the answer may be sent in chunks."""
        self.known = False
        """Its key has been looked at, since its body is large."""
        self.expects = False
        self.websocket = False
        self.dialect: Dialect | None = None
        """For hot routes: what is spoken there."""
        self.key: Key | None = None
        self.refusal: SvcError | None = None
        self.waiting = False
        """The database is being asked about its key."""
        self.client_request_id: str | None = None
        self.origin = ""
        """The page that a browser sends it for."""

    def head(self, method: bytes, version: str, limit: int) -> None:
        """Reads what matters of the head; raises InvalidRequest for another HTTP, over `limit` bytes or MAX_HEADERS."""
        self.headed = True
        self.method = method
        self.path = self._target().partition(b"?")[0]
        if version not in ("1.0", "1.1"):
            raise InvalidRequest("This server speaks HTTP/1.1 and HTTP/1.0.")
        self.chunkable = version == "1.1"
        if len(self.headers) > MAX_HEADERS:
            raise InvalidRequest(f"The request has more than {MAX_HEADERS} headers.")
        size = len(self.url)
        for name, value in self.headers:
            size += len(name) + len(value) + 4
            if name == b"content-length":
                self.declared = int(value) if value.isdigit() else 0
            elif name == b"expect":
                self.expects = value.lower() == b"100-continue"
            elif name == b"upgrade":
                self.websocket = value.lower() == b"websocket" and method == b"GET"
            elif name == b"origin":
                self.origin = text(value) or ""
            elif name == b"x-request-id":
                self.client_request_id = text(value)
        if size > limit:
            raise InvalidRequest("The request's head is too large.")

    def _target(self) -> bytes:
        """The path and query; who believes to talk to a proxy sends a whole address (RFC 9112, 3.2.2)."""
        if self.url.startswith((b"http://", b"https://")):
            _, _, path = self.url.partition(b"://")[2].partition(b"/")
            self.url = b"/" + path
        return self.url

    def check_form(self, headers: Mapping[bytes, bytes]) -> None:
        """Any content type will do for JSON but multipart; raises InvalidRequest."""
        if headers.get(b"content-type", b"").lower().startswith(b"multipart/"):
            raise InvalidRequest("The body has to be JSON, not a multipart form.")
        if headers.get(b"content-encoding", b"identity").lower() != b"identity":
            raise InvalidRequest("The body must not be compressed.")

    def serialised(self, *, upgrade: bool = True) -> bytes:
        """The request in plain HTTP again, its body whole; without `upgrade` that header is left out."""
        left_out = {b"expect", b"transfer-encoding"} if upgrade else {b"expect", b"upgrade", b"http2-settings"}
        lines = [b"%b %b HTTP/%b" % (self.method, self.url, b"1.1" if self.chunkable else b"1.0")]
        for name, value in self.headers:
            if name in left_out or (upgrade and name == b"content-length"):
                continue
            if name == b"connection" and not upgrade:
                continue
            lines.append(b"%b: %b" % (name, value))
        if upgrade and self.body:
            lines.append(b"content-length: %d" % self.size)
        return b"\r\n".join(lines) + b"\r\n\r\n" + b"".join(self.body)


def text(value: bytes) -> str | None:
    """A header's value, if it is fit to be sent back."""
    text = value.decode("latin-1")
    return text if 0 < len(text) <= MAX_ECHOED and text.isascii() and text.isprintable() else None
