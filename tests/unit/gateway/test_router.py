"""Which offers a request for a model is tried at."""

from __future__ import annotations

import pytest

from svc.errors import ModelNotFound
from svc.gateway.offers import Offer, offers_of
from svc.gateway.providers import provider_of
from svc.gateway.router import Router
from svc.settings import ModelSettings, ProviderSettings


def offers(name: str, *models: str) -> list[Offer]:
    entry = ProviderSettings(name=name, models=tuple(ModelSettings(id=model) for model in models))
    return offers_of(provider_of(entry, "http://127.0.0.1:9/v1", "key"))


def names(chain: tuple[Offer, ...] | list[Offer]) -> list[tuple[str, str]]:
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
    router.put([moved])
    assert router.route("m")[0] is moved
    assert names(router.route("m")) == [("first", "m"), ("second", "m")]


def test_models_lists_each_model_once_and_offers_all() -> None:
    router = Router([*offers("first", "m"), *offers("second", "m", "n")], {})
    assert names(router.models()) == [("first", "m"), ("second", "n")]
    assert names(router.offers()) == [("first", "m"), ("second", "m"), ("second", "n")]


def test_route_unknown_model_raises() -> None:
    with pytest.raises(ModelNotFound):
        Router(offers("first", "m"), {}).route("n")
