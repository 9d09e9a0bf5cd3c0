"""The cost of cache writes, audio and images, from the provider's usage to `svc usage --request`."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.e2e.accounts.test_ephemeral_keys import entry
from tests.e2e.accounts.test_keys import until
from tests.e2e.conftest import StartGateway
from tests.e2e.harness import CLAUDE, GPT, HI, Gateway, run
from tests.e2e.test_reload import reload, write
from tests.fakes import anthropic_wire, openai_wire
from tests.fakes.provider import FakeProvider
from tests.fakes.script import answer, sse

WRITTEN = {
    "input_tokens": 2048,
    "cache_read_input_tokens": 1800,
    "cache_creation_input_tokens": 256,
    "cache_creation": {"ephemeral_5m_input_tokens": 156, "ephemeral_1h_input_tokens": 100},
    "output_tokens": 503,
}
WRITTEN_FORMULA = "(2048 x 3 + 1800 x 0.3 + 156 x 3.75 + 100 x 6 + 503 x 15) / 1000000"
CONFIG = """
[[providers]]
name = "google"
base_url = "{address}/v1"
api_key_env = "FAKE_KEY"
[[providers.models]]
id = "gemini-2.5-flash-image"
[[providers.models]]
id = "own"
input_price = 0.5
output_price = 1.5
cached_input_price = 0.05
"""
FORMULAS = {
    "own": "(4 x 0.5 + 2 x 0.05 + 1299 x 1.5) / 1000000",
    "gemini-2.5-flash-image": "(4 x 0.3 + 2 x 0.3 + 1290 x 30 + 9 x 2.5) / 1000000",
    GPT: "(4 x 0.15 + 2 x 0.075 + 1299 x 0.6) / 1000000",
}
"""The formula of a configured price, of one in genai-prices, and of a built-in one."""
IMAGE_USAGE = {
    "prompt_tokens": 6,
    "completion_tokens": 1299,
    "total_tokens": 1305,
    "prompt_tokens_details": {"cached_tokens": 2},
    "completion_tokens_details": {"image_tokens": 1290, "audio_tokens": None},
    "cost": 0.0387243,
}


@pytest.fixture
def gateway(shared_gateway: Gateway, fakes: object) -> Gateway:
    return shared_gateway


@pytest.mark.parametrize("path", ["/v1/messages", "/v1/chat/completions"])
@pytest.mark.parametrize("stream", [False, True])
def test_cost_of_one_hour_cache_writes_is_exact(
    gateway: Gateway, provider_b: FakeProvider, path: str, stream: bool
) -> None:
    if stream:
        start = anthropic_wire.message([], usage={**WRITTEN, "output_tokens": 1})
        events = [
            anthropic_wire.event("message_start", message={**start, "stop_reason": None}),
            *anthropic_wire.block(0, anthropic_wire.text("Hi")),
            *anthropic_wire.closing(usage={"output_tokens": 503}),
        ]
        provider_b.plays(sse(events))
    else:
        provider_b.plays(answer(200, anthropic_wire.message("Hi", usage=WRITTEN)))
    body = {"model": CLAUDE, "messages": HI, "max_tokens": 600, "stream": stream}
    got = gateway.request("POST", path, body)
    assert got.status == 200, got.body
    row = entry(gateway, got.headers["x-request-id"])
    assert (row["cost_usd"], row["cost_formula"]) == (0.015414, WRITTEN_FORMULA)
    assert (row["cache_write_tokens"], row["cache_write_1h_tokens"], row["cached_tokens"]) == (256, 100, 1800)
    shown = run("usage", "--request", row["request_id"], home=gateway.home).stdout
    assert f"0.015414000  = {WRITTEN_FORMULA}" in shown


def priced_entry(gateway: Gateway, request_id: str) -> dict[str, Any]:
    """Return the entry of a request once its model has a price: the price list arrives in the background."""
    rows: list[dict[str, Any]] = []

    def is_priced() -> bool:
        rows[:] = gateway.request("GET", f"/v1/usage?request={request_id}").json["data"]
        return bool(rows) and rows[0]["cost_formula"] is not None

    until(is_priced, 20)
    return rows[0]


@pytest.mark.parametrize("stream", [False, True])
def test_cost_formula_uses_prices_of_configured_listed_and_builtin_models(
    start_gateway: StartGateway, provider_a: FakeProvider, stream: bool
) -> None:
    config = CONFIG.format(address=provider_a.address)
    gateway = start_gateway(config=config, env={"FAKE_KEY": provider_a.key})
    (gateway.home / "svc" / "svc.toml").write_text(config)
    for model, formula in FORMULAS.items():
        if stream:
            chunk = openai_wire.chunk(choices=[], usage=IMAGE_USAGE)
            provider_a.plays(sse([*openai_wire.stream(usage=False, done=False), chunk, b"data: [DONE]\n\n"]))
        else:
            chat = openai_wire.chat()
            provider_a.plays(answer(200, {**chat, "usage": IMAGE_USAGE}))
        got = gateway.request("POST", "/v1/chat/completions", {"model": model, "messages": HI, "stream": stream})
        assert got.status == 200, got.body
        row = priced_entry(gateway, got.headers["x-request-id"])
        assert (row["completion_image_tokens"], row["completion_audio_tokens"]) == (1290, 0)
        assert row["cost_formula"] == formula
        assert f"{row['cost_usd']:.9f}" == f"{eval(formula.replace('x', '*')):.9f}"
        local = json.loads(run("usage", "--request", row["request_id"], "--json", home=gateway.home).stdout)
        assert local["cost_formula"] == formula


def test_cost_of_a_model_that_a_reload_adds_is_known(start_gateway: StartGateway, provider_a: FakeProvider) -> None:
    gateway = start_gateway(config="", env={"FAKE_KEY": provider_a.key})
    write(gateway, CONFIG.format(address=provider_a.address))
    reload(gateway)
    model = "gemini-2.5-flash-image"
    provider_a.plays(answer(200, {**openai_wire.chat(), "usage": IMAGE_USAGE}))
    got = gateway.request("POST", "/v1/chat/completions", {"model": model, "messages": HI})
    assert got.status == 200, got.body
    assert priced_entry(gateway, got.headers["x-request-id"])["cost_formula"] == FORMULAS[model]
