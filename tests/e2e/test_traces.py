"""Traces of requests, received by a collector that uses OpenTelemetry's own package."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.proto.trace.v1.trace_pb2 import Span
from opentelemetry.semconv._incubating.attributes import gen_ai_attributes
from opentelemetry.semconv.attributes import (
    client_attributes,
    error_attributes,
    http_attributes,
    service_attributes,
    telemetry_attributes,
    url_attributes,
)

from tests.e2e.accounts.test_keys import until
from tests.e2e.conftest import StartGateway
from tests.e2e.harness import CLAUDE, GPT, KEY, Gateway, run
from tests.fakes import openai_wire
from tests.fakes.collector import Collector, attributes_of
from tests.fakes.ports import closed_port
from tests.fakes.provider import FakeProvider
from tests.fakes.script import answer, pause, reset, sse, stall

PARENT = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
PROMPT = "a secret prompt"
FALLBACK = f'[routing]\nretries = 0\n[routing.fallbacks]\n"{GPT}" = ["{CLAUDE}"]\n'
CONVENTIONS = {
    value
    for module in (
        *(gen_ai_attributes, http_attributes, url_attributes, error_attributes, client_attributes),
        *(service_attributes, telemetry_attributes),
    )
    for value in vars(module).values()
    if isinstance(value, str)
} | {"service.instance.id"}


@pytest.fixture
def collector() -> Iterator[Collector]:
    with Collector() as running:
        yield running


def traced(start_gateway: StartGateway, url: str, config: str | None = None, **more: str) -> Gateway:
    environ = {"OTEL_EXPORTER_OTLP_ENDPOINT": url, "OTEL_BSP_SCHEDULE_DELAY": "50", **more}
    return start_gateway(config=config, env=environ)


def chat(gateway: Gateway, **fields: Any) -> Any:
    return gateway.chat(messages=[{"role": "user", "content": PROMPT}], **fields)


def is_error(span: Span) -> bool:
    return span.status.code == span.status.STATUS_CODE_ERROR


@pytest.mark.parametrize("stream", [False, True])
def test_traces_chat_has_server_span_and_client_span(
    start_gateway: StartGateway, collector: Collector, provider_a: FakeProvider, stream: bool
) -> None:
    gateway = traced(start_gateway, collector.url, OTEL_SERVICE_NAME="edge")
    got = chat(gateway, stream=stream, headers={"traceparent": PARENT, "tracestate": "a=1"})
    server, client = collector.wait_spans(2)
    assert (server.name, server.kind) == ("POST /v1/chat/completions", Span.SPAN_KIND_SERVER)
    assert (client.name, client.kind) == (f"chat {GPT}", Span.SPAN_KIND_CLIENT)
    assert server.trace_id.hex() == client.trace_id.hex() == PARENT.split("-")[1]
    assert server.parent_span_id.hex() == PARENT.split("-")[2]
    assert (client.parent_span_id, server.trace_state) == (server.span_id, "a=1")
    assert server.start_time_unix_nano <= client.start_time_unix_nano < client.end_time_unix_nano
    assert client.end_time_unix_nano <= server.end_time_unix_nano
    assert not is_error(server)
    assert not is_error(client)
    request = attributes_of(server)
    assert request["svc.request_id"] == got.headers["x-request-id"]
    assert (request["http.request.method"], request["http.response.status_code"]) == ("POST", 200)
    assert (request["client.address"], request["svc.status"]) == ("127.0.0.1", "ok")
    attempt = attributes_of(client)
    assert attempt["gen_ai.operation.name"] == "chat"
    assert (attempt["gen_ai.provider.name"], attempt["gen_ai.request.model"]) == ("openai", GPT)
    assert attempt["gen_ai.response.model"] == GPT
    assert attempt["gen_ai.usage.input_tokens"] == openai_wire.USAGE["prompt_tokens"]
    assert attempt["gen_ai.usage.output_tokens"] == openai_wire.USAGE["completion_tokens"]
    assert attempt["gen_ai.response.time_to_first_chunk"] > 0
    assert (attempt["svc.request_id"], attempt["svc.key_id"]) == (request["svc.request_id"], request["svc.key_id"])
    assert collector.resource()["service.name"] == "edge"
    names = {*request, *attempt, *collector.resource()}
    assert {name for name in names if not name.startswith("svc.")} <= CONVENTIONS
    for _, _, body in collector.requests:
        assert PROMPT.encode() not in body
        assert KEY.encode() not in body
        assert openai_wire.TEXT.encode() not in body


CONTENT = "[telemetry]\ncontent = true\n"


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/messages", "/v1/responses"])
@pytest.mark.parametrize("model", [GPT, CLAUDE])
def test_traces_with_content_have_prompts_and_answers(
    start_gateway: StartGateway, collector: Collector, provider_a: FakeProvider, stream: bool, path: str, model: str
) -> None:
    gateway = traced(start_gateway, collector.url, CONTENT)
    prompt = [{"role": "user", "content": PROMPT}]
    body: dict[str, Any] = {"model": model, "stream": stream, "max_tokens": 99, "messages": prompt}
    if path == "/v1/responses":
        body = {"model": model, "stream": stream, "instructions": "Be brief.", "input": prompt}
    if path == "/v1/messages":
        body["system"] = "Be brief."
    assert gateway.request("POST", path, body).status == 200
    server, client = collector.wait_spans(2)
    found = attributes_of(client)
    assert json.loads(found["gen_ai.input.messages"]) == [
        {"role": "user", "parts": [{"type": "text", "content": PROMPT}]}
    ]
    (answered,) = json.loads(found["gen_ai.output.messages"])
    assert (answered["role"], answered["finish_reason"]) == ("assistant", "stop")
    assert {"type": "text", "content": openai_wire.TEXT} in answered["parts"]
    if path != "/v1/chat/completions":
        assert json.loads(found["gen_ai.system_instructions"]) == [{"type": "text", "content": "Be brief."}]
    assert "svc.content_shortened" not in found
    assert {name for name in found if not name.startswith("svc.")} <= CONVENTIONS
    assert not any("messages" in name for name in attributes_of(server))


def test_traces_with_content_leave_out_long_bodies_and_keep_the_answer(
    start_gateway: StartGateway, collector: Collector
) -> None:
    gateway = traced(start_gateway, collector.url, CONTENT)
    assert gateway.chat(messages=[{"role": "user", "content": "x" * 600_000}]).status == 200
    found = attributes_of(collector.wait_spans(2)[1])
    assert "gen_ai.input.messages" not in found
    assert openai_wire.TEXT in found["gen_ai.output.messages"]
    assert found["svc.content_shortened"] is True


def test_traces_failed_attempt_has_its_own_span_with_error(
    start_gateway: StartGateway, collector: Collector, provider_a: FakeProvider
) -> None:
    gateway = traced(start_gateway, collector.url, FALLBACK)
    provider_a.plays(answer(500, openai_wire.error("down")))
    assert chat(gateway).status == 200
    server, first, second = collector.wait_spans(3)
    assert (first.name, second.name) == (f"chat {GPT}", f"chat {CLAUDE}")
    assert first.end_time_unix_nano <= second.start_time_unix_nano
    assert [is_error(span) for span in (server, first, second)] == [False, True, False]
    failed, succeeded = attributes_of(first), attributes_of(second)
    assert (failed["error.type"], failed["http.response.status_code"]) == ("provider_error", 500)
    assert "gen_ai.usage.input_tokens" not in failed
    assert succeeded["gen_ai.provider.name"] == "anthropic"
    assert "error.type" not in attributes_of(server)
    assert attributes_of(server)["svc.attempts"] == 2


@pytest.mark.parametrize("script", [answer(500, openai_wire.error("down")), sse(openai_wire.stream()[:2], end=reset())])
def test_traces_failed_request_has_error_status(
    start_gateway: StartGateway, collector: Collector, provider_a: FakeProvider, script: Any
) -> None:
    gateway = traced(start_gateway, collector.url, "[routing]\nretries = 0\n")
    provider_a.plays(script)
    chat(gateway, stream=True)
    server, client = collector.wait_spans(2)
    assert is_error(server)
    assert is_error(client)
    assert attributes_of(server)["error.type"] == attributes_of(client)["error.type"] == "provider_error"


def test_traces_request_over_its_limit_names_the_limit(start_gateway: StartGateway, collector: Collector) -> None:
    gateway = traced(start_gateway, collector.url, "[limits]\nrpm = 1\n")
    assert [chat(gateway).status for _ in range(2)] == [200, 429]
    spans = collector.wait_spans(3)
    refused = [attributes_of(span) for span in spans if attributes_of(span).get("svc.limit")]
    assert [(each["svc.limit"], each["error.type"]) for each in refused] == [("rpm", "rate_limit_exceeded")]
    assert not any(map(is_error, spans))


def test_traces_hedged_and_abandoned_attempts_are_no_errors(
    start_gateway: StartGateway, collector: Collector, provider_a: FakeProvider
) -> None:
    gateway = traced(start_gateway, collector.url, FALLBACK.replace("retries = 0", "hedge_after = 0.1"))
    provider_a.plays(pause(0.01) + stall())
    assert chat(gateway).status == 200
    spans = collector.wait_spans(3)
    outcomes = {attributes_of(span).get("svc.outcome") for span in spans}
    assert outcomes == {None, "cancelled", "ok"}
    assert not any(map(is_error, spans))


def test_traces_transcription_is_a_child_of_the_clients_span(start_gateway: StartGateway, collector: Collector) -> None:
    gateway = traced(start_gateway, collector.url)
    form = b'--b\r\ncontent-disposition: form-data; name="file"; filename="a.wav"\r\n\r\nno sound\r\n--b--\r\n'
    headers = {"traceparent": PARENT, "tracestate": "a=1", "content-type": "multipart/form-data; boundary=b"}
    got = gateway.request("POST", "/v1/audio/transcriptions", form, headers=headers)
    (span,) = collector.wait_spans(1)
    assert attributes_of(span)["svc.request_id"] == got.headers["x-request-id"]
    assert [span.trace_id.hex(), span.parent_span_id.hex()] == PARENT.split("-")[1:3]
    assert span.trace_state == "a=1"


def test_traces_unsampled_request_has_no_span(start_gateway: StartGateway, collector: Collector) -> None:
    gateway = traced(
        start_gateway,
        collector.url,
        OTEL_TRACES_SAMPLER="parentbased_traceidratio",
        OTEL_TRACES_SAMPLER_ARG="0",
        OTEL_EXPORTER_OTLP_PROTOCOL="http/json",
    )
    assert chat(gateway, headers={"traceparent": PARENT[:-1] + "0"}).status == 200
    assert chat(gateway).status == 200
    assert chat(gateway, headers={"traceparent": PARENT}).status == 200
    assert len(collector.wait_spans(2)) == 2
    gateway.stop()
    assert len(collector.spans) == 2


def test_traces_hanging_collector_is_not_felt_and_drops_are_counted(
    start_gateway: StartGateway, collector: Collector
) -> None:
    collector.released.clear()
    gateway = traced(start_gateway, collector.url, OTEL_BSP_MAX_QUEUE_SIZE="4", OTEL_EXPORTER_OTLP_TIMEOUT="60000")
    assert chat(gateway).status == 200
    collector.until(lambda: bool(collector.requests))
    assert [chat(gateway).status for _ in range(5)] == [200] * 5
    wait_metric(gateway, 'svc_trace_spans_dropped_total{reason="queue_full"} 6')
    assert gateway.stop() == 0


def test_traces_dead_collector_is_not_felt(start_gateway: StartGateway) -> None:
    gateway = traced(start_gateway, f"http://127.0.0.1:{closed_port()}", OTEL_EXPORTER_OTLP_TIMEOUT="1")
    assert chat(gateway).status == 200
    assert "spans were not exported: ConnectionRefusedError" in gateway.logged("spans were not exported", 15)
    wait_metric(gateway, 'svc_trace_spans_dropped_total{reason="export_failed"} 2')


def test_traces_invalid_variable_stops_the_start(tmp_path: Path) -> None:
    got = run("gateway", "--port", "0", home=tmp_path, env={"OTEL_EXPORTER_OTLP_ENDPOINT": "collector:4318"})
    assert got.returncode == 2
    assert "OTEL_EXPORTER_OTLP_ENDPOINT must be a URL" in got.stderr


def metrics(gateway: Gateway) -> str:
    return gateway.request("GET", "/metrics", key=None).body.decode()


def wait_metric(gateway: Gateway, line: str) -> None:
    """Wait for a line of the metrics. A response arrives before its spans are counted."""
    until(lambda: line in metrics(gateway).splitlines(), 20.0)
