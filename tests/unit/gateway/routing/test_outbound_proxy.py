"""The choice of a proxy from settings and environment."""

from __future__ import annotations

from urllib.parse import urlsplit

import pytest

from svc.errors import UsageError
from svc.gateway.routing.outbound_proxy import OutboundProxy, is_bypassed, parse_proxy, select_proxy

API = urlsplit("https://api.example.com/v1")


@pytest.mark.parametrize(
    ("host", "no_proxy", "expected"),
    [
        ("api.example.com", "", False),
        ("api.example.com", "*", True),
        ("api.example.com", "example.com", True),
        ("api.example.com", ".example.com", True),
        ("api.example.com", "*.example.com", True),
        ("API.Example.com.", "example.COM", True),
        ("badexample.com", "example.com", False),
        ("example.com", ".example.com", True),
        ("api.example.com", "a.b, api.example.com:443 ,c", True),
        ("api.example.com", "api.example.com:8443", False),
        ("10.1.2.3", "10.0.0.0/8", True),
        ("11.1.2.3", "10.0.0.0/8", False),
        ("10.1.2.3", "10.1.2.3", True),
        ("::1", "[::1]", True),
        ("2001:db8::5", "2001:db8::/32", True),
        ("api.example.com", "10.0.0.0/8,/,:,:80,.", False),
        ("api.example.com", "999.0.0.0/8", False),
    ],
)
def test_is_bypassed_entry_matches_host(host: str, no_proxy: str, expected: bool) -> None:
    assert is_bypassed(host, 443, no_proxy) is expected


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("http://proxy:3128", OutboundProxy("proxy", 3128)),
        ("proxy:3128", OutboundProxy("proxy", 3128)),
        ("https://proxy/", OutboundProxy("proxy", 443, uses_tls=True)),
        ("http://[::1]:8080", OutboundProxy("::1", 8080)),
        ("http://user:p%40ss@proxy:1", OutboundProxy("proxy", 1, authorization="Basic dXNlcjpwQHNz")),
        ("http://user@proxy:1", OutboundProxy("proxy", 1, authorization="Basic dXNlcjo=")),
    ],
)
def test_parse_proxy_address_has_host_port_and_credentials(url: str, expected: OutboundProxy) -> None:
    assert parse_proxy(url, "HTTPS_PROXY") == expected
    assert "dXNl" not in repr(expected)


@pytest.mark.parametrize(
    "url", ["", "socks5://p:1", "http://p:0", "http://p:99999", "http://p/path", "http://p q", "http://:secret@"]
)
def test_parse_proxy_invalid_address_raises_without_it(url: str) -> None:
    with pytest.raises(UsageError, match="HTTPS_PROXY is not the address") as caught:
        parse_proxy(url, "HTTPS_PROXY")
    assert "secret" not in caught.value.message


def test_select_proxy_setting_precedes_environment_and_no_proxy() -> None:
    environ = {"HTTPS_PROXY": "http://upper:1", "https_proxy": "http://lower:1", "http_proxy": "http://plain:1"}
    assert select_proxy(None, "s", API, environ) == OutboundProxy("lower", 1)
    assert select_proxy(None, "s", urlsplit("http://x"), environ) == OutboundProxy("plain", 1)
    assert select_proxy("http://own:2", "s", API, {**environ, "NO_PROXY": "*"}) == OutboundProxy("own", 2)
    assert select_proxy("direct", "s", API, environ) is None
    assert select_proxy(None, "s", API, {**environ, "NO_PROXY": "example.com"}) is None
    assert select_proxy(None, "s", API, {}) is None
