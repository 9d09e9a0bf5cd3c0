"""Requests with a foreign `Host` header, as in a DNS rebinding attack from a browser."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.e2e.conftest import StartGateway
from tests.e2e.harness import GPT, HI, Gateway

FOREIGN = {"host": "evil.example"}
CHAT = {"model": GPT, "messages": HI}


@pytest.mark.parametrize("path", ["/", "/openapi.json", "/nope"])
def test_host_foreign_without_key_returns_421(gateway: Gateway, path: str) -> None:
    got = gateway.request("GET", path, key=None, headers=FOREIGN)
    assert (got.status, got.code) == (421, "invalid_request")
    assert "'hosts' in [gateway]" in got.json["error"]["message"]
    assert gateway.request("GET", path, key="wrong", headers=FOREIGN).status == 421
    assert gateway.request("GET", path, key=None).status != 421


def test_host_foreign_without_key_under_v1_returns_401(gateway: Gateway) -> None:
    for method, path, body in (("GET", "/v1/models", None), ("POST", "/v1/chat/completions", CHAT)):
        got = gateway.request(method, path, body, key=None, headers=FOREIGN)
        assert (got.status, got.code) == (401, "authentication_error")


def test_host_foreign_with_valid_key_is_served(gateway: Gateway) -> None:
    for path in ("/", "/v1/models", "/metrics", "/openapi.json"):
        assert gateway.request("GET", path, headers=FOREIGN).status == 200
    assert gateway.request("GET", "/nope", headers=FOREIGN).status == 404
    assert gateway.chat(headers=FOREIGN).status == 200


def test_host_foreign_health_is_served(gateway: Gateway) -> None:
    assert gateway.request("GET", "/health", key=None, headers=FOREIGN).status == 200


@pytest.mark.parametrize("method", ["GET", "HEAD"])
def test_root_without_key_returns_200(gateway: Gateway, method: str) -> None:
    with gateway.raw() as client:
        assert client.request(method, "/", key=None).status == 200
        assert client.request("GET", "/health").status == 200


def test_host_configured_is_served_but_metrics_require_key(start_gateway: StartGateway) -> None:
    gateway = start_gateway(config='[gateway]\nhosts = ["svc.internal"]\n')
    named = {"host": "svc.internal:3000"}
    assert gateway.request("GET", "/", key=None, headers=named).status == 200
    assert gateway.request("GET", "/", key=None, headers=FOREIGN).status == 421
    assert gateway.request("GET", "/metrics", key=None, headers=named).status == 401
    assert gateway.request("GET", "/metrics", headers=named).status == 200


def test_host_any_is_served_when_listening_on_all_addresses(start_gateway: StartGateway) -> None:
    gateway = start_gateway(config='[gateway]\nhost = "0.0.0.0"\n')
    assert gateway.request("GET", "/", key=None, headers=FOREIGN).status == 200
    assert gateway.request("GET", "/metrics", key=None, headers=FOREIGN).status == 401


@pytest.mark.parametrize(
    "headers",
    [
        FOREIGN,
        {"forwarded": "for=203.0.113.9"},
        {"x-forwarded-for": "203.0.113.9"},
        {"x-forwarded-proto": "https"},
        {"x-real-ip": "203.0.113.9"},
        {"via": "1.1 proxy"},
    ],
)
def test_metrics_through_proxy_require_key(gateway: Gateway, headers: dict[str, str]) -> None:
    refused = gateway.request("GET", "/metrics", key=None, headers=headers)
    assert (refused.status, refused.code) == (401, "authentication_error")
    assert gateway.request("GET", "/metrics", headers=headers).status == 200
    assert gateway.request("GET", "/metrics", key=None).status == 200


def test_metrics_over_http_1_0_require_key(gateway: Gateway) -> None:
    with gateway.raw() as client:
        client.send(b"GET /metrics HTTP/1.0\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n")
        assert client.read().status == 401


def test_host_check_in_workers_uses_command_line_address(tmp_path: Path) -> None:
    gateway = Gateway(tmp_path, env={}, config="[gateway]\nhost = '127.0.0.1'\nworkers = 2\n")
    gateway.command += ["gateway", "--host", "0.0.0.0"]
    del gateway._arguments[0]
    gateway.start()
    try:
        for _ in range(6):  # each worker may accept the connection
            assert gateway.request("GET", "/", key=None, headers=FOREIGN).status == 200
    finally:
        assert gateway.stop() == 0
