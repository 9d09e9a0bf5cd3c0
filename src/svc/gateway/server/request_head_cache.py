"""Reuses the parsed head of a connection's last request if the next head differs in known values only. No sockets.

POST /v1/chat/completions HTTP/1.1          equal
authorization: Bearer sk-…                  equal
content-length: 123                         the length of the body
traceparent: 00-4bf9…                       any printable value
"""

from __future__ import annotations

from typing import Final

from svc.gateway.server.authentication import hash_request_secret
from svc.gateway.server.request import Request
from svc.security import Keyring
from svc.wire.header_value import echoable_text
from svc.wire.trace_context import MAX_TRACE_HEADER_BYTES, TRACE_CONTEXT_HEADERS

MAX_HEAD_CACHE_MISSES: Final = 3
"""Consecutive misses after which a connection stops caching."""
MAX_VARIABLE_VALUE_BYTES: Final = MAX_TRACE_HEADER_BYTES
"""Maximum length of a variable value. The parser limits the length of heads with longer values."""
_UNREAD_HEADERS: Final = frozenset(
    (
        *(b"baggage", b"sentry-trace", b"b3", b"x-amzn-trace-id"),
        *(b"idempotency-key", b"x-stainless-retry-count", b"x-stainless-read-timeout"),
    )
)
"""Headers that the gateway does not read, and that clients change with each request."""
_CONTENT_LENGTH: Final = b"content-length"
_REQUEST_ID: Final = b"x-request-id"
_VARIABLE_HEADERS: Final = frozenset((_CONTENT_LENGTH, _REQUEST_ID, *TRACE_CONTEXT_HEADERS, *_UNREAD_HEADERS))


class RequestHeadCache:
    """The last request of a connection whose head arrived in one read, with its API key."""

    __slots__ = (
        "_fixed_parts",
        "_key_digest",
        "_length_index",
        "_misses",
        "_request_id_index",
        "_trace_headers",
        "request",
    )

    def __init__(self, *, is_enabled: bool) -> None:
        self.request: Request | None = None
        """None if no head is cached."""
        self._key_digest = b""
        self._fixed_parts: list[bytes] = []
        """The parts of the head between its variable values."""
        self._length_index = self._request_id_index = -1
        """The indexes of Content-Length and X-Request-Id among the variable values."""
        self._trace_headers: dict[int, bytes] = {}
        """The starts of the trace context's header lines, by their index among the variable values."""
        self._misses = 0 if is_enabled else MAX_HEAD_CACHE_MISSES

    def match(self, data: bytes, max_body_bytes: int, keyring: Keyring) -> Request | None:
        """Return the cached request with the body of `data`, if their heads differ in variable values only.

        The response to the last request has to be complete. A revoked key does not match.
        """
        request = self.request
        if request is None:
            return None
        fixed_parts = self._fixed_parts
        length, request_id, trace_context = b"", b"", b""
        index = 0
        last = len(fixed_parts) - 1
        for position in range(last):
            part = fixed_parts[position]
            if not data.startswith(part, index):
                return None
            index += len(part)
            end = data.find(b"\r", index)  # the next part begins with the whole line end
            value = data[index:end]
            if (
                not 0 <= end - index <= MAX_VARIABLE_VALUE_BYTES
                or not value.isascii()
                or not value.decode().isprintable()
            ):
                return None
            if position == self._length_index:
                length = value
            elif position == self._request_id_index:
                request_id = value
            elif position in self._trace_headers and value:  # checked above as `encode_trace_header` does
                trace_context += self._trace_headers[position] + value + b"\r\n"
            index = end
        if not data.startswith(fixed_parts[last], index):
            return None
        index += len(fixed_parts[last])
        body_bytes = len(data) - index
        if not 0 < body_bytes <= max_body_bytes or length != b"%d" % body_bytes:
            return None
        api_key = request.api_key
        if api_key is None or not keyring.is_current(self._key_digest, api_key):
            return None
        if self._request_id_index >= 0:
            request.client_request_id = echoable_text(request_id)
        request.trace_context = trace_context
        self._misses = 0
        request.keep_alive = True
        request.body_bytes = request.content_length = body_bytes
        request.body.append(data[index:])
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
        self._fixed_parts = []
        self._length_index = self._request_id_index = -1
        self._trace_headers = {}
        part_start = line_start = 0
        for line in data[:end].split(b"\r\n"):
            name, _, value = line.partition(b":")
            name = name.lower()
            if name == _CONTENT_LENGTH:
                self._length_index = len(self._fixed_parts)
            elif name == _REQUEST_ID:
                self._request_id_index = len(self._fixed_parts)
            elif name in TRACE_CONTEXT_HEADERS:
                self._trace_headers[len(self._fixed_parts)] = name + b": "
            if name in _VARIABLE_HEADERS:
                line_end = line_start + len(line)
                self._fixed_parts.append(data[part_start : line_end - len(value.lstrip(b" \t"))])
                part_start = line_end
            line_start += len(line) + 2
        self._fixed_parts.append(data[part_start : end + 4])
        self.request, self._key_digest = request, hash_request_secret(request)
        request.headers.clear()  # requests to model endpoints do not need them any more

    def forget(self) -> None:
        """Drop the cached head."""
        self.request = None
