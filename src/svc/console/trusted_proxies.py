"""The address of a client behind proxies."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable


class TrustedProxies:
    """The proxies whose `X-Forwarded-For` counts."""

    def __init__(self, networks: Iterable[str]) -> None:
        """`networks` are addresses or networks. Raises ValueError for another text."""
        self._networks = [ipaddress.ip_network(network, strict=False) for network in networks]

    def client_address(self, peer: str, forwarded_for: str | None) -> str:
        """Return the address of the client: the last one in `X-Forwarded-For` that is not a trusted proxy."""
        address = peer
        for hop in reversed((forwarded_for or "").split(",")):
            if not self._trusts(address) or not hop.strip():
                break
            address = hop.strip()
        return address

    def _trusts(self, address: str) -> bool:
        parsed = parse_address(address)
        return parsed is not None and any(parsed in network for network in self._networks)


def parse_address(text: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    """Return an IP address, or None for another text. An IPv4-mapped IPv6 address is its IPv4 address (RFC 4291)."""
    try:
        address = ipaddress.ip_address(text)
    except ValueError:
        return None
    return getattr(address, "ipv4_mapped", None) or address
