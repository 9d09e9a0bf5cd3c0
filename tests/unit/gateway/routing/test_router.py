"""Which backends the router returns for a model."""

from __future__ import annotations

import pytest

from svc.errors import InvalidRequest, ModelNotFound
from svc.gateway.routing.backends import Backend, build_backends
from svc.gateway.routing.providers import build_provider
from svc.gateway.routing.router import Router
from svc.settings import ModelSettings, ProviderSettings
from svc.wire.key import ApiKey


def backends_of(name: str, *models: str) -> list[Backend]:
    entry = ProviderSettings(name=name, models=tuple(ModelSettings(id=model) for model in models))
    return build_backends(build_provider(entry, "http://127.0.0.1:9/v1", "key"))


def names(chain: tuple[Backend, ...] | list[Backend]) -> list[tuple[str, str]]:
    return [(backend.provider_name, backend.model_id) for backend in chain]


def test_route_model_of_two_providers_returns_both_in_order() -> None:
    router = Router([*backends_of("first", "m"), *backends_of("second", "m", "n")], {})
    assert names(router.route("m")) == [("first", "m"), ("second", "m")]


def test_route_fallbacks_follow_all_providers_of_the_model() -> None:
    router = Router([*backends_of("first", "m", "n"), *backends_of("second", "m")], {"m": ("n",)})
    assert names(router.route("m")) == [("first", "m"), ("second", "m"), ("first", "n")]


def test_put_backends_same_provider_is_replaced_in_place() -> None:
    router = Router([*backends_of("first", "m"), *backends_of("second", "m")], {})
    (moved,) = backends_of("first", "m")
    router.put_backends([moved])
    assert router.route("m")[0] is moved
    assert names(router.route("m")) == [("first", "m"), ("second", "m")]


def test_models_lists_each_once_and_backends_lists_all() -> None:
    router = Router([*backends_of("first", "m"), *backends_of("second", "m", "n")], {})
    assert names(router.first_backends()) == [("first", "m"), ("second", "n")]
    assert names(router.backends()) == [("first", "m"), ("second", "m"), ("second", "n")]


def test_route_unknown_model_raises_model_not_found() -> None:
    with pytest.raises(ModelNotFound):
        Router(backends_of("first", "m"), {}).route("n")


def not_found(router: Router, model: str, key: ApiKey | None = None) -> str:
    with pytest.raises(ModelNotFound) as caught:
        router.route(model, key)
    return caught.value.message


def test_model_not_found_message_lists_models() -> None:
    assert not_found(Router(backends_of("first", "m", "n"), {}), "x") == (
        "The model 'x' is not available here. Available: m, n."
    )


def test_model_not_found_many_models_message_lists_a_few() -> None:
    message = not_found(Router(backends_of("first", *(f"{n:03}" + "m" * 300 for n in range(200))), {}), "x" * 500)
    assert "and 190 more (GET /v1/models)" in message
    assert len(message) < 1500


def test_model_not_found_without_provider_key_message_names_variable() -> None:
    router = Router(backends_of("first", "m"), {}, {"x": "the provider a has no API key (set A_KEY)"})
    assert not_found(router, "x") == (
        "The model 'x' is not available here: the provider a has no API key (set A_KEY). Available: m."
    )


def test_model_not_found_of_speech_model_message_names_endpoint() -> None:
    router = Router(backends_of("first", "m"), {})
    router.find_other_endpoint = {"asr": "POST /v1/audio/transcriptions"}.get
    assert not_found(router, "asr") == (
        "The model 'asr' is not for this endpoint: send it to POST /v1/audio/transcriptions. Available: m."
    )


@pytest.mark.parametrize("model", ["m", "x", "asr", "unknown"])
def test_model_not_found_restricted_key_message_hides_other_models(model: str) -> None:
    router = Router(backends_of("first", "m", "n"), {}, {"x": "the provider a has no API key (set A_KEY)"})
    router.find_other_endpoint = {"asr": "POST /v1/audio/transcriptions"}.get
    key = ApiKey("k", "k", models=frozenset({"n"}))
    assert not_found(router, model, key) == f"This API key may not use the model '{model}'. Available: n."
    assert not_found(router, model, ApiKey("k", "k", models=frozenset({"z"}))).endswith(
        "No models are available to this key."
    )


def embedders(name: str, *models: str) -> list[Backend]:
    entry = ProviderSettings(name=name, models=tuple(ModelSettings(id=model, kind="embedding") for model in models))
    return build_backends(build_provider(entry, "http://127.0.0.1:9/v1", "key"))


def test_route_model_of_other_kind_error_names_its_endpoint() -> None:
    paths = {"chat": "/v1/chat/completions", "embedding": "/v1/embeddings"}
    router = Router([*backends_of("first", "m"), *embedders("first", "e")], {}, None, paths)
    assert names(router.route("e", kind="embedding")) == [("first", "e")]
    for model, kind, path in (("m", "embedding", "/v1/chat/completions"), ("e", "chat", "/v1/embeddings")):
        with pytest.raises(InvalidRequest) as caught:
            router.route(model, kind=kind)
        assert caught.value.message == f"The model '{model}' is not for this endpoint: send it to POST {path}."
        assert caught.value.param == "model"
    assert router.endpoint_for("e") == "POST /v1/embeddings"
    assert router.endpoint_for("x") is None


def test_route_fallback_of_other_kind_is_omitted() -> None:
    router = Router([*backends_of("first", "m"), *embedders("second", "m", "e")], {"m": ("e",)})
    assert names(router.route("m")) == [("first", "m")]


def test_route_model_of_other_kind_restricted_key_raises_model_not_found() -> None:
    router = Router(embedders("first", "e"), {})
    with pytest.raises(ModelNotFound):
        router.route("e", ApiKey("k", "shop", models=frozenset(("m",))))


def test_route_model_whose_provider_lacks_the_endpoint_uses_fallback_if_the_key_may() -> None:
    backends = [*embedders("anthropic", "e"), *embedders("openai", "f")]
    router = Router(backends, {"e": ("f",)}, is_served_by=lambda backend: backend.provider_name == "openai")
    assert names(router.route("e", kind="embedding")) == [("openai", "f")]
    key = ApiKey("k", "shop", models=frozenset(("e",)))
    assert names(router.route("e", key, "embedding")) == [("anthropic", "e")], "the client gets its error, not 404"


def test_route_alias_returns_backends_and_fallbacks_of_its_model() -> None:
    backends = [*backends_of("first", "m", "n"), *backends_of("second", "m")]
    router = Router(backends, {"m": ("n",)}, aliases={"agent": "m"})
    assert router.route("agent") == router.route("m")
    assert names(router.route("agent")) == [("first", "m"), ("second", "m"), ("first", "n")]


def test_route_alias_named_like_a_model_has_precedence() -> None:
    router = Router(backends_of("first", "m", "n", "o"), {"o": ("m",)}, aliases={"m": "n"})
    assert names(router.route("m")) == [("first", "n")]
    assert names(router.route("o")) == [("first", "o"), ("first", "m")], "a fallback names a model, not an alias"


@pytest.mark.parametrize(("models", "allowed"), [({"agent"}, ["agent"]), ({"m"}, ["m", "agent"]), ({"n"}, ["n"])])
def test_route_alias_restricted_key_may_name_alias_or_model(models: set[str], allowed: list[str]) -> None:
    router = Router(backends_of("first", "m", "n"), {"m": ("n",)}, aliases={"agent": "m"})
    key = ApiKey("k", "k", models=frozenset(models))
    assert sorted(router.offered_models(key)) == sorted(allowed)
    for name in ("agent", "m"):
        if name in allowed:
            assert names(router.route(name, key)) == [("first", "m")], "the key may not use the fallback"
        else:
            assert not_found(router, name, key).startswith(f"This API key may not use the model '{name}'.")


def test_route_alias_of_model_without_key_message_names_variable() -> None:
    reason = {"x": "the provider a has no API key (set A_KEY)"}
    router = Router(backends_of("first", "m"), {}, reason, aliases={"agent": "x", "m": "x"})
    message = "is not available here: the provider a has no API key (set A_KEY). No models are available to this key."
    for name in ("agent", "m"):
        assert not_found(router, name) == f"The model '{name}' {message}"
    assert router.offered_models(None) == {}


def test_router_replace_replaces_aliases() -> None:
    router = Router(backends_of("first", "m", "n"), {}, aliases={"a": "m", "b": "m"})
    router.replace(backends_of("first", "m", "n"), {}, {}, {"b": "n"})
    assert names(router.route("b")) == [("first", "n")]
    assert list(router.offered_models(None)) == ["m", "n", "b"]
    with pytest.raises(ModelNotFound):
        router.route("a")


def test_endpoint_of_alias_is_that_of_its_model() -> None:
    router = Router(embedders("first", "e"), {}, None, {"embedding": "/v1/embeddings"}, {"agent": "e"})
    assert router.endpoint_for("agent") == "POST /v1/embeddings"
    with pytest.raises(InvalidRequest):
        router.route("agent")
