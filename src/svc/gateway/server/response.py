"""Encodes responses to clients: HTTP/1.1 heads and chunks (RFC 9112). Pure functions."""

from __future__ import annotations

from collections.abc import Mapping
from http import HTTPStatus
from typing import Final

from svc.dialects.endpoint import Endpoint
from svc.errors import SvcError
from svc.gateway.server.request import Request
from svc.wire.error import encode_error_body
from svc.wire.http_chunk import CHUNK_SIZE_LINES, SIZE_LINE_COUNT

_STATUS_LINES: Final = {status.value: f"HTTP/1.1 {status.value} {status.phrase}" for status in HTTPStatus}
CORS_EXPOSED_HEADERS: Final = (
    *(
        "x-request-id",
        "request-id",
        "x-client-request-id",
        "x-svc-provider",
        "x-svc-attempts",
        "x-svc-dropped",
        "x-svc-estimated",
        "x-svc-cache",
        "x-should-retry",
    ),
    *[f"x-ratelimit-{part}-{kind}" for part in ("limit", "remaining", "reset") for kind in ("requests", "tokens")],
    "retry-after",
)
"""Response headers that a page in a browser may read (Access-Control-Expose-Headers)."""
_CORS_EXPOSE_HEADERS_LINE: Final = f"access-control-expose-headers: {', '.join(CORS_EXPOSED_HEADERS)}\r\n"
CONTINUE_RESPONSE: Final = b"HTTP/1.1 100 Continue\r\n\r\n"


def format_headers(headers: Mapping[str, str]) -> str:
    """Return header lines that each end in CRLF."""
    return "".join(f"{name}: {value}\r\n" for name, value in headers.items())


def add_connection_headers(header_lines: str, request: Request, allowed_origins: tuple[str, ...]) -> str:
    """Return `header_lines` with Connection and CORS headers for the response to `request`."""
    if not request.keep_alive:
        header_lines += "connection: close\r\n"
    elif not request.supports_chunked:  # HTTP/1.0 closes by default
        header_lines += "connection: keep-alive\r\n"
    if allowed_origins and request.origin and ("*" in allowed_origins or request.origin in allowed_origins):
        header_lines += f"access-control-allow-origin: {request.origin}\r\nvary: Origin\r\n{_CORS_EXPOSE_HEADERS_LINE}"
    return header_lines


def request_id_headers(request_id: str, request: Request | None, endpoint: Endpoint | None) -> str:
    """Return the header lines with the ids of a request."""
    alias_header = endpoint.request_id_header if endpoint is not None else ""
    client_request_id = request.client_request_id if request is not None else None
    lines = f"x-request-id: {request_id}\r\n" + (f"{alias_header}: {request_id}\r\n" if alias_header else "")
    return lines + (f"x-client-request-id: {client_request_id}\r\n" if client_request_id else "")


def encode_rejection(
    error: SvcError, status: int, date: str, request_id: str, request: Request | None, endpoint: Endpoint | None
) -> bytes:
    """Return the error response to a request that is not read further. The connection closes after it."""
    body = endpoint.encode_error(error, request_id) if endpoint is not None else encode_error_body(error)
    return encode_http_response(
        status,
        date,
        f"{request_id_headers(request_id, request, endpoint)}connection: close\r\n{format_headers(error.headers)}",
        body,
    )


def encode_http_response(status: int, date: str, headers: str, body: bytes) -> bytes:
    """Return a complete JSON response. Each line in `headers` ends in CRLF."""
    head = (
        f"{_STATUS_LINES.get(status) or f'HTTP/1.1 {status} Status'}\r\ndate: {date}\r\n"
        f"content-type: application/json\r\ncontent-length: {len(body)}\r\n{headers}\r\n"
    )
    return head.encode("latin-1") + body


def encode_stream_head(date: str, headers: str, content_type: str, *, chunked: bool) -> bytes:
    """Return the head of a stream. `X-Accel-Buffering: no` disables the response buffering of nginx."""
    framing = "transfer-encoding: chunked\r\n" if chunked else ""
    head = (
        f"HTTP/1.1 200 OK\r\ndate: {date}\r\ncontent-type: {content_type}\r\n"
        f"cache-control: no-cache\r\nx-accel-buffering: no\r\n{framing}{headers}\r\n"
    )
    return head.encode("latin-1")


def encode_http_chunk(pending_head: bytes, data: bytes, is_last: bool) -> bytes:
    """Return `pending_head`, then `data` as an HTTP chunk, then the last chunk if `is_last`."""
    if not data:
        return pending_head + b"0\r\n\r\n" if is_last else pending_head
    size = len(data)
    size_line = CHUNK_SIZE_LINES[size] if size < SIZE_LINE_COUNT else b"%x\r\n" % size
    return b"".join((pending_head, size_line, data, b"\r\n0\r\n\r\n" if is_last else b"\r\n"))
