"""`GET /v1/models` and `GET /v1/models/{id}`."""

from __future__ import annotations

from typing import Any

import anthropic
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
    "tts-1": ("openai", 4096, "text to speech"),
    "gpt-4o-mini-tts": ("openai", 2000, "text to speech, follows instructions"),
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
    assert {name for name, kind in kinds.items() if kind == "speech"} == {"tts-1", "gpt-4o-mini-tts"}
    assert set(kinds.values()) == {None, "embedding", "speech"}


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


ANTHROPIC = {"anthropic-version": "2023-06-01"}


def page(gateway: Gateway, query: str = "") -> Any:
    got = gateway.request("GET", f"/v1/models{query}", headers=ANTHROPIC)
    assert got.status == 200
    assert got.headers["request-id"] == got.headers["x-request-id"]
    return got.json


def test_models_list_with_anthropic_version_has_anthropic_format(gateway: Gateway) -> None:
    got = page(gateway)
    assert (got["has_more"], got["first_id"], got["last_id"]) == (False, "gpt-4o", "mixtral-8x7b-32768")
    assert [model["id"] for model in got["data"]] == [*CATALOG]
    assert got["data"][7] == {
        "type": "model",
        "id": "claude-3-5-sonnet-20241022",
        "display_name": "claude-3-5-sonnet-20241022",
        "created_at": "1970-01-01T00:00:00Z",
        "lifecycle": "active",
        "max_input_tokens": 200_000,
        "max_tokens": 8192,
        "owned_by": "anthropic",
    }
    got = gateway.request("GET", "/v1/models/gpt-4o", headers=ANTHROPIC)
    assert (got.json["type"], got.json["id"]) == ("model", "gpt-4o")


@pytest.mark.parametrize(
    ("query", "ids", "has_more"),
    [
        ("?limit=2", slice(0, 2), True),
        ("?limit=13", slice(0, 13), False),
        ("?limit=1000&after_id=gpt-4-turbo", slice(3, 13), False),
        ("?limit=3&after_id=gpt-4-turbo", slice(3, 6), True),
        ("?limit=3&before_id=gpt-4-turbo", slice(0, 2), False),
        ("?limit=2&before_id=text-embedding-3-small", slice(1, 3), True),
        ("?after_id=mixtral-8x7b-32768", slice(13, 13), False),
        ("?before_id=gpt-4o", slice(0, 0), False),
    ],
)
def test_models_list_pages_of_anthropic_format(gateway: Gateway, query: str, ids: slice, has_more: bool) -> None:
    got, expected = page(gateway, query), [*CATALOG][ids]
    assert [model["id"] for model in got["data"]] == expected
    assert got["has_more"] is has_more
    ends = (expected[0], expected[-1]) if expected else (None, None)
    assert (got["first_id"], got["last_id"]) == ends


def test_models_list_anthropic_client_iterates_all_pages(anthropic_client: anthropic.Anthropic) -> None:
    assert [model.id for model in anthropic_client.models.list(limit=2)] == [*CATALOG]
    model = anthropic_client.models.retrieve("llama-3.1-8b-instant")
    assert (model.id, model.type, model.created_at.year) == ("llama-3.1-8b-instant", "model", 1970)
    with pytest.raises(anthropic.NotFoundError) as caught:
        anthropic_client.models.retrieve("gpt-99")
    assert caught.value.body["error"]["type"] == "not_found_error"


@pytest.mark.parametrize(
    ("query", "parameter"),
    [
        *[(f"?limit={value}", "limit") for value in ("0", "1001", "-1", "x", "", "1.5", "9" * 5000, "%C2%B2")],
        ("?after_id=gpt-99", "after_id"),
        ("?before_id=", "before_id"),
        ("?before_id=gpt-4o&after_id=gpt-4o", "before_id"),
    ],
)
def test_models_list_invalid_page_returns_400_in_anthropic_format(gateway: Gateway, query: str, parameter: str) -> None:
    got = gateway.request("GET", f"/v1/models{query}", headers=ANTHROPIC)
    assert (got.status, got.json["type"], got.json["error"]["type"]) == (400, "error", "invalid_request_error")
    assert f"`{parameter}`" in got.json["error"]["message"]
    assert gateway.request("GET", f"/v1/models{query}").status == 200, "the OpenAI API has no such parameter"
