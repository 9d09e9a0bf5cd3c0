"""The exporter against a collector that accepts, refuses, hangs or is missing."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator

import pytest

from svc.tracing import exporter as exporter_module
from svc.tracing.exporter import SpanExporter
from svc.tracing.settings import TraceExportSettings, read_trace_settings
from svc.tracing.span import Span
from tests.fakes.collector import Collector
from tests.fakes.ports import closed_port
from tests.unit.tracing.test_otlp import make_span


class Source:
    """A request with two spans."""

    span_count = 2

    def build_spans(self) -> list[Span]:
        return [make_span(), make_span()]


class BrokenSource(Source):
    def build_spans(self) -> list[Span]:
        raise ZeroDivisionError


@pytest.fixture
def collector() -> Iterator[Collector]:
    with Collector() as running:
        yield running


def settings_of(url: str, **more: str) -> TraceExportSettings:
    found = read_trace_settings({"OTEL_EXPORTER_OTLP_ENDPOINT": url, "OTEL_BSP_SCHEDULE_DELAY": "10", **more})
    assert found is not None
    return found


def start(url: str, **more: str) -> SpanExporter:
    exporter = SpanExporter(settings_of(url, **more))
    exporter.start()
    return exporter


def drops(exporter: SpanExporter) -> tuple[int, int]:
    return exporter.queue_drops, exporter.export_drops


def wait_drops(exporter: SpanExporter, wanted: tuple[int, int]) -> None:
    """Wait for the exporter's thread, which may be slow on a busy machine."""
    deadline = time.monotonic() + 20
    while drops(exporter) != wanted:
        assert time.monotonic() < deadline, drops(exporter)
        time.sleep(0.01)


@pytest.mark.parametrize("compression", ["none", "gzip"])
@pytest.mark.parametrize("protocol", ["http/protobuf", "http/json"])
def test_exporter_sends_spans_with_headers(collector: Collector, protocol: str, compression: str) -> None:
    exporter = start(
        collector.url,
        OTEL_EXPORTER_OTLP_PROTOCOL=protocol,
        OTEL_EXPORTER_OTLP_COMPRESSION=compression,
        OTEL_EXPORTER_OTLP_HEADERS="x-token=secret",
    )
    exporter.add(Source())
    spans = collector.wait_spans(2)
    exporter.close()
    assert [span.trace_id for span in spans] == [bytes(range(1, 17))] * 2
    path, headers, _ = collector.requests[0]
    assert (path, headers["x-token"]) == ("/v1/traces", "secret")
    assert exporter.exported_spans == 2
    assert drops(exporter) == (0, 0)


def test_exporter_close_sends_the_queue(collector: Collector) -> None:
    exporter = start(collector.url, OTEL_BSP_SCHEDULE_DELAY="3600000")
    for _ in range(50):
        exporter.add(Source())
    exporter.close()
    assert len(collector.spans) == 100


def test_exporter_full_batch_is_sent_before_the_delay(collector: Collector) -> None:
    exporter = start(collector.url, OTEL_BSP_SCHEDULE_DELAY="3600000", OTEL_BSP_MAX_EXPORT_BATCH_SIZE="10")
    for _ in range(5):
        exporter.add(Source())
    collector.wait_spans(10)
    exporter.close()


def test_exporter_retryable_status_is_retried(collector: Collector, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exporter_module, "EXPORT_RETRY_SECONDS", 0.01)
    collector.statuses = [(503, {}), (429, {"retry-after": "0"}), (502, {})]
    exporter = start(collector.url)
    exporter.add(Source())
    collector.wait_spans(2)
    exporter.close()
    assert len(collector.requests) == 4
    assert drops(exporter) == (0, 0)


@pytest.mark.parametrize(
    "refusal", [(400, {}), (500, {}), (302, {"location": "/elsewhere"}), (429, {"retry-after": "60"})]
)
def test_exporter_refused_batch_is_counted_and_not_retried(
    collector: Collector, refusal: tuple[int, dict[str, str]]
) -> None:
    collector.statuses = [refusal]
    exporter = start(collector.url)
    exporter.add(Source())
    collector.until(lambda: len(collector.requests) == 1)
    exporter.close()
    wait_drops(exporter, (0, 2))
    assert len(collector.requests) == 1


def test_exporter_full_queue_drops_and_counts(collector: Collector) -> None:
    collector.released.clear()
    exporter = start(collector.url, OTEL_BSP_MAX_QUEUE_SIZE="10")
    exporter.add(Source())
    collector.until(lambda: len(collector.requests) == 1)
    for _ in range(20):
        exporter.add(Source())
    assert exporter.queue_drops == 30
    collector.released.set()
    collector.wait_spans(12)
    exporter.close()


def test_exporter_hanging_collector_does_not_block_close(collector: Collector, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exporter_module, "FLUSH_SECONDS", 0.2)
    collector.released.clear()
    exporter = start(collector.url)
    exporter.add(Source())
    collector.until(lambda: len(collector.requests) == 1)
    exporter.add(Source())
    exporter.close()
    assert not collector.spans


def test_exporter_response_whose_body_never_ends_is_success() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        exporter = start(url, OTEL_EXPORTER_OTLP_TIMEOUT="300")
        exporter.add(Source())
        connection, _ = listener.accept()
        with connection:
            connection.recv(65536)
            connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n")
            exporter.close()
    assert (exporter.exported_spans, drops(exporter)) == (2, (0, 0))


def test_exporter_dead_collector_drops_and_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exporter_module, "FLUSH_SECONDS", 0.5)
    exporter = start(f"http://127.0.0.1:{closed_port()}")
    exporter.add(Source())
    exporter.close()
    wait_drops(exporter, (0, 2))
    assert exporter.values()['svc_trace_spans_dropped_total{reason="export_failed"}'] == 2


def test_exporter_defect_in_a_batch_does_not_end_the_export(collector: Collector) -> None:
    exporter = start(collector.url)
    exporter.add(BrokenSource())
    exporter.add(Source())
    collector.wait_spans(2)
    exporter.close()
    assert (exporter.exported_spans, *drops(exporter)) == (2, 0, 2)
