"""`POST /v1/embeddings` with the openai SDK as the client and providers of the dialect `openai`."""

from __future__ import annotations

import json
from typing import Any

import openai
import pytest

from svc.client.client import Client
from tests.e2e.accounts.test_keys import create
from tests.e2e.accounts.test_usage import entry_of
from tests.e2e.conftest import StartGateway
from tests.e2e.harness import CLAUDE, GPT, Gateway, run
from tests.fakes import openai_wire
from tests.fakes.http_client import Got
from tests.fakes.provider import FakeProvider
from tests.fakes.script import answer, reset, stall

SMALL, LARGE = "text-embedding-3-small", "text-embedding-3-large"
FALLBACKS = f"""
[routing.fallbacks]
"{SMALL}" = ["mine"]
[[providers]]
name = "groq"
[[providers.models]]
id = "mine"
upstream_id = "their-embedder"
kind = "embedding"
context_window = 8192
input_price = 1.0
"""


def embed(gateway: Gateway, *, key: str | None = None, **fields: Any) -> Got:
    body = {"model": SMALL, "input": "Hi", **fields}
    return gateway.request("POST", "/v1/embeddings", body, key=key or gateway.key)


@pytest.mark.parametrize("form", ["a text", ["one", "two"], [1, 2, 3], [[1], [2, 3]]])
@pytest.mark.parametrize("encoding", ["float", "base64", openai.omit])
def test_embeddings_openai_client_reads_every_input_and_encoding(
    openai_client: openai.OpenAI, provider_a: FakeProvider, form: Any, encoding: Any
) -> None:
    got = openai_client.embeddings.with_raw_response.create(
        model=SMALL, input=form, dimensions=4, encoding_format=encoding
    )
    parsed = got.parse()
    count = 2 if form in (["one", "two"], [[1], [2, 3]]) else 1
    assert [row.index for row in parsed.data] == list(range(count))
    if encoding == "base64":
        assert isinstance(parsed.data[0].embedding, str)
    else:
        assert [row.embedding for row in parsed.data] == [[float(at), 0.5, 0.5, 0.5] for at in range(count)]
    assert (parsed.usage.prompt_tokens, parsed.usage.total_tokens) == (8, 8)
    assert (got.headers["x-svc-provider"], got.headers["x-svc-attempts"]) == ("openai", "1")
    seen = provider_a.wait()
    assert (seen.path, seen.json["input"], seen.json["dimensions"]) == ("/v1/embeddings", form, 4)
    assert seen.headers["authorization"] == f"Bearer {provider_a.key}"


def test_embeddings_request_and_response_bytes_are_unchanged(gateway: Gateway, provider_a: FakeProvider) -> None:
    sent = b'{ "input" : "H\\u00e9",  "model":"text-embedding-3-large", "new_field": {"a": [1]} }'
    response = json.dumps(openai_wire.embeddings(json.loads(sent), new_field=1), indent=1).encode()
    provider_a.plays(answer(200, response))
    got = gateway.request("POST", "/v1/embeddings", sent)
    assert (got.status, got.body, got.headers["content-type"]) == (200, response, "application/json")
    assert provider_a.wait().body == sent


def test_embeddings_large_input_and_response_are_complete(gateway: Gateway, provider_a: FakeProvider) -> None:
    inputs = ["word " * 300] * 500
    got = embed(gateway, input=inputs, dimensions=500)
    assert got.status == 200
    assert len(got.json["data"]) == 500
    assert provider_a.wait().json["input"] == inputs


def test_embeddings_ledger_entry_has_tokens_and_cost(gateway: Gateway, provider_a: FakeProvider) -> None:
    got = embed(gateway, model=LARGE)
    entry = entry_of(gateway, got.headers["x-request-id"])
    assert (entry["endpoint"], entry["model"], entry["provider"]) == ("/v1/embeddings", LARGE, "openai")
    assert (entry["status"], entry["http_status"], entry["attempts"]) == ("ok", 200, 1)
    assert (entry["prompt_tokens"], entry["completion_tokens"], entry["estimated"]) == (8, 0, False)
    assert entry["cost_usd"] == pytest.approx(8 * 0.13 / 1e6)


def test_embeddings_response_without_usage_is_estimated_from_input(gateway: Gateway, provider_a: FakeProvider) -> None:
    response = openai_wire.embeddings({"model": SMALL, "input": "x"})
    del response["usage"]
    provider_a.plays(answer(200, response))
    got = embed(gateway, input="word " * 100)
    entry = entry_of(gateway, got.headers["x-request-id"])
    assert 100 < entry["prompt_tokens"] < 160
    assert (entry["completion_tokens"], entry["estimated"]) == (None, True)


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"input": ""}, "input"),
        ({"input": ["a", 1]}, "input[1]"),
        ({"input": None}, "input"),
        ({"encoding_format": "hex"}, "encoding_format"),
        ({"dimensions": 0}, "dimensions"),
        ({"stream": True}, "stream"),
        ({"model": ""}, "model"),
    ],
)
def test_embeddings_invalid_field_returns_400_with_param(
    gateway: Gateway, provider_a: FakeProvider, fields: dict[str, Any], param: str
) -> None:
    got = embed(gateway, **fields)
    error = got.json["error"]
    assert (got.status, error["code"], error["param"]) == (400, "invalid_request", param)
    assert not provider_a.requests


def test_embeddings_model_of_other_kind_returns_400_with_endpoint(
    gateway: Gateway, fakes: dict[str, FakeProvider]
) -> None:
    for model in (GPT, CLAUDE):
        got = embed(gateway, model=model)
        assert (got.status, got.json["error"]["param"]) == (400, "model")
        assert "POST /v1/chat/completions" in got.json["error"]["message"]
    chat = gateway.chat(SMALL)
    assert (chat.status, chat.json["error"]["code"]) == (400, "invalid_request")
    assert "POST /v1/embeddings" in chat.json["error"]["message"]
    body = {"model": SMALL, "max_tokens": 5, "messages": [{"role": "user", "content": "Hi"}]}
    message = gateway.request("POST", "/v1/messages", body)
    assert (message.status, message.json["error"]["type"]) == (400, "invalid_request_error")
    assert "POST /v1/embeddings" in message.json["error"]["message"]
    assert not [fake for fake in fakes.values() if fake.requests]


def test_embeddings_model_is_not_default_chat_model(start_gateway: StartGateway, provider_a: FakeProvider) -> None:
    models = "models = [{ id = 'vectors', kind = 'embedding' }, { id = 'talk' }]"
    env = {"PROVIDER_B_API_KEY": "", "PROVIDER_C_API_KEY": ""}
    started = start_gateway(config=f"[[providers]]\nname = 'openai'\n{models}", env=env)
    with Client(gateway_url=f"{started.url}/v1", api_key=started.key) as client:
        assert client.chat("Hi").text == openai_wire.TEXT
    done = run("chat", "--gateway", started.url, "Hi", home=started.home, env={"SVC_API_KEY": started.key})
    assert (done.returncode, done.stdout.strip()) == (0, openai_wire.TEXT), done.stderr
    assert {seen.json["model"] for seen in provider_a.requests if seen.json["model"] != "gpt-4o-mini"} == {"talk"}


def test_embeddings_unknown_model_returns_404(openai_client: openai.OpenAI) -> None:
    with pytest.raises(openai.NotFoundError) as caught:
        openai_client.embeddings.create(model="text-embedding-99", input="x")
    assert caught.value.code == "model_not_found"


def test_embeddings_provider_of_other_dialect_returns_400(
    start_gateway: StartGateway, provider_b: FakeProvider
) -> None:
    config = "[[providers]]\nname = 'anthropic'\nmodels = [{ id = 'vectors', kind = 'embedding' }]"
    got = embed(start_gateway(config=config), model="vectors")
    assert (got.status, got.json["error"]["code"], got.json["error"]["param"]) == (400, "invalid_request", "model")
    assert got.json["error"]["message"] == "The provider of this model does not serve /v1/embeddings."
    assert not provider_b.requests


@pytest.mark.parametrize("strategy", ["order", "weighted"])
def test_embeddings_model_at_two_providers_uses_the_one_that_serves_it(
    start_gateway: StartGateway, provider_a: FakeProvider, provider_b: FakeProvider, strategy: str
) -> None:
    table = "[[providers]]\nname = '{}'\nmodels = [{{ id = 'vectors', kind = 'embedding' }}]\n"
    config = f"[routing]\nstrategy = '{strategy}'\n" + table.format("anthropic") + table.format("openai")
    gateway = start_gateway(config=config)
    for _ in range(12):
        got = embed(gateway, model="vectors")
        assert (got.status, got.headers["x-svc-provider"], got.headers["x-svc-attempts"]) == (200, "openai", "1")
    assert not provider_b.requests


def test_embeddings_without_key_or_post_return_401_or_405(gateway: Gateway) -> None:
    assert gateway.request("POST", "/v1/embeddings", {}, key="wrong").status == 401
    assert gateway.request("POST", "/v1/embeddings", {}, key=None).status == 401
    got = gateway.request("GET", "/v1/embeddings")
    assert (got.status, got.headers["allow"]) == (405, "POST")


@pytest.mark.parametrize(
    ("status", "expected_status", "code"),
    [(400, 400, "invalid_request"), (404, 404, "model_not_found"), (401, 502, "provider_error")],
)
def test_embeddings_provider_error_returns_gateway_status_and_code(
    gateway: Gateway, provider_a: FakeProvider, status: int, expected_status: int, code: str
) -> None:
    provider_a.plays(answer(status, openai_wire.error("its own words")))
    got = embed(gateway)
    assert (got.status, got.json["error"]["code"]) == (expected_status, code)
    assert ("its own words" in got.json["error"]["message"]) == (status != 401)
    assert (got.headers["x-svc-attempts"], got.headers["x-should-retry"]) == ("1", "false")


@pytest.mark.parametrize(
    "script",
    [
        answer(200, b"{"),
        answer(200, b'{"data":[]}'),
        answer(200, openai_wire.chat()),
        answer(200, {"data": [{"embedding": None}]}),
        answer(200, {"error": {"message": "broken inside", "type": "server_error"}}),
        answer(500, openai_wire.error("down")),
        answer(401, openai_wire.error("wrong key")),
        answer(429, openai_wire.error("slow down"), headers={"retry-after": "30"}),
        reset(),
    ],
    ids=["cut", "empty", "chat completion", "no vector", "error in a 200", "500", "401", "429", "reset"],
)
def test_embeddings_provider_failure_uses_fallback(
    start_gateway: StartGateway, fakes: dict[str, FakeProvider], script: Any
) -> None:
    started = start_gateway(config=FALLBACKS)
    fakes["A"].always_plays(script)
    inputs = ["word " * 2000] * 40  # each input fits the context window, all together do not
    got = embed(started, input=inputs, name="Jo", messages=[5])
    assert (got.status, got.headers["x-svc-provider"]) == (200, "groq")
    seen = fakes["C"].wait()
    assert (seen.path, seen.json["model"], seen.json["input"]) == ("/v1/embeddings", "their-embedder", inputs)
    entry = entry_of(started, got.headers["x-request-id"])
    assert (entry["model_asked"], entry["model"], entry["prompt_tokens"]) == (SMALL, "mine", 8)
    assert entry["cost_usd"] == pytest.approx(8 / 1e6)


def test_embeddings_malformed_response_without_fallback_returns_502(gateway: Gateway, provider_a: FakeProvider) -> None:
    provider_a.plays(answer(200, b"<html>"))
    got = embed(gateway)
    assert (got.status, got.json["error"]["code"]) == (502, "provider_error")
    assert entry_of(gateway, got.headers["x-request-id"])["status"] == "error"
    assert len(provider_a.requests) == 1


def test_embeddings_first_byte_timeout_returns_502(start_gateway: StartGateway, provider_a: FakeProvider) -> None:
    started = start_gateway(config="[gateway]\nfirst_byte_timeout = 0.3")
    provider_a.plays(stall())
    got = embed(started)
    assert (got.status, got.json["error"]["code"]) == (502, "provider_error")


def test_embeddings_count_for_limits_and_budget(gateway: Gateway, provider_a: FakeProvider) -> None:
    limited = create(gateway, "--name", "few tokens", "--tpm", "60")["key"]
    got = embed(gateway, key=limited)
    assert (got.status, got.headers["x-ratelimit-limit-tokens"]) == (200, "60")
    assert embed(gateway, key=limited, input="word " * 100).json["error"]["code"] == "invalid_request"
    refused = [embed(gateway, key=limited, input="word " * 25) for _ in range(3)][-1]
    assert (refused.status, refused.json["error"]["code"]) == (429, "rate_limit_exceeded")
    assert "(tpm)" in refused.json["error"]["message"]
    poor = create(gateway, "--name", "poor", "--budget-usd", "0.0000001", "--budget-period", "total")["key"]
    assert embed(gateway, key=poor, input="word " * 1000).status == 400
    other = create(gateway, "--name", "other", "--models", GPT)["key"]
    assert embed(gateway, key=other).status == 404
    listener = create(gateway, "--name", "listener", "--scope", "speech")["key"]
    assert embed(gateway, key=listener).status == 403
