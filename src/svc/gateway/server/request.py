"""A client's HTTP request and the limits on its head. No sockets."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from typing import Final

from svc.dialects.endpoint import Endpoint
from svc.errors import HeadTooLarge, InvalidRequest, SvcError
from svc.gateway.upstream.forwarded_head import ForwardedHead
from svc.wire.header_value import echoable_text
from svc.wire.key import ApiKey
from svc.wire.trace_context import TRACE_CONTEXT_HEADERS, encode_trace_header

MAX_HEADERS: Final = 100
MAX_PIPELINED_REQUESTS: Final = 16
"""Requests that wait on one connection before reading pauses."""
MAX_PIPELINED_REQUESTS_PER_READ: Final = 1024
"""Pipelined requests in one read at which the connection is closed. A read of bounded size cannot hold more."""
MAX_PIPELINED_BODY_BYTES: Final = 64 * 1024
"""Bytes of pipelined bodies at which reading pauses until the current response is complete."""
_PARSED_HEADERS: Final = frozenset(
    (
        *(b"content-length", b"expect", b"upgrade", b"origin", b"x-request-id", b"transfer-encoding"),
        *TRACE_CONTEXT_HEADERS,
    )
)
"""The headers, in addition to Host, that determine how a request is processed."""
MAX_WEBSOCKET_LINE_BYTES: Final = 8 * 1024 - 2
"""The line limit of websockets, in bytes, without the line end."""
_FRAMING_HEADERS: Final = frozenset((b"expect", b"transfer-encoding", b"content-length"))
_ABSOLUTE_FORM_ORIGIN: Final = re.compile(rb"(?i)https?://[^/?#]*")


class Request:
    """One request. The callbacks of `RequestParser` fill it."""

    __slots__ = (
        "api_key",
        "body",
        "body_bytes",
        "client_request_id",
        "content_length",
        "endpoint",
        "expects_continue",
        "forwarded_head",
        "headers",
        "is_head_complete",
        "is_key_checked",
        "is_key_loading",
        "is_websocket_upgrade",
        "keep_alive",
        "method",
        "origin",
        "path",
        "rejection",
        "supports_chunked",
        "trace_context",
        "url",
    )

    def __init__(self) -> None:
        self.method = b""
        self.url = b""
        self.path = b""
        self.headers: list[tuple[bytes, bytes]] = []
        self.is_head_complete = False
        """Whether the whole head has been read."""
        self.body: list[bytes] = []
        self.body_bytes = 0
        self.content_length = 0
        """Content-Length, 0 if there is none."""
        self.keep_alive = True
        self.supports_chunked = True
        """Whether the request is HTTP/1.1, so that the response may be chunked."""
        self.is_key_checked = False
        """Whether the API key was checked early, because the body is large."""
        self.expects_continue = False
        self.is_websocket_upgrade = False
        self.endpoint: Endpoint | None = None
        """The model endpoint, or None for a request to the ASGI application."""
        self.forwarded_head: ForwardedHead | None = None
        """The part of the head that a model endpoint forwards to the upstream."""
        self.trace_context = b""
        """The header lines of the trace context, which every upstream gets. Each line ends in CRLF."""
        self.api_key: ApiKey | None = None
        self.rejection: SvcError | None = None
        self.is_key_loading = False
        """Whether the database query for the API key is in progress."""
        self.client_request_id: str | None = None
        self.origin = ""
        """The Origin header, or empty."""

    def process_head(self, method: bytes, version: str, max_bytes: int) -> None:
        """Check the head, and process the headers that the server uses.

        Sets `rejection` for several API keys: a proxy in front may have checked another one than the gateway uses.
        Raises InvalidRequest for an unsupported HTTP version, and HeadTooLarge for more than `max_bytes` bytes.
        """
        self.is_head_complete = True
        self.method = method
        self.path = self._origin_form_target().partition(b"?")[0]
        if version not in ("1.0", "1.1"):
            raise InvalidRequest("This server supports only HTTP/1.1 and HTTP/1.0.")
        self.supports_chunked = version == "1.1"
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
            elif name in _PARSED_HEADERS:
                self._process_header(name, value)
        if hosts > 1 or (not hosts and self.supports_chunked):
            raise InvalidRequest("The request must have one Host header.")
        if size > max_bytes:
            raise head_too_large(max_bytes)
        if authorizations > 1 or api_keys > 1:
            self.rejection = InvalidRequest("The request has more than one Authorization or x-api-key header.")

    def _process_header(self, name: bytes, value: bytes) -> None:
        """Process one of `_PARSED_HEADERS`."""
        if name == b"content-length":
            self.content_length = int(value) if value.isdigit() else 0
        elif name == b"transfer-encoding":
            if value.lower() != b"chunked" or not self.supports_chunked:
                raise InvalidRequest("The only supported transfer coding is 'chunked', with HTTP/1.1.")
        elif name == b"expect":
            self.expects_continue = self.supports_chunked and value.lower() == b"100-continue"
        elif name == b"upgrade":
            self.is_websocket_upgrade = value.lower() == b"websocket" and self.method == b"GET"
        elif name == b"origin":
            self.origin = echoable_text(value) or ""
        elif name == b"x-request-id":
            self.client_request_id = echoable_text(value)
        else:
            self.trace_context += encode_trace_header(name, value)

    def _origin_form_target(self) -> bytes:
        """Return path and query. A client that uses a proxy sends the absolute form (RFC 9112, section 3.2.2)."""
        if not self.url.startswith(b"/") and (origin := _ABSOLUTE_FORM_ORIGIN.match(self.url)):
            path_and_query = self.url[origin.end() :]
            self.url = path_and_query if path_and_query.startswith(b"/") else b"/" + path_and_query
        return self.url

    def check_content_headers(self, headers: Mapping[bytes, bytes]) -> None:
        """Check Content-Type and Content-Encoding. Raises InvalidRequest for multipart or compressed bodies."""
        if headers.get(b"content-type", b"").lower().startswith(b"multipart/"):
            raise InvalidRequest("The body must be JSON, not a multipart form.")
        if headers.get(b"content-encoding", b"identity").lower() != b"identity":
            raise InvalidRequest("The body must not be compressed.")

    def take_body(self) -> bytes:
        """Return the body, and drop it from the request."""
        body = self.body[0] if len(self.body) == 1 else b"".join(self.body)
        self.body.clear()
        return body

    def take_body_parts(self) -> list[bytes]:
        """Return the body as it was received, and drop it from the request."""
        parts, self.body = self.body, []
        return parts

    def serialize_head(self) -> bytes:
        """Return the head, with Content-Length in place of chunks. Called before the body is taken."""
        length_header = [(b"content-length", b"%d" % self.body_bytes)] if self.body else []
        return self._serialize_head(
            [header for header in self.headers if header[0] not in _FRAMING_HEADERS] + length_header
        )

    def serialize_websocket_head(self) -> bytes:
        """Return the head with one Connection header: llhttp obeys several, but uvicorn only the last one.

        Raises SvcError for a head that websockets would reject without a response.
        """
        if self.content_length or any(name == b"transfer-encoding" for name, _ in self.headers):
            raise InvalidRequest("A WebSocket request must have no body.")
        if not self.url.isascii():
            raise InvalidRequest("The path must be ASCII.")
        headers = [
            header for header in self.headers if header[0] != b"connection" and header[0] not in _FRAMING_HEADERS
        ]
        head = self._serialize_head([*headers, (b"connection", b"upgrade")])
        if max(map(len, head.split(b"\r\n"))) > MAX_WEBSOCKET_LINE_BYTES:
            raise HeadTooLarge(f"No line of a WebSocket's head may have more than {MAX_WEBSOCKET_LINE_BYTES} bytes.")
        return head

    def serialize_without_upgrade(self) -> bytes:
        """Return the head without the headers that request an upgrade."""
        return self._serialize_head(
            [header for header in self.headers if header[0] not in (b"upgrade", b"http2-settings")]
        )

    def _serialize_head(self, headers: list[tuple[bytes, bytes]]) -> bytes:
        request_line = b"%b %b HTTP/%b" % (self.method, self.url, b"1.1" if self.supports_chunked else b"1.0")
        return b"\r\n".join((request_line, *[b"%b: %b" % header for header in headers], b"\r\n"))


def exceeds_pipeline_limits(queued: Collection[Request], incoming: Request | None) -> bool:
    """Return whether the pipelined requests of a client exceed the limits on bytes or requests."""
    if incoming is None and not queued:  # the common case: the client does not pipeline
        return False
    total_bytes = sum(request.body_bytes for request in (*queued, incoming) if request is not None)
    return total_bytes > MAX_PIPELINED_BODY_BYTES or len(queued) > MAX_PIPELINED_REQUESTS


def head_too_large(max_bytes: int) -> HeadTooLarge:
    """Return the error for a head of more than `max_bytes` bytes."""
    return HeadTooLarge(f"The request's head is larger than {max_bytes / 1024:g} KiB.")
