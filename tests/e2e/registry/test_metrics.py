"""The registry's metrics, their access control, and the check of the `Host` header."""

import http.client
import re
import socket

import pytest

from .conftest import make_bundle


def get(server, path="/metrics", **headers):
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=10)
    connection.request("GET", path, headers={name.replace("_", "-"): value for name, value in headers.items()})
    answer = connection.getresponse()
    return answer.status, answer.read().decode("latin-1")


@pytest.fixture
def server(machine, tmp_path):
    one = machine(SVC_API_KEYS="watcher", SVC_REGISTRY_KEYS="publisher")
    one.run("registry", "add", make_bundle(tmp_path / "m.xyb"))
    return one.serve()


def test_metrics_count_responses_and_bytes(server):
    bundle = "/bundles/m/1.0/any/m.xyb"
    statuses = [get(server, bundle, range="bytes=0-9")[0] for _ in range(2)]
    assert statuses == [206, 206]
    assert get(server, "/bundles/m/2.0/any/m.xyb")[0] == 404
    assert get(server, "/index")[0] == 200
    status, page = get(server)
    assert status == 200
    found = dict(re.findall(r"^(\w+(?:\{[^}]*\})?) ([0-9.]+)$", page, re.M))
    assert found['svc_registry_requests_total{method="GET",status="206"}'] == "2"
    assert found['svc_registry_requests_total{method="GET",status="404"}'] == "1"
    assert found['svc_registry_requests_total{method="GET",status="200"}'] == "1"
    assert found["svc_registry_bundle_bytes_total"] == "20"
    assert found["svc_registry_bundles"] == "1"


def test_metrics_count_malformed_requests(server):
    with socket.create_connection(("127.0.0.1", server.port), timeout=10) as client:
        client.sendall(b"GET  /index HTTP/1.1\r\nhost: localhost\r\n\r\n")
        assert client.recv(12) == b"HTTP/1.1 400"
    assert 'svc_registry_requests_total{method="other",status="400"} 1' in get(server)[1]


@pytest.mark.parametrize("headers", [{"Host": "evil.example"}, {"X_Forwarded_For": "203.0.113.9"}, {"Via": "1.1 p"}])
def test_metrics_through_proxy_require_key_with_scope(server, headers):
    assert get(server, **headers)[0] == 401
    assert get(server, Authorization="Bearer publisher", **headers)[0] == 403
    assert get(server, Authorization="Bearer watcher", **headers)[0] == 200


@pytest.mark.parametrize("path", ["/index", "/index/m", "/bundles/m/1.0/any/m.xyb"])
def test_host_unknown_without_key_returns_421(server, path):
    status, body = get(server, path, Host="evil.example")
    assert (status, "'hosts' in [gateway]" in body) == (421, True)
    assert get(server, path, Host="evil.example", Authorization="Bearer wrong")[0] == 421
    assert get(server, path, Host="evil.example", Authorization="Bearer watcher", Range="bytes=0-1")[0] in (200, 206)
    assert get(server, path, Host="localhost:8080", Range="bytes=0-1")[0] in (200, 206)
    assert get(server, "/health", Host="evil.example")[0] == 200


def test_host_configured_is_served(machine, tmp_path):
    one = machine("named")
    (one.home / "svc.toml").write_text('[gateway]\nhosts = ["bundles.internal"]\n')
    server = one.serve()
    assert get(server, "/index", Host="bundles.internal")[0] == 200
    assert get(server, "/index", Host="evil.example")[0] == 421
