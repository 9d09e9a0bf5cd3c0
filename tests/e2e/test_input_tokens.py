"""`POST /v1/responses/input_tokens`: an upstream with the Responses API counts, else the gateway estimates."""

from __future__ import annotations

from typing import Any

import pytest

from tests.e2e.accounts.test_usage import entry_of
from tests.e2e.conftest import StartGateway
from tests.e2e.harness import CLAUDE, GPT, LLAMA, Gateway
from tests.fakes import openai_wire
from tests.fakes.http_client import Got
from tests.fakes.provider import FakeProvider
from tests.fakes.script import answer

PATH = "/v1/responses/input_tokens"


def count(gateway: Gateway, model: str, **fields: Any) -> Got:
    return gateway.request("POST", PATH, {"model": model, "input": "Hi", **fields})


def test_input_tokens_of_native_model_are_counted_upstream(gateway: Gateway, provider_a: FakeProvider) -> None:
    got = count(gateway, GPT, tools=[{"type": "web_search"}])
    assert got.json == {"object": "response.input_tokens", "input_tokens": 4711}
    assert "x-svc-estimated" not in got.headers
    assert provider_a.wait().path == PATH
    entry = entry_of(gateway, got.headers["x-request-id"])
    assert (entry["endpoint"], entry["prompt_tokens"], entry["cost_usd"]) == (PATH, 0, 0)


@pytest.mark.parametrize(("letter", "model"), [("B", CLAUDE), ("C", LLAMA)])
def test_input_tokens_of_translated_model_are_estimated(
    gateway: Gateway, fakes: dict[str, FakeProvider], letter: str, model: str
) -> None:
    text = "The quick brown fox jumps over the lazy dog. " * 40
    got = count(gateway, model, input=[{"role": "user", "content": text}])
    assert (got.status, got.headers["x-svc-estimated"], got.json["object"]) == (200, "true", "response.input_tokens")
    assert 350 <= got.json["input_tokens"] <= 550, "40 sentences of 10 tokens"
    assert not fakes[letter].requests


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"input": []}, "input"),
        ({"input": [{"type": "message"}]}, "input[0].role"),
        ({"previous_response_id": "resp_1"}, "previous_response_id"),
        ({"tools": [{"type": "function"}]}, "tools[0].name"),
    ],
)
def test_input_tokens_of_invalid_request_are_400(gateway: Gateway, fields: dict[str, Any], param: str) -> None:
    got = count(gateway, LLAMA, **fields)
    assert (got.status, got.json["error"]["param"]) == (400, param)


def test_input_tokens_include_the_stored_conversation(start_gateway: StartGateway, provider_c: FakeProvider) -> None:
    gateway = start_gateway(config="[responses]\nstore = true\n")
    long_text = "The quick brown fox jumps over the lazy dog. " * 100
    provider_c.plays(answer(200, openai_wire.chat(long_text)))
    first = gateway.request("POST", "/v1/responses", {"model": LLAMA, "input": long_text}).json
    assert count(gateway, LLAMA, previous_response_id=first["id"]).json["input_tokens"] > 1800
    reference = {"type": "item_reference", "id": first["output"][0]["id"]}
    assert 900 < count(gateway, LLAMA, input=[reference]).json["input_tokens"] < 1800
    assert count(gateway, LLAMA, previous_response_id="resp_none").status == 404


def test_input_tokens_invalid_upstream_response_is_502(
    gateway_without_retries: Gateway, provider_a: FakeProvider
) -> None:
    provider_a.plays(answer(200, b'{"input_tokens": "many"}'))
    assert count(gateway_without_retries, GPT).status == 502
