"""Local requests, and the `Host` values that a loopback listener accepts."""

from __future__ import annotations

from typing import Any

import pytest

from svc.allowed_hosts import AllowedHosts, is_local_request, is_loopback_address, parse_host


def scope(**changes: Any) -> dict[str, Any]:
    """Return the scope of a local request. `headers` are added to Host."""
    headers = [(b"host", changes.pop("host", b"127.0.0.1:3000")), *changes.pop("headers", [])]
    return {"client": ("127.0.0.1", 5000), "http_version": "1.1", "headers": headers, **changes}


@pytest.mark.parametrize(
    ("address", "expected"),
    [
        ("127.0.0.1", True),
        ("127.9.9.9", True),
        ("::1", True),
        ("::ffff:127.0.0.1", True),  # an IPv4 client on a dual-stack socket
        ("::ffff:10.0.0.1", False),
        ("10.0.0.1", False),
        ("0.0.0.0", False),
        ("", False),
    ],
)
def test_is_loopback_address_ipv4_and_ipv6_are_classified(address: str, expected: bool) -> None:
    assert is_loopback_address(address) is expected
    assert is_local_request(scope(client=(address, 1))) is expected


@pytest.mark.parametrize(
    ("value", "name"),
    [
        ("localhost", "localhost"),
        ("LocalHost:3000", "localhost"),
        ("localhost.", "localhost"),
        ("[::1]:3000", "::1"),
        ("127.0.0.1:", "127.0.0.1"),
        ("evil.example/127.0.0.1", ""),
        ("localhost@evil.example", ""),
        ("[::1", ""),
        ("", ""),
    ],
)
def test_parse_host_drops_port_and_case(value: str, name: str) -> None:
    assert parse_host(value) == name


@pytest.mark.parametrize("host", [b"localhost", b"127.0.0.1:3000", b"[::1]:3000", b"svc.localhost:3000"])
def test_is_local_request_loopback_host_returns_true(host: bytes) -> None:
    assert is_local_request(scope(host=host))


@pytest.mark.parametrize(
    "host", [b"evil.example", b"10.0.0.1", b"localhost.evil.example", b"127.0.0.1.evil.example", b""]
)
def test_is_local_request_foreign_host_returns_false(host: bytes) -> None:
    assert not is_local_request(scope(host=host))


@pytest.mark.parametrize(
    "name",
    [
        b"forwarded",
        b"x-forwarded-for",
        b"x-forwarded-host",
        b"x-forwarded-proto",
        b"x-forwarded-x",
        b"x-real-ip",
        b"via",
    ],
)
def test_is_local_request_proxy_header_returns_false(name: bytes) -> None:
    assert not is_local_request(scope(headers=[(name, b"")]))


def test_is_local_request_http_1_0_returns_false() -> None:
    assert not is_local_request(scope(http_version="1.0"))


def test_is_local_request_without_host_or_client_returns_false() -> None:
    assert not is_local_request({"client": ("127.0.0.1", 1), "http_version": "1.1", "headers": []})
    assert not is_local_request(scope(client=None))
    assert not is_local_request(scope(headers=[(b"host", b"evil.example")]))


def test_allowed_hosts_on_loopback_allows_loopback_and_configured_hosts() -> None:
    hosts = AllowedHosts("127.0.0.1", ["svc.internal"])
    assert all(hosts.allows([value]) for value in ("localhost:1", "[::1]", "SVC.internal:3000"))
    assert not any(hosts.allows([value]) for value in ("evil.example", "", "x.svc.internal"))
    assert not hosts.allows(["localhost", "evil.example"])
    assert hosts.allows([])


@pytest.mark.parametrize("listening_on", ["0.0.0.0", "::", "192.0.2.7"])
def test_allowed_hosts_on_other_address_allows_any_host(listening_on: str) -> None:
    assert AllowedHosts(listening_on).allows(["evil.example"])
