"""Handle URLs and responses of registry clients. A malformed URL raises RegistryFailed."""

from __future__ import annotations

import unicodedata
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import SplitResult, quote, urljoin, urlsplit

from svc.errors import RegistryFailed

if TYPE_CHECKING:
    import httpx2

DEFAULT_PORTS = {"http": 80, "https": 443}

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
        redirect_url = urljoin(url, quote(location, safe=_PRINTABLE_ASCII))
    except ValueError as error:
        raise RegistryFailed(f"{_quote_url(url)} redirects to a malformed URL: {_quote_url(location)}.") from error
    parse_origin(redirect_url)
    return redirect_url


def read_limited(response: httpx2.Response, max_bytes: int) -> bytes:
    """Read at most `max_bytes` of the body. Raises the errors of httpx2."""
    data = bytearray()
    for chunk in response.iter_raw():
        data += chunk
        if len(data) >= max_bytes:
            break
    return bytes(data[:max_bytes])


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
