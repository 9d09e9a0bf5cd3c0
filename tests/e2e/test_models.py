"""`GET /v1/models` and `GET /v1/models/{id}`."""

from __future__ import annotations

import openai
import pytest

from tests.e2e.conftest import StartGateway
from tests.e2e.harness import Gateway

CATALOG = {
    "gpt-4o": ("openai", 128_000, "most capable"),
    "gpt-4o-mini": ("openai", 128_000, "fast, cost-effective"),
    "gpt-4-turbo": ("openai", 128_000, "previous generation"),
    "text-embedding-3-small": ("openai", 8192, "embeddings, cost-effective"),
    "text-embedding-3-large": ("openai", 8192, "embeddings, most accurate"),
    "claude-3-5-sonnet-20241022": ("anthropic", 200_000, "most capable"),
    "claude-3-opus-20240229": ("anthropic", 200_000, "advanced reasoning"),
    "claude-3-haiku-20240307": ("anthropic", 200_000, "fast, efficient"),
    "llama-3.1-70b-versatile": ("groq", 32_768, "high quality"),
    "llama-3.1-8b-instant": ("groq", 32_768, "ultra-fast"),
    "mixtral-8x7b-32768": ("groq", 32_768, "mixture-of-experts model"),
}


def test_models_list_has_models_of_all_providers(openai_client: openai.OpenAI) -> None:
    listed = {
        one.id: (one.owned_by, one.model_extra["context_window"], one.model_extra["use_case"])
        for one in openai_client.models.list()
    }
    assert listed == CATALOG
    kinds = {one.id: one.model_extra.get("kind") for one in openai_client.models.list()}
    assert {name for name, kind in kinds.items() if kind == "embedding"} == {
        "text-embedding-3-small",
        "text-embedding-3-large",
    }
    assert set(kinds.values()) == {None, "embedding"}


def test_models_list_has_openai_format(gateway: Gateway) -> None:
    got = gateway.request("GET", "/v1/models")
    assert got.status == 200
    assert got.headers["content-type"].startswith("application/json")
    assert got.json["object"] == "list"
    for row in got.json["data"]:
        assert row["object"] == "model"
        assert type(row["created"]) is int
        assert row["created"] > 0


@pytest.mark.parametrize("model", CATALOG)
def test_models_retrieve_returns_model(openai_client: openai.OpenAI, model: str) -> None:
    one = openai_client.models.retrieve(model)
    assert (one.id, one.object, one.owned_by) == (model, "model", CATALOG[model][0])


def test_models_retrieve_unknown_returns_404(openai_client: openai.OpenAI) -> None:
    with pytest.raises(openai.NotFoundError) as caught:
        openai_client.models.retrieve("gpt-99")
    assert caught.value.code == "model_not_found"


def test_models_of_provider_without_key_are_not_listed(start_gateway: StartGateway) -> None:
    with start_gateway(env={"PROVIDER_B_API_KEY": ""}).openai() as client:
        assert {one.owned_by for one in client.models.list()} == {"openai", "groq"}
        with pytest.raises(openai.NotFoundError) as caught:
            client.chat.completions.create(model="claude-3-opus-20240229", messages=[{"role": "user", "content": "Hi"}])
        assert caught.value.code == "model_not_found"
        assert "PROVIDER_B_API_KEY" in caught.value.message
        assert "Available: gpt-4o, " in caught.value.message


def test_provider_key_falls_back_to_vendor_variable(start_gateway: StartGateway, provider_a) -> None:
    started = start_gateway(env={"PROVIDER_A_API_KEY": "", "OPENAI_API_KEY": provider_a.key})
    assert started.chat().status == 200


def test_models_list_without_provider_is_empty(start_gateway: StartGateway) -> None:
    started = start_gateway(env={f"PROVIDER_{letter}_API_KEY": "" for letter in "ABC"})
    assert started.request("GET", "/v1/models").json == {"object": "list", "data": []}


def test_health_without_key_returns_200(gateway: Gateway) -> None:
    got = gateway.request("GET", "/health", key=None)
    assert got.status == 200
    assert got.json["status"] == "ok"
    assert all(part.isdigit() for part in got.json["version"].split("."))
    assert isinstance(got.json["service"], str)
