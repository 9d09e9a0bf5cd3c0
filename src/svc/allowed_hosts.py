"""Detect requests from this machine, and check `Host` on loopback listeners. Pure functions.

A web page can resolve its own name to 127.0.0.1 (DNS rebinding). Its requests then come from this machine, and only
their `Host` header shows the name of the page.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable, Mapping
from typing import Any, Final

from svc.errors import MisdirectedRequest

_HOST_PATTERN: Final = re.compile(r"(?:\[([0-9A-Fa-f:.]+)\]|([^\[\]:/?#@\s]+))(?::[0-9]*)?")
_PROXY_HEADERS: Final = frozenset((b"forwarded", b"x-real-ip", b"via"))
_FORWARDED_PREFIX: Final = b"x-forwarded-"


def is_loopback_address(text: str) -> bool:
    """Return whether the text is a loopback IP address, in IPv4, IPv6 or IPv4-mapped form."""
    try:
        address = ipaddress.ip_address(text)
    except ValueError:
        return False
    return (getattr(address, "ipv4_mapped", None) or address).is_loopback


def parse_host(value: str) -> str:
    """Return the host of a `Host` header in lower case, without port. Returns an empty string for an invalid header."""
    match = _HOST_PATTERN.fullmatch(value.strip())
    return (match[1] or match[2]).lower().rstrip(".") if match else ""


def is_loopback_name(name: str) -> bool:
    """Return whether the name is `localhost`, a name below it (RFC 6761, section 6.3), or a loopback address."""
    return name == "localhost" or name.endswith(".localhost") or is_loopback_address(name)


class AllowedHosts:
    """The `Host` values allowed in requests without a key. All are allowed unless the server listens on loopback."""

    def __init__(self, listen_host: str, names: Iterable[str] = ()) -> None:
        """`names` are the names of `[gateway] hosts`, which are allowed in addition to loopback names."""
        self.is_checked = is_loopback_name(listen_host)
        self._names = frozenset(parse_host(name) for name in names)

    def allows(self, values: Iterable[str]) -> bool:
        """Return whether all `Host` headers of a request are allowed. Browsers always send the header."""
        return not self.is_checked or all(self._allows_name(parse_host(value)) for value in values)

    def _allows_name(self, name: str) -> bool:
        return bool(name) and (name in self._names or is_loopback_name(name))


def host_not_allowed_error() -> MisdirectedRequest:
    """Return the error for a request without a key whose `Host` is not allowed."""
    return MisdirectedRequest(
        "This server listens on a loopback address and rejects this Host without an API key. "
        "Add the name to 'hosts' in [gateway] of svc.toml, or send a key."
    )


def host_header_values(scope: Mapping[str, Any]) -> list[str]:
    """Return the `Host` headers of an ASGI request."""
    return [value.decode("latin-1") for name, value in scope["headers"] if name == b"host"]


def is_local_request(scope: Mapping[str, Any]) -> bool:
    """Return whether an ASGI request comes from this machine, and not through a local proxy.

    A proxy with default settings may add no header, and uses HTTP/1.0, as nginx with a bare `proxy_pass`.
    """
    client = scope.get("client")
    if not client or not is_loopback_address(client[0]) or scope.get("http_version") != "1.1":
        return False
    if any(name in _PROXY_HEADERS or name.startswith(_FORWARDED_PREFIX) for name, _ in scope["headers"]):
        return False
    hosts = host_header_values(scope)
    return bool(hosts) and all(is_loopback_name(parse_host(value)) for value in hosts)
