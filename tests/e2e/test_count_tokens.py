"""`POST /v1/messages/count_tokens`: an Anthropic upstream counts, for other ones the gateway estimates."""

from __future__ import annotations

import json
import time
from typing import Any

import anthropic
import pytest

from tests.e2e.accounts.test_keys import create
from tests.e2e.accounts.test_usage import entry_of
from tests.e2e.conftest import StartGateway
from tests.e2e.harness import CLAUDE, GPT, HI, KEY, Gateway
from tests.e2e.test_anthropic_paths import check_error
from tests.fakes import anthropic_wire
from tests.fakes.http_client import Got
from tests.fakes.provider import FakeProvider
from tests.fakes.script import answer, stall

PATH = "/v1/messages/count_tokens"
VERSION = {"anthropic-version": "2023-06-01"}


def count(gateway: Gateway, model: str = CLAUDE, *, key: str = KEY, query: str = "", **fields: Any) -> Got:
    body = {"model": model, "messages": HI, **fields}
    return gateway.request("POST", f"{PATH}{query}", body, key=key, headers=VERSION)


def test_count_tokens_of_anthropic_model_asks_upstream(gateway: Gateway, provider_b: FakeProvider) -> None:
    body = b'{ "messages":[{"role":"user","content":"\\u00fc"}],"model":"%b", "thinking":{"type":"adaptive"}}'
    body = body % CLAUDE.encode()
    headers = {**VERSION, "anthropic-beta": "token-counting-2024-11-01"}
    provider_b.plays(answer(200, b'{"input_tokens": 2095, "context_management": {"original_input_tokens": 3}}'))
    got = gateway.request("POST", f"{PATH}?beta=true", body, headers=headers)
    assert got.body == b'{"input_tokens": 2095, "context_management": {"original_input_tokens": 3}}'
    assert "x-svc-estimated" not in got.headers
    assert got.headers["request-id"] == got.headers["x-request-id"]
    seen = provider_b.wait()
    assert (seen.method, seen.path, seen.body) == ("POST", f"{PATH}?beta=true", body)
    assert seen.headers["anthropic-beta"] == "token-counting-2024-11-01"
    entry = entry_of(gateway, got.headers["x-request-id"])
    assert {name: entry[name] for name in ("endpoint", "model", "provider", "attempts", "status")} == {
        "endpoint": PATH,
        "model": CLAUDE,
        "provider": "anthropic",
        "attempts": 1,
        "status": "ok",
    }
    assert (entry["prompt_tokens"], entry["completion_tokens"], entry["cost_usd"]) == (0, 0, 0)


def test_count_tokens_of_other_model_is_estimated_without_request(gateway: Gateway, provider_a: FakeProvider) -> None:
    text = "The quick brown fox jumps over the lazy dog. " * 40
    got = count(gateway, GPT, messages=[{"role": "user", "content": text}], system="Be brief.")
    assert (got.status, got.headers["x-svc-estimated"]) == (200, "true")
    assert got.json.keys() == {"input_tokens"}
    assert 350 <= got.json["input_tokens"] <= 550, "40 sentences of 10 tokens"
    tool = {"name": "t", "description": text, "input_schema": {"type": "object"}}
    assert count(gateway, GPT, tools=[tool]).json["input_tokens"] > 350
    assert provider_a.requests == []
    entry = entry_of(gateway, got.headers["x-request-id"])
    assert (entry["endpoint"], entry["model"], entry["attempts"], entry["status"]) == (PATH, GPT, 0, "ok")
    assert (entry["prompt_tokens"], entry["completion_tokens"], entry["cost_usd"]) == (0, 0, 0)


def test_count_tokens_with_anthropic_client(anthropic_client: anthropic.Anthropic) -> None:
    for model in (CLAUDE, GPT):
        counted = anthropic_client.messages.count_tokens(model=model, messages=HI)  # type: ignore[arg-type]
        assert counted.input_tokens > 0


def test_count_tokens_upstream_error_is_forwarded(gateway_without_retries: Gateway, provider_b: FakeProvider) -> None:
    for status, kind in ((400, "invalid_request_error"), (404, "not_found_error"), (413, "request_too_large")):
        provider_b.plays(answer(status, anthropic_wire.error(kind, "Too odd."), headers={"request-id": "req_theirs"}))
        got = count(gateway_without_retries)
        check_error(got, status, kind)
        assert got.json["error"]["message"] == "Too odd."
    headers = {"retry-after": "7", "anthropic-ratelimit-requests-remaining": "0"}
    provider_b.plays(answer(429, anthropic_wire.error("rate_limit_error", "Slow down."), headers=headers))
    got = count(gateway_without_retries)
    check_error(got, 429, "rate_limit_error")
    assert headers.items() <= got.headers.items()
    assert gateway_without_retries.message().status == 200, "a limited count does not stop messages"


@pytest.mark.parametrize("body", [b"{}", b'{"input_tokens": "3"}', b"[]", b"", b'{"input_tokens": -1}', b"\xff"])
def test_count_tokens_invalid_upstream_response_returns_502(
    gateway_without_retries: Gateway, provider_b: FakeProvider, body: bytes
) -> None:
    provider_b.plays(answer(200, body))
    check_error(count(gateway_without_retries), 502, "api_error")


@pytest.mark.parametrize(
    ("fields", "parameter"),
    [
        ({"model": None}, "model"),
        ({"model": ""}, "model"),
        ({"messages": []}, "messages"),
        ({"messages": "Hi"}, "messages"),
        ({"messages": [{"role": "tool", "content": "x"}]}, "messages[0].role"),
        ({"messages": [{"role": "user", "content": 1}]}, "messages[0].content"),
        ({"system": 7}, "system"),
        ({"tools": 5}, "tools"),
        ({"tools": ["x"]}, "tools[0]"),
        ({"tool_choice": "auto"}, "tool_choice"),
        ({"thinking": True}, "thinking"),
        ({"output_config": []}, "output_config"),
    ],
)
def test_count_tokens_invalid_field_returns_400_with_field(
    gateway: Gateway, provider_b: FakeProvider, fields: dict[str, Any], parameter: str
) -> None:
    got = count(gateway, **fields)
    check_error(got, 400, "invalid_request_error")
    assert parameter in got.json["error"]["message"]
    assert provider_b.requests == []


def test_count_tokens_unknown_model_wrong_method_and_missing_key(gateway: Gateway) -> None:
    check_error(count(gateway, "none"), 404, "not_found_error")
    check_error(count(gateway, "text-embedding-3-small"), 400, "invalid_request_error")
    check_error(gateway.request("GET", PATH), 405, "invalid_request_error")
    check_error(gateway.request("POST", PATH, b"{"), 400, "invalid_request_error")
    check_error(gateway.request("POST", PATH, {}, key=None), 401, "authentication_error")


def test_count_tokens_uses_rpm_but_no_tokens_and_no_budget(gateway: Gateway, provider_b: FakeProvider) -> None:
    key = create(gateway, "--name", "c", "--rpm", "4", "--tpm", "100000", "--budget-usd", "0.000001")["key"]
    got = [count(gateway, model, key=key) for model in (CLAUDE, GPT, CLAUDE)]
    assert [one.status for one in got] == [200] * 3
    assert [one.headers["x-ratelimit-remaining-requests"] for one in got] == ["3", "2", "1"]
    assert "x-ratelimit-remaining-tokens" not in got[0].headers
    assert gateway.request("POST", PATH, b"{", key=key).status == 400
    refused = count(gateway, GPT, key=key)
    check_error(refused, 429, "rate_limit_error")
    assert int(refused.headers["retry-after"]) >= 1


def test_count_tokens_client_disconnect_costs_nothing(gateway: Gateway, provider_b: FakeProvider) -> None:
    provider_b.plays(stall())
    body = json.dumps({"model": CLAUDE, "messages": HI}).encode()
    with gateway.raw() as raw:
        head = f"POST {PATH} HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {KEY}\r\ncontent-length: {len(body)}\r\n\r\n"
        raw.send(head.encode() + body)
        provider_b.wait()
    provider_b.wait().wait_left(1)
    lines = gateway.logged(f'"endpoint":"{PATH}","model_asked":"{CLAUDE}"').splitlines()
    deadline = time.monotonic() + 5
    while not (found := [line for line in lines if PATH in line and "client_closed" in line]):
        assert time.monotonic() < deadline
        lines = gateway.log.splitlines()
    entry = json.loads(found[-1])
    assert (entry["prompt_tokens"], entry["cost_usd"]) == (0, 0)


def test_count_tokens_falls_back_to_estimate_of_next_backend(
    start_gateway: StartGateway, provider_b: FakeProvider
) -> None:
    config = f'[routing]\nretries = 0\n[routing.fallbacks]\n"{CLAUDE}" = ["{GPT}"]\n[cache]\nenabled = true\n'
    gateway = start_gateway(config=config)
    provider_b.plays(answer(503, anthropic_wire.error("api_error", "Down.")))
    got = count(gateway)
    assert (got.status, got.headers["x-svc-estimated"], got.headers["x-svc-provider"]) == (200, "true", "openai")
    assert (got.headers["x-svc-attempts"], got.headers["x-svc-cache"]) == ("1", "miss")
    got = count(gateway)
    assert (got.json, got.headers["x-svc-cache"]) == ({"input_tokens": 14}, "miss"), "an estimate is not cached"
    got = count(gateway)
    assert (got.json, got.headers["x-svc-cache"]) == ({"input_tokens": 14}, "hit")
    assert len(provider_b.requests) == 2


def test_count_tokens_of_alias_counts_for_its_model(start_gateway: StartGateway, provider_b: FakeProvider) -> None:
    gateway = start_gateway(config=f'[[aliases]]\nname = "agent"\nmodel = "{CLAUDE}"\n')
    assert count(gateway, "agent").json == {"input_tokens": 14}
    assert provider_b.wait().json["model"] == CLAUDE
