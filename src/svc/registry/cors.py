"""CORS headers, with which web pages of other origins may read bundles (`gateway.cors_origins`)."""

from __future__ import annotations

from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware

_EXPOSED_HEADERS = ("content-range", "etag", "retry-after")


def build_cors_middleware(allowed_origins: tuple[str, ...]) -> list[Middleware]:
    """Return the middleware that answers preflight requests. Pages may read, and may not publish."""
    if not allowed_origins:
        return []
    return [
        Middleware(
            CORSMiddleware,
            allow_origins=list(allowed_origins),
            allow_methods=["GET", "HEAD"],
            allow_headers=["*"],
            expose_headers=_EXPOSED_HEADERS,
        )
    ]


def encode_cors_headers(origin: str, allowed_origins: tuple[str, ...]) -> bytes:
    """Return header lines that each end in CRLF, for a response outside the application.

    A browser keeps bundles in its cache. So the lines do not depend on whether this request came from a page, or a
    cache is told that they do.
    """
    if not allowed_origins:
        return b""
    if "*" in allowed_origins:
        lines = "access-control-allow-origin: *\r\n"
    elif origin in allowed_origins:
        lines = f"vary: Origin\r\naccess-control-allow-origin: {origin}\r\n"
    else:
        return b"vary: Origin\r\n"
    return f"{lines}access-control-expose-headers: {', '.join(_EXPOSED_HEADERS)}\r\n".encode()
