"""Spans and metrics of the speech processes, with a real collector."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from tests.fakes.collector import Collector, attributes_of
from tests.speech import material
from tests.speech.gateway import KEY, Gateway, run_gateway, session

ESPEAK, MOONSHINE = "espeak-en-us", "moonshine-tiny-en"
TEXT = "The quick brown fox jumps over the lazy dog."
WAIT_SECONDS = 60.0


@pytest.fixture(scope="module")
def collector() -> Iterator[Collector]:
    with Collector() as running:
        yield running


@pytest.fixture(scope="module")
def traced(tmp_path_factory: pytest.TempPathFactory, collector: Collector) -> Iterator[Gateway]:
    environ = {
        "SVC_REGISTRY_ROOT": str(material.make_voices()),
        "OTEL_EXPORTER_OTLP_ENDPOINT": collector.url,
        "OTEL_BSP_SCHEDULE_DELAY": "50",
    }
    with run_gateway(tmp_path_factory.mktemp("traced"), **environ) as running:
        yield running


def trace_headers(number: int) -> tuple[str, dict[str, str]]:
    """Return a trace id, and the headers of a request in this trace."""
    trace_id = f"{number:032x}"
    headers = {"authorization": f"Bearer {KEY}", "traceparent": f"00-{trace_id}-00f067aa0ba902b7-01"}
    return trace_id, headers


def wait_spans(collector: Collector, trace_id: str) -> dict[str, Span]:
    """Return the spans of a trace by kind, when all three have arrived."""

    def found() -> list[Span]:
        return [span for span in collector.spans if span.trace_id.hex() == trace_id]

    collector.until(lambda: len(found()) >= 3, WAIT_SECONDS)
    return {Span.SpanKind.Name(span.kind).removeprefix("SPAN_KIND_").lower(): span for span in found()}


def speak(gateway: Gateway, headers: dict[str, str], **fields: Any) -> httpx2.Response:
    body = {"model": ESPEAK, "input": TEXT, "voice": "alloy", "response_format": "wav", **fields}
    return httpx2.post(
        f"{gateway.address}/v1/audio/speech", json=body, headers=headers, timeout=WAIT_SECONDS, trust_env=False
    )


def read_metrics(gateway: Gateway) -> dict[str, float]:
    page = httpx2.get(f"{gateway.address}/metrics", timeout=WAIT_SECONDS, trust_env=False).text
    rows = [line.rpartition(" ") for line in page.splitlines() if line.startswith("svc_speech")]
    return {name: float(value) for name, _, value in rows}


def wait_metric(gateway: Gateway, name: str, minimum: float) -> dict[str, float]:
    """Return the metrics once one of them has at least this value."""
    deadline = time.monotonic() + WAIT_SECONDS
    while (metrics := read_metrics(gateway)).get(name, 0.0) < minimum:
        assert time.monotonic() < deadline, metrics
        time.sleep(0.05)
    return metrics


def check_worker_span(spans: dict[str, Span], name: str) -> dict[str, Any]:
    """Assert that the worker's span is a child of the attempt, and return its attributes."""
    server, client, worker = spans["server"], spans["client"], spans["internal"]
    assert server.parent_span_id.hex() == "00f067aa0ba902b7"
    assert client.parent_span_id == server.span_id
    assert worker.parent_span_id == client.span_id
    assert worker.name == name
    assert worker.start_time_unix_nano < worker.end_time_unix_nano
    attributes = attributes_of(worker)
    assert attributes["svc.request_id"] == attributes_of(server)["svc.request_id"]
    assert attributes["gen_ai.request.model"] == name.partition(" ")[2]
    assert attributes["process.pid"] > 0
    assert attributes["svc.speech.inferences"] >= 1
    assert attributes["svc.speech.engine_seconds"] > 0
    return attributes


def test_synthesis_has_a_span_of_the_process_that_speaks(traced: Gateway, collector: Collector) -> None:
    trace_id, headers = trace_headers(1)
    assert speak(traced, headers).status_code == 200
    attributes = check_worker_span(wait_spans(collector, trace_id), f"synthesize {ESPEAK}")
    assert attributes["gen_ai.operation.name"] == "text_to_speech"
    assert attributes["svc.speech.audio_seconds"] > 1
    assert attributes["process.pid"] != traced.process.pid
    metrics = wait_metric(traced, 'svc_speech_requests_total{kind="synthesis"}', 1)
    assert metrics[f'svc_speech_synthesis_seconds_count{{model="{ESPEAK}"}}'] >= 1
    assert metrics[f'svc_speech_real_time_factor_count{{model="{ESPEAK}"}}'] >= 1
    assert metrics["svc_speech_spoken_seconds_total"] > 1


def test_failed_synthesis_has_the_error_in_the_span(traced: Gateway, collector: Collector) -> None:
    trace_id, headers = trace_headers(2)
    assert speak(traced, headers, input="...").status_code == 400
    worker = wait_spans(collector, trace_id)["internal"]
    assert worker.status.code == worker.status.STATUS_CODE_ERROR
    assert attributes_of(worker)["error.type"] == "invalid_request"


def test_upload_has_a_span_of_the_worker_that_transcribes(traced: Gateway, collector: Collector) -> None:
    trace_id, headers = trace_headers(3)
    audio = speak(traced, {"authorization": f"Bearer {KEY}"}).content
    response = httpx2.post(
        f"{traced.address}/v1/audio/transcriptions",
        data={"model": MOONSHINE},
        files={"file": ("a.wav", audio)},
        headers=headers,
        timeout=WAIT_SECONDS,
        trust_env=False,
    )
    assert response.status_code == 200
    attributes = check_worker_span(wait_spans(collector, trace_id), f"transcribe {MOONSHINE}")
    assert attributes["gen_ai.operation.name"] == "speech_to_text"
    assert attributes["svc.speech.queue_seconds"] >= 0
    assert attributes["svc.speech.real_time_factor"] > 0
    assert attributes["process.pid"] in traced.workers()
    metrics = wait_metric(traced, f'svc_speech_decode_seconds_count{{model="{MOONSHINE}"}}', 1)
    assert metrics[f'svc_speech_queue_seconds_count{{model="{MOONSHINE}"}}'] >= 1
    assert metrics[f'svc_speech_real_time_factor_count{{model="{MOONSHINE}"}}'] >= 1


async def test_live_session_has_a_span_of_its_stream(
    traced: Gateway, collector: Collector, clips: dict[str, Path]
) -> None:
    trace_id, headers = trace_headers(4)
    async with session(traced, headers=headers) as client:
        await client.send_audio(material.read_pcm(clips["en-hello-world"]))
        await client.send_message(type="flush")
        await client.wait_for("final", timeout=WAIT_SECONDS)
        await client.send_message(type="close")
        await client.wait_for("closed", timeout=WAIT_SECONDS)
    spans = wait_spans(collector, trace_id)
    attributes = check_worker_span(spans, f"transcribe {MOONSHINE}")
    assert spans["server"].name == "GET /v1/audio/transcriptions/stream"
    assert attributes["svc.status"] == "ok"
    assert attributes["svc.speech.audio_seconds"] > 0.5
    metrics = wait_metric(traced, "svc_speech_session_seconds_count", 1)
    assert metrics["svc_speech_session_seconds_sum"] > 0
