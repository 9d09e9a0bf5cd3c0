"""What a registry counts, and who may read it."""

import http.client
import re

import pytest

from .conftest import make_bundle


def get(server, path="/metrics", **headers):
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=10)
    connection.request("GET", path, headers={name.replace("_", "-"): value for name, value in headers.items()})
    answer = connection.getresponse()
    return answer.status, answer.read().decode()


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


@pytest.mark.parametrize("headers", [{"Host": "evil.example"}, {"X_Forwarded_For": "203.0.113.9"}, {"Via": "1.1 p"}])
def test_metrics_through_a_proxy_need_a_key(server, headers):
    assert get(server, **headers)[0] == 401
    assert get(server, Authorization="Bearer publisher", **headers)[0] == 403
    assert get(server, Authorization="Bearer watcher", **headers)[0] == 200
