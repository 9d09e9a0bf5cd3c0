"""Spans of the registry, received by a collector that uses OpenTelemetry's own package, and its histogram."""

import http.client
import re
import socket
import time

import pytest
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from tests.fakes.collector import Collector, attributes_of

from .conftest import make_bundle

PARENT = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
PATH = "/bundles/m/1.0/any/m.xyb"
ROUTE = "/bundles/{model_id}/{version}/{platform}"


@pytest.fixture
def collector():
    with Collector() as running:
        yield running


def send(server, method, path, body=None, **headers):
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=20)
    connection.request(method, path, body, {name.replace("_", "-"): value for name, value in headers.items()})
    answer = connection.getresponse()
    return answer.status, answer.read()


def serve(machine, collector):
    environ = {"OTEL_EXPORTER_OTLP_ENDPOINT": collector.url, "OTEL_BSP_SCHEDULE_DELAY": "50"}
    return machine(SVC_REGISTRY_KEYS="publisher", **environ).serve()


def test_traces_publish_resolve_download_and_errors(machine, collector, tmp_path):
    server = serve(machine, collector)
    data = make_bundle(tmp_path / "m.xyb").read_bytes()
    key = {"authorization": "Bearer publisher"}
    assert send(server, "PUT", PATH, data, traceparent=PARENT, tracestate="a=1", **key)[0] == 201
    assert send(server, "GET", "/index/m", traceparent=PARENT)[0] == 200
    assert send(server, "GET", PATH, traceparent=PARENT) == (200, data)
    assert send(server, "GET", "/bundles/m/2.0/any/m.xyb", traceparent=PARENT)[0] == 404
    assert send(server, "PUT", PATH, b"other", traceparent=PARENT)[0] == 401
    assert send(server, "POST", "/bundles/m/1.0/any/yank", traceparent=PARENT, **key)[0] == 200
    assert send(server, "GET", "/health", traceparent=PARENT)[0] == 200
    spans = collector.wait_spans(6)
    assert {(span.kind, span.trace_id.hex(), span.parent_span_id.hex()) for span in spans} == {
        (Span.SPAN_KIND_SERVER, PARENT.split("-")[1], PARENT.split("-")[2])
    }
    assert [span.name for span in spans] == [
        *(f"PUT {ROUTE}/{{file}}", "GET /index/{model_id}", f"GET {ROUTE}/{{file}}", f"GET {ROUTE}/{{file}}"),
        *(f"PUT {ROUTE}/{{file}}", f"POST {ROUTE}/yank"),
    ]
    found = [attributes_of(span) for span in spans]
    assert [each["svc.operation"] for each in found] == [
        "publish",
        "resolve",
        "download",
        "download",
        "publish",
        "yank",
    ]
    assert [each["http.response.status_code"] for each in found] == [201, 200, 200, 404, 401, 200]
    assert [each.get("error.type") for each in found] == [
        *(None, None, None, "bundle_not_found", "authentication_error", None)
    ]
    assert [each["svc.bundle"] for each in found] == ["m@1.0", "m", "m@1.0", "m@2.0", "m@1.0", "m@1.0"]
    assert (found[0]["http.request.body.size"], found[2]["http.response.body.size"]) == (len(data), len(data))
    assert (found[0]["svc.platform"], found[2]["client.address"]) == ("any", "127.0.0.1")
    assert collector.resource()["service.name"] == "svc-registry"
    for _, _, body in collector.requests:
        assert b"publisher" not in body
    page = wait_exported(server, 6)
    counts = dict(re.findall(r'svc_registry_request_seconds_count\{operation="(\w+)"\} (\d+)', page))
    del counts["other"]  # the reads of this page
    assert counts == {"publish": "2", "resolve": "1", "download": "2", "yank": "1"}
    assert 'svc_registry_request_seconds_bucket{operation="download",le="+Inf"} 2' in page


def wait_exported(server, spans):
    """Return the metrics once they count the exported spans. The collector has a batch before the registry knows."""
    deadline = time.monotonic() + 20
    while True:
        page = send(server, "GET", "/metrics")[1].decode()
        found = re.search(r"^svc_trace_spans_exported_total (\d+)", page, re.M)
        if found and int(found[1]) >= spans:
            return page
        assert time.monotonic() < deadline, page
        time.sleep(0.02)


def test_traces_download_that_the_client_aborts_is_client_closed(machine, collector, tmp_path):
    server = serve(machine, collector)
    data = make_bundle(tmp_path / "m.xyb", data=b"x" * (32 << 20)).read_bytes()
    assert send(server, "PUT", PATH, data, authorization="Bearer publisher")[0] == 201
    with socket.create_connection(("127.0.0.1", server.port), timeout=20) as client:
        client.sendall(f"GET {PATH} HTTP/1.1\r\nhost: localhost\r\ntraceparent: {PARENT}\r\n\r\n".encode())
        assert client.recv(12) == b"HTTP/1.1 200"
    found = attributes_of(collector.wait_spans(2)[-1])
    assert (found["svc.operation"], found["svc.status"]) == ("download", "client_closed")


def test_traces_off_exports_nothing(machine, collector):
    server = machine().serve()
    assert send(server, "GET", "/index", traceparent=PARENT)[0] == 200
    assert not re.search(rb"^svc_trace_spans_exported_total", send(server, "GET", "/metrics")[1], re.M)
    assert collector.requests == []
