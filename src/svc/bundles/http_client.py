"""Handle URLs and connections of registry clients. A malformed URL raises RegistryFailed."""

from __future__ import annotations

import http.client
import ssl
import unicodedata
from typing import NamedTuple
from urllib.parse import SplitResult, quote, urljoin, urlsplit

from svc.errors import RegistryFailed

DEFAULT_PORTS = {"http": 80, "https": 443}
REDIRECT_STATUSES = (301, 302, 303, 307, 308)
HTTP_CONNECTION_ERRORS = (OSError, http.client.HTTPException, ValueError)
"""Exceptions of a connection. ValueError is raised for names and headers that cannot be encoded."""

_PRINTABLE_ASCII = "".join(map(chr, range(0x21, 0x7F)))


class UrlOrigin(NamedTuple):
    """Scheme, host and port (RFC 6454, section 4). Credentials are sent to one origin only."""

    scheme: str
    host: str
    port: int


def parse_origin(url: str) -> UrlOrigin:
    """Return the origin of a URL. Raises RegistryFailed unless the scheme is http or https."""
    return _split_url(url)[0]


def resolve_redirect(url: str, location: str) -> str:
    """Resolve a `Location` header. Raises RegistryFailed for a target that is not an http or https URL."""
    try:
        # http.client decodes headers as Latin-1. Non-ASCII bytes are sent back unchanged.
        redirect_url = urljoin(url, quote(location.encode("latin-1", "replace"), safe=_PRINTABLE_ASCII))
    except ValueError as error:
        raise RegistryFailed(f"{_quote_url(url)} redirects to a malformed URL: {_quote_url(location)}.") from error
    parse_origin(redirect_url)
    return redirect_url


def create_connection(url: str, timeout: float) -> tuple[http.client.HTTPConnection, str]:
    """Return an unopened connection and the request target. Raises RegistryFailed."""
    (scheme, host, port), parts = _split_url(url)
    request_target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    if scheme == "https":
        context = ssl.create_default_context()
        return http.client.HTTPSConnection(host, port, timeout=timeout, context=context), request_target
    return http.client.HTTPConnection(host, port, timeout=timeout), request_target


def describe_error(error: BaseException) -> str:
    """Return a short reason for a connection failure."""
    return getattr(error, "strerror", None) or str(error) or type(error).__name__


def sanitize_text(text: str, max_length: int = 300) -> str:
    """Sanitize a server's message for a terminal: one line, no control or bidirectional formatting characters."""
    line = " ".join(text.split())[:max_length]
    return "".join(f"\\u{ord(char):04x}" if unicodedata.category(char) in ("Cc", "Cf", "Cs") else char for char in line)


def _split_url(url: str) -> tuple[UrlOrigin, SplitResult]:
    try:
        parts = urlsplit(url)
        host, port = parts.hostname or "", parts.port
        host.encode("idna")  # as the system's resolver does
    except ValueError as error:
        raise RegistryFailed(f"{_quote_url(url)} is a malformed URL: {error}.") from error
    if parts.scheme not in DEFAULT_PORTS or not host or host.startswith(".") or not host.isprintable() or " " in host:
        raise RegistryFailed(f"{_quote_url(url)} is not an http or https URL.")
    return UrlOrigin(parts.scheme, host, port or DEFAULT_PORTS[parts.scheme]), parts


def _quote_url(url: str) -> str:
    return repr(url[:200])
