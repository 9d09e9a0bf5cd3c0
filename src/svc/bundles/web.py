"""Web addresses for clients of registries: origins, redirects, connections. A malformed address is a RegistryFailed."""

from __future__ import annotations

import http.client
import ssl
import unicodedata
from typing import NamedTuple
from urllib.parse import SplitResult, quote, urljoin, urlsplit

from svc.errors import RegistryFailed

PORTS = {"http": 80, "https": 443}
REDIRECTS = (301, 302, 303, 307, 308)
FAILURES = (OSError, http.client.HTTPException, ValueError)
"""Exceptions of a connection. ValueError is for names and heads that cannot be encoded."""

_ASCII = "".join(map(chr, range(0x21, 0x7F)))


class Origin(NamedTuple):
    """Scheme, host and port: credentials for one origin go to no other (RFC 6454, section 4)."""

    scheme: str
    host: str
    port: int


def origin(address: str) -> Origin:
    """Raises RegistryFailed when the address has no http or https origin."""
    return _split(address)[0]


def follow(address: str, location: str) -> str:
    """Where a `Location` header leads to. Raises RegistryFailed when that is no web address."""
    try:
        # http.client reads heads as Latin-1; bytes beyond ASCII are sent back as they came.
        target = urljoin(address, quote(location.encode("latin-1", "replace"), safe=_ASCII))
    except ValueError as error:
        raise RegistryFailed(f"{_short(address)} redirects to a malformed address: {_short(location)}.") from error
    origin(target)
    return target


def connect(address: str, timeout: float) -> tuple[http.client.HTTPConnection, str]:
    """A connection that is not open yet, and the request target. Raises RegistryFailed."""
    (scheme, host, port), parts = _split(address)
    selector = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    if scheme == "https":
        context = ssl.create_default_context()
        return http.client.HTTPSConnection(host, port, timeout=timeout, context=context), selector
    return http.client.HTTPConnection(host, port, timeout=timeout), selector


def reason(error: BaseException) -> str:
    """Why a connection failed, in a few words."""
    return getattr(error, "strerror", None) or str(error) or type(error).__name__


def printable(text: str, most: int = 300) -> str:
    """A server's words for a terminal: on one line, without control characters and changes of direction."""
    line = " ".join(text.split())[:most]
    return "".join(f"\\u{ord(each):04x}" if unicodedata.category(each) in ("Cc", "Cf", "Cs") else each for each in line)


def _split(address: str) -> tuple[Origin, SplitResult]:
    try:
        parts = urlsplit(address)
        host, port = parts.hostname or "", parts.port
        host.encode("idna")  # as the system's resolver will
    except ValueError as error:
        raise RegistryFailed(f"{_short(address)} is a malformed address: {error}.") from error
    if parts.scheme not in PORTS or not host or host.startswith(".") or not host.isprintable() or " " in host:
        raise RegistryFailed(f"{_short(address)} is no web address.")
    return Origin(parts.scheme, host, port or PORTS[parts.scheme]), parts


def _short(address: str) -> str:
    return repr(address[:200])
