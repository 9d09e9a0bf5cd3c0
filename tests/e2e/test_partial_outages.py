"""Partial outages: the client's view of a provider that fails, is slow, or has a small context window."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.conftest import StartGateway
from tests.e2e.harness import CLAUDE, GPT, HI, LLAMA, Gateway, provider_environment
from tests.fakes import anthropic_wire, openai_wire
from tests.fakes.http_client import Got, request_bytes
from tests.fakes.provider import FakeProvider
from tests.fakes.script import Script, answer, fin, pause, reset, stall

CHAIN = f'[routing.fallbacks]\n"{GPT}" = ["{CLAUDE}", "{LLAMA}"]\n'
DOWN = answer(500, openai_wire.error("down"))


def send_many(gateway: Gateway, count: int, model: str = GPT, **fields: object) -> list[Got]:
    with ThreadPoolExecutor(20) as pool:
        return list(pool.map(lambda _: gateway.chat(model, **fields), range(count)))


def chat_request(gateway: Gateway) -> bytes:
    return request_bytes("POST", "/v1/chat/completions", {"model": GPT, "messages": HI}, key=gateway.key)


def logged(gateway: Gateway, got: Got) -> dict[str, Any]:
    """Wait for the access-log line of a response and return it."""
    mark = f'"request_id":"{got.headers["x-request-id"]}"'
    (line,) = [line for line in gateway.logged(mark).splitlines() if mark in line and '"attempts":' in line]
    return dict(json.loads(line))


def providers(answers: list[Got]) -> set[str]:
    return {got.headers.get("x-svc-provider", "none") for got in answers}


def test_retry_budget_limits_retries_during_outage(start_gateway: StartGateway, provider_a: FakeProvider) -> None:
    started = start_gateway(config="[routing]\nbreaker = false\n")
    provider_a.always_plays(DOWN)
    answers = send_many(started, 40)
    assert {got.status for got in answers} == {502}
    assert 40 + 10 <= len(provider_a.requests) <= 40 + 14


@pytest.mark.parametrize("how", [fin(), reset()], ids=["closed", "reset"])
@pytest.mark.parametrize("stream", [False, True])
def test_attempts_resend_after_closed_idle_connection_counts(
    gateway: Gateway, provider_a: FakeProvider, how: Script, stream: bool
) -> None:
    assert gateway.chat().headers["x-svc-attempts"] == "1"
    provider_a.plays(how)
    got = gateway.chat(stream=stream)
    assert (got.status, got.headers["x-svc-attempts"]) == (200, "2")
    first, closed, again = provider_a.requests
    assert first.connection == closed.connection != again.connection
    assert logged(gateway, got)["attempts"] == 2


def test_breaker_open_rejects_requests_until_target_recovers(
    start_gateway: StartGateway, provider_a: FakeProvider
) -> None:
    started = start_gateway(config="[routing]\nretries = 0\n")
    provider_a.always_plays(DOWN)
    send_many(started, 20)
    assert len(provider_a.requests) == 20
    refused = started.chat()
    assert (refused.status, refused.code, refused.headers["x-should-retry"]) == (502, "provider_error", "false")
    assert "x-svc-attempts" not in refused.headers
    assert len(provider_a.requests) == 20
    provider_a.always_plays(None)
    deadline = time.monotonic() + 5
    while started.chat().status != 200:
        assert time.monotonic() < deadline
        time.sleep(0.1)
    assert {got.status for got in send_many(started, 20)} == {200}


def test_breaker_open_uses_fallback_in_first_attempt(
    start_gateway: StartGateway, provider_a: FakeProvider, provider_b: FakeProvider
) -> None:
    started = start_gateway(config=f"[routing]\nretries = 0\n{CHAIN}")
    provider_a.always_plays(DOWN)
    assert {got.status for got in send_many(started, 20)} == {200}
    assert len(provider_a.requests) == 20
    answers = send_many(started, 10)
    assert providers(answers) == {"anthropic"}
    assert {got.headers["x-svc-attempts"] for got in answers} == {"1"}
    assert len(provider_a.requests) == 20
    assert "breaker of openai/gpt-4o-mini: closed -> open" in started.logged("closed -> open")


def test_breaker_slow_responses_open_it_with_fallback(start_gateway: StartGateway, provider_a: FakeProvider) -> None:
    started = start_gateway(config=f"[routing]\nretries = 0\nslow_after = 0.3\n{CHAIN}")
    provider_a.always_plays(pause(0.4) + answer(200, openai_wire.chat("slow")))
    assert providers(send_many(started, 20)) == {"openai"}
    assert providers(send_many(started, 10)) == {"anthropic"}


def test_breaker_slow_responses_without_fallback_do_not_open_it(
    start_gateway: StartGateway, provider_a: FakeProvider
) -> None:
    started = start_gateway(config="[routing]\nslow_after = 0.05\n")
    provider_a.always_plays(pause(0.1) + answer(200, openai_wire.chat("slow")))
    assert {got.status for got in send_many(started, 30)} == {200}


def test_breaker_client_disconnects_do_not_open_it(start_gateway: StartGateway, provider_a: FakeProvider) -> None:
    started = start_gateway()
    provider_a.always_plays(stall())
    for number in range(25):
        with started.raw() as raw:
            raw.send(chat_request(started))
            provider_a.wait(number + 1)
    for seen in provider_a.requests:
        seen.wait_left(1.0)
    provider_a.always_plays(None)
    assert started.chat().status == 200


def test_breaker_total_timeouts_open_it(start_gateway: StartGateway, provider_a: FakeProvider) -> None:
    started = start_gateway(config="[gateway]\ntotal_timeout = 3\n")
    provider_a.always_plays(stall())
    assert {got.status for got in send_many(started, 20)} == {502}
    began = time.monotonic()
    assert started.chat().status == 502
    assert time.monotonic() - began < 2.5
    assert len(provider_a.requests) == 20


@pytest.mark.parametrize("wait", [{"retry-after": "9" * 400}, {"retry-after-ms": "inf"}, {"retry-after": "-1"}])
def test_retry_after_invalid_is_clamped(
    start_gateway: StartGateway, provider_a: FakeProvider, wait: dict[str, str]
) -> None:
    started = start_gateway(config="[routing]\nretries = 0\n")
    provider_a.plays(answer(429, openai_wire.error("slow down"), headers=wait))
    got = started.chat()
    assert (got.status, got.headers["retry-after"]) == (429, "1" if "-1" in wait.values() else "120")


def test_rate_limited_provider_is_skipped_until_retry_after(
    start_gateway: StartGateway, provider_a: FakeProvider
) -> None:
    started = start_gateway(config=CHAIN)
    provider_a.plays(answer(429, openai_wire.error("slow down"), headers={"retry-after": "30"}))
    first, second = started.chat(), started.chat()
    assert providers([first, second]) == {"anthropic"}
    assert (first.headers["x-svc-attempts"], second.headers["x-svc-attempts"]) == ("2", "1")
    assert len(provider_a.requests) == 1


def test_retry_after_beyond_clock_range_is_clamped_to_maximum(gateway: Gateway, provider_a: FakeProvider) -> None:
    provider_a.plays(answer(429, openai_wire.error("slow down"), headers={"retry-after": "9" * 400}))
    got = gateway.chat()
    assert (got.status, got.headers["retry-after"], got.headers["x-svc-attempts"]) == (429, "120", "1")


def test_routing_prompt_beyond_context_window_uses_fallback(
    start_gateway: StartGateway, provider_b: FakeProvider, provider_c: FakeProvider
) -> None:
    started = start_gateway(config=f'[routing.fallbacks]\n"{LLAMA}" = ["{CLAUDE}"]\n')
    long = [{"role": "user", "content": "word " * 30_000}]
    got = started.chat(LLAMA, messages=long)
    assert (got.status, got.headers["x-svc-provider"], got.headers["x-svc-attempts"]) == (200, "anthropic", "1")
    assert got.json["model"] == anthropic_wire.MODEL
    assert not provider_c.requests
    assert started.chat(LLAMA).headers["x-svc-provider"] == "groq"


def test_routing_prompt_beyond_every_context_window_is_sent_upstream(
    gateway: Gateway, provider_c: FakeProvider
) -> None:
    provider_c.plays(answer(400, openai_wire.error("context length exceeded", code="context_length_exceeded")))
    got = gateway.chat(LLAMA, messages=[{"role": "user", "content": "word " * 40_000}])
    assert (got.status, got.code) == (400, "invalid_request")


def test_fallback_that_cannot_express_request_is_skipped(
    start_gateway: StartGateway, provider_a: FakeProvider, provider_b: FakeProvider
) -> None:
    started = start_gateway(config=f'[routing]\nretries = 0\n[routing.fallbacks]\n"{GPT}" = ["{CLAUDE}"]\n')
    provider_a.always_plays(DOWN)
    got = started.chat(logprobs=True)
    assert (got.status, got.code) == (502, "provider_error")
    assert not provider_b.requests


JSON_MODE: Any = {"response_format": {"type": "json_object"}}
"""A field that no Anthropic provider has."""


def test_rate_limited_provider_is_used_if_no_fallback_can_express_request(
    start_gateway: StartGateway, provider_a: FakeProvider, provider_b: FakeProvider
) -> None:
    started = start_gateway(config=f'[routing.fallbacks]\n"{GPT}" = ["{CLAUDE}"]\n')
    provider_a.always_plays(answer(429, openai_wire.error("slow down"), headers={"retry-after": "30"}))
    for got in (started.chat(**JSON_MODE), started.chat(**JSON_MODE), started.chat(stream=True, **JSON_MODE)):
        assert (got.status, got.code, got.headers["retry-after"]) == (429, "rate_limit_exceeded", "30")
    assert not provider_b.requests


def test_rate_limited_provider_is_replaced_by_fallback_that_can_express_request(
    start_gateway: StartGateway, provider_a: FakeProvider, provider_b: FakeProvider
) -> None:
    started = start_gateway(config=CHAIN)
    provider_a.plays(answer(429, openai_wire.error("slow down"), headers={"retry-after": "30"}))
    first, second = started.chat(**JSON_MODE), started.chat(**JSON_MODE)
    assert (first.status, first.headers["x-svc-provider"], first.headers["x-svc-attempts"]) == (200, "groq", "2")
    assert (second.status, second.headers["x-svc-provider"], second.headers["x-svc-attempts"]) == (200, "groq", "1")
    assert not provider_b.requests


def test_provider_that_does_not_respond_is_reported_if_no_fallback_can_express_request(
    start_gateway: StartGateway, provider_a: FakeProvider, provider_b: FakeProvider
) -> None:
    started = start_gateway(config=f'[routing]\nretries = 0\n[routing.fallbacks]\n"{GPT}" = ["{CLAUDE}"]\n')
    provider_a.always_plays(reset())
    assert {got.status for got in send_many(started, 30, **JSON_MODE)} == {502}
    started.logged("closed -> open")
    reached = len(provider_a.requests)
    got = started.chat(**JSON_MODE)
    assert (got.status, got.code) == (502, "provider_error")
    assert len(provider_a.requests) == reached
    assert not provider_b.requests


def test_model_that_cannot_express_request_is_not_replaced_by_fallback(
    start_gateway: StartGateway, provider_a: FakeProvider
) -> None:
    started = start_gateway(config=f'[routing.fallbacks]\n"{CLAUDE}" = ["{GPT}"]\n')
    got = started.chat(CLAUDE, **JSON_MODE)
    assert (got.status, got.json["error"]["param"]) == (400, "response_format.type")
    assert not provider_a.requests


SECOND_PROVIDER = """
[routing]
retries = 0
[[providers]]
name = "second"
base_url = "{c}/v1"
api_key_env = "PROVIDER_C_API_KEY"
models = [{{ id = "gpt-4o-mini" }}]
"""


@pytest.mark.parametrize("fault", [answer(429, headers={"retry-after": "30"}), answer(401), reset(), DOWN])
@pytest.mark.parametrize("stream", [False, True])
def test_fallback_uses_second_provider_of_same_model(
    start_gateway: StartGateway, provider_a: FakeProvider, provider_c: FakeProvider, fault: Script, stream: bool
) -> None:
    started = start_gateway(config=SECOND_PROVIDER.format(c=provider_c.address))
    assert started.chat().headers["x-svc-provider"] == "openai"
    provider_a.always_plays(fault)
    got = started.chat(stream=stream)
    assert (got.status, got.headers["x-svc-provider"]) == (200, "second")
    assert provider_c.requests[-1].json["model"] == GPT
    listed = [row for row in started.request("GET", "/v1/models").json["data"] if row["id"] == GPT]
    assert [row["owned_by"] for row in listed] == ["openai"]


SECOND_DIALECT = f"""
[[providers]]
name = "second"
base_url = "{{c}}/v1"
api_key_env = "PROVIDER_C_API_KEY"
models = [{{{{ id = "{CLAUDE}" }}}}]
"""


@pytest.mark.parametrize("stream", [False, True])
def test_provider_that_cannot_express_request_is_replaced_by_another_of_same_model(
    start_gateway: StartGateway, provider_b: FakeProvider, provider_c: FakeProvider, stream: bool
) -> None:
    started = start_gateway(config=SECOND_DIALECT.format(c=provider_c.address))
    got = started.chat(CLAUDE, stream=stream, **JSON_MODE)
    assert (got.status, got.headers["x-svc-provider"], got.headers["x-svc-attempts"]) == (200, "second", "1")
    assert not provider_b.requests
    assert started.chat(CLAUDE, stream=stream).headers["x-svc-provider"] == "anthropic"


ACCOUNTS = """
[routing]
retries = 0
[[providers]]
name = "vendor"
base_url = "{a}/v1"
api_key_env = "PROVIDER_A_API_KEY"
models = [{{ id = "shared" }}]
accounts = [{{ api_key_env = "PROVIDER_C_API_KEY", base_url = "{c}/v1" }}]
"""


@pytest.mark.parametrize("fault", [answer(429, headers={"retry-after": "30"}), answer(401), reset(), DOWN])
def test_accounts_failing_account_is_replaced_by_another(
    start_gateway: StartGateway, provider_a: FakeProvider, provider_c: FakeProvider, fault: Script
) -> None:
    started = start_gateway(config=ACCOUNTS.format(a=provider_a.address, c=provider_c.address))
    provider_a.always_plays(fault)
    answers = [started.chat("shared") for _ in range(12)]
    assert {got.status for got in answers} == {200}
    assert {got.headers["x-svc-attempts"] for got in answers} <= {"1", "2"}
    assert len(provider_c.requests) == 12


def test_accounts_failed_breaker_probe_is_retried_on_another_account(
    start_gateway: StartGateway, provider_a: FakeProvider, provider_c: FakeProvider
) -> None:
    """No client sees a failure, even of the requests that open the breaker."""
    started = start_gateway(config=ACCOUNTS.format(a=provider_a.address, c=provider_c.address))
    provider_a.always_plays(DOWN)
    assert {got.status for got in send_many(started, 80, "shared")} == {200}
    started.logged("closed -> open")
    time.sleep(2.1)
    sent = len(provider_a.requests)
    assert {got.status for got in send_many(started, 30, "shared")} == {200}
    assert len(provider_a.requests) == sent + 1


def test_accounts_all_failing_open_breakers_and_stop_requests(
    start_gateway: StartGateway, provider_a: FakeProvider, provider_c: FakeProvider
) -> None:
    started = start_gateway(config=ACCOUNTS.format(a=provider_a.address, c=provider_c.address))
    for fake in (provider_a, provider_c):
        fake.always_plays(DOWN)
    assert {got.status for got in send_many(started, 60, "shared")} == {502}
    for fake in (provider_a, provider_c):
        assert 20 <= len(fake.requests) < 50
    sent = len(provider_a.requests) + len(provider_c.requests)
    assert {got.status for got in send_many(started, 10, "shared")} == {502}
    assert len(provider_a.requests) + len(provider_c.requests) == sent


def test_accounts_requests_are_balanced_by_remaining_rate_limit(
    start_gateway: StartGateway, provider_a: FakeProvider, provider_c: FakeProvider
) -> None:
    started = start_gateway(config=ACCOUNTS.format(a=provider_a.address, c=provider_c.address))
    left = {"x-ratelimit-limit-requests": "100", "x-ratelimit-remaining-requests": "1"}
    provider_a.always_plays(answer(200, openai_wire.chat("A"), headers=left))
    assert {got.status for got in send_many(started, 60, "shared")} == {200}
    assert 1 <= len(provider_a.requests) < len(provider_c.requests)
    provider_a.always_plays(
        answer(200, openai_wire.chat("A"), headers={**left, "x-ratelimit-remaining-requests": "9" * 400})
    )
    assert {got.status for got in send_many(started, 30, "shared")} == {200}


SLOW_RESOLVER = """
import socket, sys, time
real = socket.getaddrinfo
def slow(host, *more, **named):
    if host == "silent.example":
        time.sleep(4)
        raise socket.gaierror(-3, "Temporary failure in name resolution")
    return real(host, *more, **named)
socket.getaddrinfo = slow
from svc.cli import main
sys.exit(main())
"""


def test_dns_timeout_for_one_provider_does_not_affect_others(fakes: Mapping[str, FakeProvider], tmp_path: Path) -> None:
    env = provider_environment(fakes)
    env |= {
        "PROVIDER_A_BASE_URL": "http://silent.example/v1",
        "PROVIDER_B_BASE_URL": f"http://localhost:{fakes['B'].port}",
    }
    gateway = Gateway(
        tmp_path, env=env, config="[gateway]\nconnect_timeout = 3\n[routing]\nbreaker = false\n", is_forked=True
    )
    gateway.command = [sys.executable, "-c", SLOW_RESOLVER]
    gateway.start()
    with ThreadPoolExecutor(60) as pool:
        pending = [pool.submit(gateway.chat, GPT) for _ in range(50)]
        time.sleep(0.3)
        began = time.monotonic()
        assert gateway.chat(CLAUDE).status == 200
        assert time.monotonic() - began < 2.5
        assert {one.result().status for one in pending} == {502}
    assert gateway.stop() == 0
    assert "Traceback" not in gateway.log
