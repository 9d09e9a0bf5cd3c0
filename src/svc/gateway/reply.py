"""How an answer looks on the client's connection: heads and chunks of HTTP/1.1. Pure functions."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from http import HTTPStatus
from typing import Final

from svc.dialects.base import Dialect
from svc.errors import SvcError
from svc.gateway.error_shape import dialect_below
from svc.gateway.request import Request
from svc.wire.problem import encode_problem

_STATUS_LINES: Final = {status.value: f"HTTP/1.1 {status.value} {status.phrase}" for status in HTTPStatus}
EXPOSED: Final = (
    *(
        "x-request-id",
        "request-id",
        "x-client-request-id",
        "x-svc-provider",
        "x-svc-attempts",
        "x-svc-dropped",
        "x-should-retry",
    ),
    *[f"x-ratelimit-{part}-{kind}" for part in ("limit", "remaining", "reset") for kind in ("requests", "tokens")],
    "retry-after",
)
"""Headers that a page in a browser may read."""
_EXPOSED: Final = f"access-control-expose-headers: {', '.join(EXPOSED)}\r\n"
_UNSAFE: Final = re.compile(r"[^A-Za-z0-9_.\[\]-]")
CONTINUE: Final = b"HTTP/1.1 100 Continue\r\n\r\n"
SMALL: Final = 2048
SIZE_LINES: Final = tuple(b"%x\r\n" % size for size in range(SMALL))
"""What a chunk begins with, by its size: made once, since it is needed for every piece of every stream."""


def lines(headers: Mapping[str, str]) -> str:
    """Header lines, each with its CRLF."""
    return "".join(f"{name}: {value}\r\n" for name, value in headers.items())


def headers(given: str, request: Request, origins: tuple[str, ...]) -> str:
    """The header lines of an answer to `request`, with what its connection and a browser need."""
    if not request.keep_alive:
        given += "connection: close\r\n"
    elif not request.chunkable:  # HTTP/1.0 closes unless both sides say otherwise
        given += "connection: keep-alive\r\n"
    if origins and request.origin and ("*" in origins or request.origin in origins):
        given += f"access-control-allow-origin: {request.origin}\r\nvary: Origin\r\n{_EXPOSED}"
    return given


def dropped_line(names: Sequence[str]) -> str:
    """The header line that names the request's fields that the upstream did not get as they were."""
    return f"x-svc-dropped: {','.join(_UNSAFE.sub('?', name[:64]) for name in names[:32])}\r\n"


def ids(request_id: str, request: Request | None, dialect: Dialect | None) -> str:
    """The header lines by which a request can be found again."""
    also = dialect.request_id_header if dialect is not None else ""
    echo = request.client_request_id if request is not None else None
    lines = f"x-request-id: {request_id}\r\n" + (f"{also}: {request_id}\r\n" if also else "")
    return lines + (f"x-client-request-id: {echo}\r\n" if echo else "")


def last(error: SvcError, status: int, date: str, request_id: str, request: Request | None) -> bytes:
    """The refusal of a request that is not read any further, after which the connection closes."""
    dialect = None
    if request is not None:
        dialect = request.dialect or dialect_below(request.path.decode("latin-1"))
    body = dialect.write_error(error, request_id) if dialect is not None else encode_problem(error)
    return whole(status, date, f"{ids(request_id, request, dialect)}connection: close\r\n{lines(error.headers)}", body)


def whole(status: int, date: str, headers: str, body: bytes) -> bytes:
    """A JSON answer."""
    head = (
        f"{_STATUS_LINES.get(status) or f'HTTP/1.1 {status} Status'}\r\ndate: {date}\r\n"
        f"content-type: application/json\r\ncontent-length: {len(body)}\r\n{headers}\r\n"
    )
    return head.encode("latin-1") + body


def stream_head(date: str, headers: str, *, chunked: bool) -> bytes:
    """The head of a stream of events. `X-Accel-Buffering: no` keeps nginx from collecting it before it sends."""
    framing = "transfer-encoding: chunked\r\n" if chunked else ""
    head = (
        f"HTTP/1.1 200 OK\r\ndate: {date}\r\ncontent-type: text/event-stream; charset=utf-8\r\n"
        f"cache-control: no-cache\r\nx-accel-buffering: no\r\n{framing}{headers}\r\n"
    )
    return head.encode("latin-1")


def chunk(held: bytes, data: bytes, end: bool) -> bytes:
    """`held` as it is (a head that waited), then `data` as a chunk, then the last chunk if it is the `end`."""
    if not data:
        return held + b"0\r\n\r\n" if end else held
    size = len(data)
    line = SIZE_LINES[size] if size < SMALL else b"%x\r\n" % size
    return b"".join((held, line, data, b"\r\n0\r\n\r\n" if end else b"\r\n"))
