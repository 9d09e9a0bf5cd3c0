"""Reuses the parsed head of a connection's last request if the next head differs in known values only. No sockets.

POST /v1/chat/completions HTTP/1.1          equal
authorization: Bearer sk-…                  equal
content-length: 123                         the length of the body
traceparent: 00-4bf9…                       any printable value
"""

from __future__ import annotations

from typing import Final

from svc.gateway.server.request import Request, echoable_text
from svc.security import Keyring

MAX_HEAD_CACHE_MISSES: Final = 3
"""Consecutive misses after which a connection stops caching."""
_UNREAD_HEADERS: Final = frozenset(
    (
        *(b"traceparent", b"tracestate", b"baggage", b"sentry-trace", b"b3", b"x-amzn-trace-id"),
        *(b"idempotency-key", b"x-stainless-retry-count", b"x-stainless-read-timeout"),
    )
)
"""Headers that the gateway does not read, and that clients change with each request."""
_CONTENT_LENGTH: Final = b"content-length"
_REQUEST_ID: Final = b"x-request-id"


class RequestHeadCache:
    """The last request of a connection whose head arrived in one read, with its API key."""

    __slots__ = ("_key_digest", "_length_line", "_lines", "_misses", "_variable_lines", "request")

    def __init__(self, *, is_enabled: bool) -> None:
        self.request: Request | None = None
        """None if no head is cached."""
        self._key_digest = b""
        self._lines: list[bytes] = []
        """The lines of the head. Those with variable values are empty."""
        self._variable_lines: list[tuple[int, bytes]] = []
        """The index of each line with a variable value, and the line's start up to the value."""
        self._length_line = -1
        """The index of the line with Content-Length."""
        self._misses = 0 if is_enabled else MAX_HEAD_CACHE_MISSES

    def match(self, data: bytes, max_body_bytes: int, keyring: Keyring) -> Request | None:
        """Return the cached request with the body of `data`, if their heads differ in variable values only.

        The response to the last request has to be complete. A revoked key does not match.
        """
        request = self.request
        end = data.find(b"\r\n\r\n")
        body_bytes = len(data) - end - 4
        if request is None or end < 0 or not 0 < body_bytes <= max_body_bytes:
            return None
        lines = data[:end].split(b"\r\n")
        if len(lines) != len(self._lines):
            return None
        for index, start in self._variable_lines:
            line = lines[index]
            if index == self._length_line:
                if line != start + b"%d" % body_bytes:
                    return None
            elif not line.startswith(start) or not line.isascii() or not line.decode().isprintable():
                return None
            elif start[: len(_REQUEST_ID)].lower() == _REQUEST_ID:
                request.client_request_id = echoable_text(line[len(start) :])
            lines[index] = b""
        api_key = request.api_key
        if lines != self._lines or api_key is None or not keyring.is_current(self._key_digest, api_key):
            return None
        self._misses = 0
        request.keep_alive = True
        request.body_bytes = request.content_length = body_bytes
        request.body.append(data[end + 4 :])
        return request

    def learn(self, data: bytes, request: Request) -> None:
        """Cache the head of an authenticated request to a model endpoint. `data` is the whole request."""
        self.request = None
        end = data.find(b"\r\n\r\n")
        if (
            self._misses >= MAX_HEAD_CACHE_MISSES
            or not request.keep_alive
            or not request.supports_chunked
            or request.expects_continue
            or request.rejection is not None
            or request.api_key is None
            or end + 4 + request.content_length != len(data)
            or not request.content_length
        ):
            return
        self._misses += 1
        self._lines = data[:end].split(b"\r\n")
        self._variable_lines = []
        self._length_line = -1
        for index, line in enumerate(self._lines):
            name, _, value = line.partition(b":")
            name = name.lower()
            if name == _CONTENT_LENGTH:
                self._length_line = index
            elif name != _REQUEST_ID and name not in _UNREAD_HEADERS:
                continue
            self._variable_lines.append((index, line[: len(line) - len(value.lstrip(b" \t"))]))
            self._lines[index] = b""
        request.headers.clear()  # requests to fast routes do not need them any more
        self.request, self._key_digest = request, request.key_digest

    def forget(self) -> None:
        """Drop the cached head."""
        self.request = None
