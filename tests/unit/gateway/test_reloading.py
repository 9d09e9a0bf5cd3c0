"""What a changed configuration keeps, and what it begins anew."""

from __future__ import annotations

from svc.gateway.healing.steering import Steering
from svc.gateway.offers import Offer, offers_of
from svc.gateway.price import Price
from svc.gateway.pricing import Prices
from svc.gateway.providers import provider_of
from svc.gateway.router import Router
from svc.settings import ModelSettings, ProviderSettings, RoutingSettings


def offer(name: str, model: str, key: str = "k", **model_settings: float) -> Offer:
    models = (ModelSettings(id=model, **model_settings),)  # type: ignore[arg-type]
    entry = ProviderSettings(name=name, base_url="http://provider.test/v1", models=models)
    return offers_of(provider_of(entry, entry.base_url, key))[0]


def test_router_replace_keeps_the_embedded_model() -> None:
    router = Router([offer("one", "m1")], {})
    router.put([offer("local", "small")])
    router.replace([offer("two", "m2")], {"m2": ("small",)}, {})
    assert sorted(one.model_id for one in router.offers()) == ["m2", "small"]
    assert [one.model_id for one in router.route("m2")] == ["m2", "small"]


def test_steering_keeps_the_breaker_of_an_unchanged_target() -> None:
    steering = Steering(RoutingSettings())
    before = steering.of(offer("one", "m"))
    same = offer("one", "m")
    steering.configure(RoutingSettings(slow_after=7, retry_share=0.5), [same])
    assert steering.of(same) is before
    assert (before.breaker.slow_after, before.budget.share) == (7, 0.5)


def test_steering_closes_the_breaker_of_a_target_with_another_key() -> None:
    steering = Steering(RoutingSettings())
    health = steering.of(offer("one", "m"))
    breaker, health.rest_until = health.breaker, 1e12
    other = offer("one", "m", key="another")
    steering.configure(RoutingSettings(), [other])
    assert steering.of(other).breaker is not breaker
    assert steering.of(other).rest_until == 0


def test_steering_notices_another_key_after_a_reload_without_traffic() -> None:
    steering = Steering(RoutingSettings())
    health = steering.of(offer("one", "m"))
    health.rest_until = 1e12
    steering.configure(RoutingSettings(), [offer("one", "m")])
    other = offer("one", "m", key="another")
    steering.configure(RoutingSettings(), [other])
    assert steering.of(other) is health
    assert health.rest_until == 0


def test_prices_replace_keeps_what_the_price_list_said() -> None:
    listed, given = offer("one", "listed"), offer("one", "given", input_price=1.0, output_price=2.0)
    prices = Prices([listed, given])
    assert not prices.complete
    prices.learn({("one", "listed"): Price(3.0, 4.0)})
    prices.replace([offer("one", "listed"), offer("one", "given", input_price=5.0)])
    assert prices.complete
    assert prices.of("one", "listed") == Price(3.0, 4.0)
    assert prices.of("one", "given") == Price(5.0, 0.0)


def test_prices_replace_forgets_a_price_that_the_configuration_no_longer_gives() -> None:
    prices = Prices([offer("one", "m", input_price=1.0)])
    prices.replace([offer("one", "m")])
    assert prices.of("one", "m") is None
    assert not prices.complete


def test_prices_replace_keeps_the_price_of_a_request_that_still_runs() -> None:
    prices = Prices([offer("one", "m", input_price=1.0)])
    prices.replace([])
    assert prices.of("one", "m") == Price(1.0, 0.0)
