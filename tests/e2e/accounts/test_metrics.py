"""Metrics, health and access log as an operator reads them."""

from __future__ import annotations

import json
import re
import time

import pytest

from svc.gateway.observability.prometheus import METRIC_HELP
from tests.e2e.accounts.test_keys import create, until
from tests.e2e.accounts.test_limits import ask
from tests.e2e.conftest import StartGateway
from tests.e2e.harness import CLAUDE, GPT, HI, KEY, Gateway
from tests.fakes import openai_wire
from tests.fakes.http_client import Got, request_bytes
from tests.fakes.provider import FakeProvider
from tests.fakes.script import answer, pause, reset, sse, stall

UPGRADE = {
    "connection": "Upgrade",
    "upgrade": "websocket",
    "sec-websocket-version": "13",
    "sec-websocket-key": "AAAAAAAAAAAAAAAAAAAAAA==",
}
LINE = re.compile(r'((?:svc|gen_ai)_\w+)(\{(\w+="[^"]*")(,\w+="[^"]*")*\})? (-?[0-9.e+-]+)')


def metrics(gateway: Gateway) -> dict[str, float]:
    got = gateway.request("GET", "/metrics", key=None)
    assert got.status == 200
    assert got.headers["content-type"].startswith("text/plain; version=0.0.4")
    found: dict[str, float] = {}
    for line in got.body.decode().splitlines():
        if not line.startswith("#"):
            matched = LINE.fullmatch(line)
            assert matched, line
            name = re.sub(r"_(bucket|sum|count)$", "", matched[1])
            assert name in METRIC_HELP or matched[1] in METRIC_HELP
            found[line.rpartition(" ")[0]] = float(matched[5])
    return found


@pytest.mark.parametrize("workers", [1, 2])
def test_metrics_sum_counters_of_all_workers(start_gateway: StartGateway, workers: int) -> None:
    gateway = start_gateway(config=f"[gateway]\nworkers = {workers}\n")
    made = create(gateway, "--name", "one", "--rpm", "5")
    statuses = [ask(gateway, made["key"]).status for _ in range(7)]
    assert (statuses.count(200), statuses.count(429)) == (5, 2)
    time.sleep(1.5)
    found = metrics(gateway)
    target = 'provider="openai",model="gpt-4o-mini"'
    assert found[f'svc_requests_total{{{target},status="ok",http_status="200"}}'] == 5
    assert found['svc_requests_total{provider="",model="",status="error",http_status="429"}'] == 2
    assert found[f"svc_request_seconds_count{{{target}}}"] == 5
    assert found[f'svc_request_seconds_bucket{{{target},le="+Inf"}}'] == 5
    assert found[f'svc_attempts_total{{{target},outcome="ok"}}'] == 5
    assert found[f'svc_attempt_seconds_count{{{target},outcome="ok"}}'] == 5
    operation = 'gen_ai_operation_name="chat",gen_ai_provider_name="openai",gen_ai_request_model="gpt-4o-mini"'
    assert found[f"gen_ai_client_operation_duration_seconds_count{{{operation}}}"] == 5
    assert found[f'gen_ai_client_operation_duration_seconds_bucket{{{operation},le="+Inf"}}'] == 5
    tokens = f'{operation},gen_ai_token_type="input"'
    assert found[f"gen_ai_client_token_usage_sum{{{tokens}}}"] == found[f"svc_prompt_tokens_total{{{target}}}"] > 0
    assert found[f'gen_ai_client_token_usage_bucket{{{tokens},le="67108864"}}'] == 5
    assert found[f"svc_cost_usd_total{{{target}}}"] >= 0
    assert found['svc_limits_reached_total{limit="rpm"}'] == 2
    assert found['svc_degraded{what="keys"}'] == 0
    assert made["key"] not in str(found)


def attempts(gateway: Gateway) -> dict[str, float]:
    found = metrics(gateway)
    return {name[len("svc_attempts_total") :]: found[name] for name in found if name.startswith("svc_attempts_total")}


GPT_LABELS, CLAUDE_LABELS = 'provider="openai",model="gpt-4o-mini"', f'provider="anthropic",model="{CLAUDE}"'


def test_metrics_attempts_are_labelled_with_their_provider(
    start_gateway: StartGateway, provider_a: FakeProvider
) -> None:
    gateway = start_gateway(config=f'[routing]\nretries = 1\n[routing.fallbacks]\n"{GPT}" = ["{CLAUDE}"]\n')
    provider_a.plays(answer(500, b"{}"), answer(500, b"{}"))
    got = gateway.chat()
    assert (got.status, got.headers["x-svc-provider"], got.headers["x-svc-attempts"]) == (200, "anthropic", "3")
    provider_a.plays(answer(429, b"{}", headers={"retry-after": "60"}))
    assert gateway.chat().status == 200
    found = metrics(gateway)
    assert attempts(gateway) == {
        f'{{{GPT_LABELS},outcome="error",code="provider_error"}}': 2,
        f'{{{GPT_LABELS},outcome="error",code="rate_limit_exceeded"}}': 1,
        f'{{{CLAUDE_LABELS},outcome="ok"}}': 2,
    }
    assert found[f'svc_attempt_seconds_count{{{GPT_LABELS},outcome="error"}}'] == 3
    assert (
        sum(
            value
            for name, value in found.items()
            if name.startswith("gen_ai_client_operation_duration_seconds_count") and "error_type=" in name
        )
        == 3
    )
    assert found[f"svc_retries_total{{{GPT_LABELS}}}"] == 1
    assert found[f"svc_retries_total{{{CLAUDE_LABELS}}}"] == 2


def test_metrics_slow_attempt_duration_is_labelled_with_its_provider(
    start_gateway: StartGateway, provider_a: FakeProvider
) -> None:
    gateway = start_gateway(config=f'[routing]\nretries = 0\n[routing.fallbacks]\n"{GPT}" = ["{CLAUDE}"]\n')
    provider_a.plays(pause(1.0) + answer(500, b"{}"))
    assert gateway.chat().status == 200
    found = metrics(gateway)
    assert found[f'svc_attempt_seconds_sum{{{GPT_LABELS},outcome="error"}}'] >= 1.0
    assert found[f'svc_attempt_seconds_sum{{{CLAUDE_LABELS},outcome="ok"}}'] < 1.0


def test_metrics_interrupted_and_abandoned_streams_are_error_and_cancelled(
    start_gateway: StartGateway, provider_a: FakeProvider
) -> None:
    gateway = start_gateway()
    provider_a.plays(sse(openai_wire.stream()[:3], end=reset()))
    assert gateway.chat(stream=True).status == 200
    assert attempts(gateway) == {f'{{{GPT_LABELS},outcome="error",code="provider_error"}}': 1}
    provider_a.plays(sse(openai_wire.stream()[:3], end=stall()))
    with gateway.raw() as raw:
        raw.send(request_bytes("POST", "/v1/chat/completions", {"model": GPT, "messages": HI, "stream": True}, key=KEY))
        until(lambda: metrics(gateway)["svc_open_streams"] == 1, 20)
    until(lambda: f'{{{GPT_LABELS},outcome="cancelled"}}' in attempts(gateway), 20)
    assert gateway.chat(stream=True).status == 200
    assert attempts(gateway) == {
        f'{{{GPT_LABELS},outcome="error",code="provider_error"}}': 1,
        f'{{{GPT_LABELS},outcome="cancelled"}}': 1,
        f'{{{GPT_LABELS},outcome="ok"}}': 1,
    }


def test_metrics_hedge_loser_counts_as_cancelled(start_gateway: StartGateway, provider_a: FakeProvider) -> None:
    config = f'[routing]\nhedge_after = 0.2\n[routing.fallbacks]\n"{GPT}" = ["{CLAUDE}"]\n'
    gateway = start_gateway(config=config)
    provider_a.plays(stall())
    assert gateway.chat().headers["x-svc-provider"] == "anthropic"
    assert attempts(gateway) == {f'{{{GPT_LABELS},outcome="cancelled"}}': 1, f'{{{CLAUDE_LABELS},outcome="ok"}}': 1}


def test_access_log_every_response_writes_one_line(start_gateway: StartGateway) -> None:
    gateway = start_gateway()
    wanted: dict[str, tuple[int, str | None]] = {}

    def expect(got: Got, code: str | None = None) -> None:
        wanted[got.headers["x-request-id"]] = (got.status, code)

    expect(gateway.chat())
    expect(gateway.chat(stream=True))
    expect(gateway.message())
    expect(gateway.chat("nope"), "model_not_found")
    expect(gateway.chat(temperature=9), "invalid_request")
    expect(gateway.request("POST", "/v1/chat/completions", {"model": "x"}, key="wrong"), "authentication_error")
    expect(gateway.request("GET", "/v1/models"))
    expect(gateway.request("GET", "/v1/models?x=" + "y" * 500, key=None), "authentication_error")
    expect(gateway.request("GET", "/v1/admin/keys"), "permission_denied")
    expect(gateway.request("GET", "/nothing/" + "z" * 1000), "not_found")
    expect(gateway.request("DELETE", "/v1/models"), "method_not_allowed")
    expect(gateway.request("GET", "/health", headers={"x-request-id": "mine"}))
    expect(gateway.request("GET", "/v1/audio/transcriptions/stream", headers=UPGRADE, key=None), "authentication_error")
    with gateway.raw() as raw:
        raw.send(b"GET / HTTP/9.9\r\n\r\n")
        expect(raw.read(), "invalid_request")
    time.sleep(0.6)
    lines = [json.loads(line) for line in gateway.log.splitlines() if line.startswith("{")]
    found = {line["request_id"]: (line["http_status"], line["code"]) for line in lines}
    assert found == wanted
    assert len(lines) == len(wanted)
    assert all(len(line["endpoint"]) <= 200 and "?" not in line["endpoint"] for line in lines)
    assert [line["client_request_id"] for line in lines].count("mine") == 1
    errors = {name: value for name, value in metrics(gateway).items() if name.startswith("svc_errors_total")}
    assert errors['svc_errors_total{code="authentication_error"}'] == 3
    assert sum(errors.values()) == sum(code is not None for _, code in wanted.values())


def test_metrics_open_stream_is_counted_until_client_disconnects(
    start_gateway: StartGateway, provider_a: FakeProvider
) -> None:
    gateway = start_gateway()
    provider_a.plays(sse(openai_wire.stream()[:3], end=stall()))
    with gateway.raw() as raw:
        raw.send(request_bytes("POST", "/v1/chat/completions", {"model": GPT, "messages": HI, "stream": True}, key=KEY))
        until(lambda: metrics(gateway)["svc_open_streams"] == 1, 20)
        assert metrics(gateway)["svc_open_requests"] == 1
        assert metrics(gateway)["svc_speech_sessions"] == 0
    until(lambda: metrics(gateway)["svc_open_streams"] == 0, 20)


def test_metrics_through_proxy_requires_scope(start_gateway: StartGateway) -> None:
    gateway = start_gateway()
    through_proxy = {"x-forwarded-for": "203.0.113.9"}
    assert gateway.request("GET", "/metrics", key=None, headers=through_proxy).status == 401
    assert gateway.request("GET", "/metrics", headers=through_proxy).status == 200
    made = create(gateway, "--name", "chatter", "--scope", "chat")
    assert gateway.request("GET", "/metrics", key=made["key"], headers=through_proxy).status == 403


def test_health_database_unavailable_lists_degraded_parts(start_gateway: StartGateway, tmp_path: object) -> None:
    gateway = start_gateway()
    assert gateway.request("GET", "/health?verbose=1", key=None).json["degraded"] == []
    assert "degraded" not in gateway.request("GET", "/health", key=None).json
    database = gateway.home / "svc" / "svc.db"
    broken = start_gateway(env={"SVC_DATABASE_URL": f"sqlite:///{database.parent}"})  # a folder is no database
    assert broken.chat().status == 200
    time.sleep(1)
    got = broken.request("GET", "/health?verbose=1", key=None).json
    assert (got["status"], got["degraded"]) == ("ok", ["keys", "ledger"])
    assert metrics(broken)['svc_degraded{what="ledger"}'] == 1
