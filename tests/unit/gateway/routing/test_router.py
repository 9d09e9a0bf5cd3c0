"""Which offers a request for a model is tried at."""

from __future__ import annotations

import pytest

from svc.errors import InvalidRequest, ModelNotFound
from svc.gateway.routing.backends import Backend, build_backends
from svc.gateway.routing.providers import build_provider
from svc.gateway.routing.router import Router
from svc.settings import ModelSettings, ProviderSettings
from svc.wire.key import ApiKey


def offers(name: str, *models: str) -> list[Backend]:
    entry = ProviderSettings(name=name, models=tuple(ModelSettings(id=model) for model in models))
    return build_backends(build_provider(entry, "http://127.0.0.1:9/v1", "key"))


def names(chain: tuple[Backend, ...] | list[Backend]) -> list[tuple[str, str]]:
    return [(offer.provider_name, offer.model_id) for offer in chain]


def test_route_two_providers_of_one_model_returns_both_in_order() -> None:
    router = Router([*offers("first", "m"), *offers("second", "m", "n")], {})
    assert names(router.route("m")) == [("first", "m"), ("second", "m")]


def test_route_fallbacks_come_after_all_providers_of_the_model() -> None:
    router = Router([*offers("first", "m", "n"), *offers("second", "m")], {"m": ("n",)})
    assert names(router.route("m")) == [("first", "m"), ("second", "m"), ("first", "n")]


def test_put_replaces_the_offer_of_the_same_provider_in_its_place() -> None:
    router = Router([*offers("first", "m"), *offers("second", "m")], {})
    (moved,) = offers("first", "m")
    router.put_backends([moved])
    assert router.route("m")[0] is moved
    assert names(router.route("m")) == [("first", "m"), ("second", "m")]


def test_models_lists_each_model_once_and_offers_all() -> None:
    router = Router([*offers("first", "m"), *offers("second", "m", "n")], {})
    assert names(router.models()) == [("first", "m"), ("second", "n")]
    assert names(router.backends()) == [("first", "m"), ("second", "m"), ("second", "n")]


def test_route_unknown_model_raises() -> None:
    with pytest.raises(ModelNotFound):
        Router(offers("first", "m"), {}).route("n")


def not_found(router: Router, model: str, key: ApiKey | None = None) -> str:
    with pytest.raises(ModelNotFound) as caught:
        router.route(model, key)
    return caught.value.message


def test_not_found_says_what_is_offered() -> None:
    assert not_found(Router(offers("first", "m", "n"), {}), "x") == (
        "The model 'x' is not offered here. Offered: m, n."
    )


def test_not_found_lists_few_models_of_many() -> None:
    message = not_found(Router(offers("first", *(f"{n:03}" + "m" * 300 for n in range(200))), {}), "x" * 500)
    assert "and 190 more (GET /v1/models)" in message
    assert len(message) < 1500


def test_not_found_unkeyed_model_names_the_key_that_is_missing() -> None:
    router = Router(offers("first", "m"), {}, {"x": "the provider a has no API key (set A_KEY)"})
    assert not_found(router, "x") == (
        "The model 'x' is not offered here: the provider a has no API key (set A_KEY). Offered: m."
    )


def test_not_found_model_of_another_kind_names_its_endpoint() -> None:
    router = Router(offers("first", "m"), {})
    router.find_other_endpoint = {"ears": "POST /v1/audio/transcriptions"}.get
    assert not_found(router, "ears") == (
        "The model 'ears' is not for chat: send it to POST /v1/audio/transcriptions. Offered: m."
    )


@pytest.mark.parametrize("model", ["m", "x", "ears", "unknown"])
def test_not_found_tells_a_key_nothing_of_models_that_it_may_not_use(model: str) -> None:
    router = Router(offers("first", "m", "n"), {}, {"x": "the provider a has no API key (set A_KEY)"})
    router.find_other_endpoint = {"ears": "POST /v1/audio/transcriptions"}.get
    key = ApiKey("k", "k", models=frozenset({"n"}))
    assert not_found(router, model, key) == f"This API key may not use the model '{model}'. Offered: n."
    assert not_found(router, model, ApiKey("k", "k", models=frozenset({"z"}))).endswith(
        "No model is offered to this key."
    )


def embedders(name: str, *models: str) -> list[Backend]:
    entry = ProviderSettings(name=name, models=tuple(ModelSettings(id=model, kind="embedding") for model in models))
    return build_backends(build_provider(entry, "http://127.0.0.1:9/v1", "key"))


def test_route_model_of_another_kind_names_its_endpoint() -> None:
    paths = {"chat": "/v1/chat/completions", "embedding": "/v1/embeddings"}
    router = Router([*offers("first", "m"), *embedders("first", "e")], {}, None, paths)
    assert names(router.route("e", kind="embedding")) == [("first", "e")]
    for model, kind, path in (("m", "embedding", "/v1/chat/completions"), ("e", "chat", "/v1/embeddings")):
        with pytest.raises(InvalidRequest) as caught:
            router.route(model, kind=kind)
        assert caught.value.message == f"The model '{model}' is not for this endpoint: send it to POST {path}."
        assert caught.value.param == "model"
    assert router.endpoint_for("e") == "POST /v1/embeddings"
    assert router.endpoint_for("x") is None


def test_route_chain_holds_one_kind() -> None:
    router = Router([*offers("first", "m"), *embedders("second", "m", "e")], {"m": ("e",)})
    assert names(router.route("m")) == [("first", "m")]


def test_route_model_of_another_kind_is_not_told_to_a_key_that_may_not_use_it() -> None:
    router = Router(embedders("first", "e"), {})
    with pytest.raises(ModelNotFound):
        router.route("e", ApiKey("k", "shop", models=frozenset(("m",))))
