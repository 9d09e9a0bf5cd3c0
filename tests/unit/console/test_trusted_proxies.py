"""The address of a client behind proxies."""

from __future__ import annotations

import pytest

from svc.console.trusted_proxies import TrustedProxies


@pytest.mark.parametrize(
    ("peer", "forwarded_for", "client"),
    [
        ("192.0.2.1", "198.51.100.7", "192.0.2.1"),
        ("10.0.0.1", "198.51.100.7", "198.51.100.7"),
        ("10.0.0.1", "1.1.1.1, 198.51.100.7, 10.0.0.2", "198.51.100.7"),
        ("10.0.0.1", None, "10.0.0.1"),
        ("10.0.0.1", "", "10.0.0.1"),
        ("10.0.0.1", "10.0.0.9", "10.0.0.9"),
        ("10.0.0.1", "1.1.1.1, garbage", "garbage"),
        ("", "1.1.1.1", ""),
        ("::ffff:10.0.0.1", "198.51.100.7", "198.51.100.7"),
    ],
)
def test_forwarded_address_counts_only_from_trusted_proxies(peer: str, forwarded_for: str | None, client: str) -> None:
    assert TrustedProxies(["10.0.0.0/8"]).client_address(peer, forwarded_for) == client


def test_no_proxy_is_trusted_by_default() -> None:
    assert TrustedProxies([]).client_address("127.0.0.1", "1.1.1.1") == "127.0.0.1"
