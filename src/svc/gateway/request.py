"""A client's HTTP request while it is read, with the limits on its head. No sockets."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from typing import Final

from svc.dialects.base import Dialect
from svc.errors import HeadTooLarge, InvalidRequest, SvcError
from svc.gateway.forwarding import ForwardedHead
from svc.wire.key import Key

MAX_HEADERS: Final = 100
MAX_PIPELINED: Final = 16
"""Requests that wait on one connection before reading pauses."""
MAX_AT_ONCE: Final = 1024
"""Requests in advance that a read may bring before the connection is given up: more than as many bytes as a bounded one
has room for can hold."""
MAX_AHEAD: Final = 64 * 1024
"""Bytes of bodies sent in advance, after which reading pauses until the running answer has ended."""
MAX_ECHOED: Final = 128
"""Characters of a header that is echoed, such as a client's own request id."""
_READ: Final = frozenset((b"content-length", b"expect", b"upgrade", b"origin", b"x-request-id", b"transfer-encoding"))
"""The headers, beside Host, that say how a request is to be taken."""
MAX_SOCKET_LINE: Final = 8 * 1024 - 2
"""Bytes of a line, its end not included: what websockets reads."""
_FRAMING: Final = frozenset((b"expect", b"transfer-encoding", b"content-length"))
_WHOLE: Final = re.compile(rb"(?i)https?://[^/?#]*")


class Request:
    """Filled by the door's parser callbacks."""

    __slots__ = (
        "body",
        "chunkable",
        "client_request_id",
        "declared",
        "dialect",
        "expects",
        "forwarded",
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
        self.forwarded: ForwardedHead | None = None
        """For hot routes: what of the head goes on to an upstream."""
        self.key: Key | None = None
        self.refusal: SvcError | None = None
        self.waiting = False
        """The database is being asked about its key."""
        self.client_request_id: str | None = None
        self.origin = ""
        """The page that a browser sends it for."""

    def head(self, method: bytes, version: str, limit: int) -> None:
        """Reads what matters of the head; raises InvalidRequest for another HTTP, HeadTooLarge over `limit` bytes.

        Sets `refusal` for two keys: the one that a proxy in front has checked may not be the one that counts here.
        """
        self.headed = True
        self.method = method
        self.path = self._target().partition(b"?")[0]
        if version not in ("1.0", "1.1"):
            raise InvalidRequest("This server speaks HTTP/1.1 and HTTP/1.0.")
        self.chunkable = version == "1.1"
        if len(self.headers) > MAX_HEADERS:
            raise HeadTooLarge(f"The request has more than {MAX_HEADERS} headers.")
        size, hosts, authorizations, api_keys = len(self.url), 0, 0, 0
        for name, value in self.headers:
            size += len(name) + len(value) + 4
            if name == b"host":
                hosts += 1
            elif name == b"authorization":
                authorizations += 1
            elif name == b"x-api-key":
                api_keys += 1
            elif name in _READ:
                self._note(name, value)
        if hosts > 1 or (not hosts and self.chunkable):
            raise InvalidRequest("The request needs one Host header.")
        if size > limit:
            raise head_too_large(limit)
        if authorizations > 1 or api_keys > 1:
            self.refusal = InvalidRequest("The request has more than one Authorization or x-api-key header.")

    def _note(self, name: bytes, value: bytes) -> None:
        """One of the headers that say how the request is to be taken."""
        if name == b"content-length":
            self.declared = int(value) if value.isdigit() else 0
        elif name == b"transfer-encoding":
            if value.lower() != b"chunked" or not self.chunkable:
                raise InvalidRequest("The only transfer coding that is taken here is 'chunked', with HTTP/1.1.")
        elif name == b"expect":
            self.expects = self.chunkable and value.lower() == b"100-continue"
        elif name == b"upgrade":
            self.websocket = value.lower() == b"websocket" and self.method == b"GET"
        elif name == b"origin":
            self.origin = text(value) or ""
        else:
            self.client_request_id = text(value)

    def _target(self) -> bytes:
        """The path and query; who believes to talk to a proxy sends a whole address (RFC 9112, 3.2.2)."""
        if not self.url.startswith(b"/") and (whole := _WHOLE.match(self.url)):
            rest = self.url[whole.end() :]
            self.url = rest if rest.startswith(b"/") else b"/" + rest
        return self.url

    def check_form(self, headers: Mapping[bytes, bytes]) -> None:
        """Any content type will do for JSON but multipart; raises InvalidRequest."""
        if headers.get(b"content-type", b"").lower().startswith(b"multipart/"):
            raise InvalidRequest("The body has to be JSON, not a multipart form.")
        if headers.get(b"content-encoding", b"identity").lower() != b"identity":
            raise InvalidRequest("The body must not be compressed.")

    def take_body(self) -> bytes:
        """The body, which is not kept here any longer."""
        body = self.body[0] if len(self.body) == 1 else b"".join(self.body)
        self.body.clear()
        return body

    def serialised(self) -> bytes:
        """The request in plain HTTP again, its body whole."""
        framed = [(b"content-length", b"%d" % self.size)] if self.body else []
        return self._head([one for one in self.headers if one[0] not in _FRAMING] + framed) + b"".join(self.body)

    def for_websocket(self) -> bytes:
        """The head again, with one Connection header: of several, llhttp heeds all, and uvicorn the last.

        Raises SvcError for a head that is none to websockets, which would not answer at all.
        """
        if self.declared or any(name == b"transfer-encoding" for name, _ in self.headers):
            raise InvalidRequest("A WebSocket is asked for without a body.")
        if not self.url.isascii():
            raise InvalidRequest("The path has to be ASCII.")
        headers = [one for one in self.headers if one[0] != b"connection" and one[0] not in _FRAMING]
        head = self._head([*headers, (b"connection", b"upgrade")])
        if max(map(len, head.split(b"\r\n"))) > MAX_SOCKET_LINE:
            raise HeadTooLarge(f"No line of a WebSocket's head may have more than {MAX_SOCKET_LINE} bytes.")
        return head

    def without_upgrade(self) -> bytes:
        """The head again, as of a request that asks for no other protocol."""
        return self._head([one for one in self.headers if one[0] not in (b"upgrade", b"http2-settings")])

    def _head(self, headers: list[tuple[bytes, bytes]]) -> bytes:
        first = b"%b %b HTTP/%b" % (self.method, self.url, b"1.1" if self.chunkable else b"1.0")
        return b"\r\n".join((first, *[b"%b: %b" % one for one in headers], b"\r\n"))


def is_far_ahead(waiting: Collection[Request], unfinished: Request | None) -> bool:
    """A client has sent much in advance: in bytes, or in requests."""
    if unfinished is None and not waiting:  # nearly always
        return False
    size = sum(request.size for request in (*waiting, unfinished) if request is not None)
    return size > MAX_AHEAD or len(waiting) > MAX_PIPELINED


def head_too_large(limit: int) -> HeadTooLarge:
    """What a head of more than `limit` bytes is refused with."""
    return HeadTooLarge(f"The request's head is larger than {limit / 1024:g} KiB.")


def text(value: bytes) -> str | None:
    """A header's value, if it is fit to be sent back."""
    text = value.decode("latin-1")
    return text if 0 < len(text) <= MAX_ECHOED and text.isascii() and text.isprintable() else None
