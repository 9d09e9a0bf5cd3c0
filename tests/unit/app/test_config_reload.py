"""What a changed configuration keeps, and what it begins anew."""

from __future__ import annotations

from svc.gateway.accounting.cost import PriceTable
from svc.gateway.accounting.price import Price
from svc.gateway.routing.backends import Backend, build_backends
from svc.gateway.routing.load_balancer import LoadBalancer
from svc.gateway.routing.providers import build_provider
from svc.gateway.routing.router import Router
from svc.settings import ModelSettings, ProviderSettings, RoutingSettings


def offer(name: str, model: str, key: str = "k", **model_settings: float) -> Backend:
    models = (ModelSettings(id=model, **model_settings),)  # type: ignore[arg-type]
    entry = ProviderSettings(name=name, base_url="http://provider.test/v1", models=models)
    return build_backends(build_provider(entry, entry.base_url, key))[0]


def test_router_replace_keeps_the_embedded_model() -> None:
    router = Router([offer("one", "m1")], {})
    router.put_backends([offer("local", "small")])
    router.replace([offer("two", "m2")], {"m2": ("small",)}, {})
    assert sorted(one.model_id for one in router.backends()) == ["m2", "small"]
    assert [one.model_id for one in router.route("m2")] == ["m2", "small"]


def test_steering_keeps_the_breaker_of_an_unchanged_target() -> None:
    steering = LoadBalancer(RoutingSettings())
    before = steering.health_of(offer("one", "m"))
    same = offer("one", "m")
    steering.configure(RoutingSettings(slow_after=7, retry_share=0.5), [same])
    assert steering.health_of(same) is before
    assert (before.breaker.slow_after, before.retry_budget.max_retry_share) == (7, 0.5)


def test_steering_closes_the_breaker_of_a_target_with_another_key() -> None:
    steering = LoadBalancer(RoutingSettings())
    health = steering.health_of(offer("one", "m"))
    breaker, health.cooldown_until = health.breaker, 1e12
    other = offer("one", "m", key="another")
    steering.configure(RoutingSettings(), [other])
    assert steering.health_of(other).breaker is not breaker
    assert steering.health_of(other).cooldown_until == 0


def test_steering_notices_another_key_after_a_reload_without_traffic() -> None:
    steering = LoadBalancer(RoutingSettings())
    health = steering.health_of(offer("one", "m"))
    health.cooldown_until = 1e12
    steering.configure(RoutingSettings(), [offer("one", "m")])
    other = offer("one", "m", key="another")
    steering.configure(RoutingSettings(), [other])
    assert steering.health_of(other) is health
    assert health.cooldown_until == 0


def test_prices_replace_keeps_what_the_price_list_said() -> None:
    listed, given = offer("one", "listed"), offer("one", "given", input_price=1.0, output_price=2.0)
    prices = PriceTable([listed, given])
    assert not prices.is_complete
    prices.add_fetched_prices({("one", "listed"): Price(3.0, 4.0)})
    prices.replace_backends([offer("one", "listed"), offer("one", "given", input_price=5.0)])
    assert prices.is_complete
    assert prices.get("one", "listed") == Price(3.0, 4.0)
    assert prices.get("one", "given") == Price(5.0, 0.0)


def test_prices_replace_forgets_a_price_that_the_configuration_no_longer_gives() -> None:
    prices = PriceTable([offer("one", "m", input_price=1.0)])
    prices.replace_backends([offer("one", "m")])
    assert prices.get("one", "m") is None
    assert not prices.is_complete


def test_prices_replace_keeps_the_price_of_a_request_that_still_runs() -> None:
    prices = PriceTable([offer("one", "m", input_price=1.0)])
    prices.replace_backends([])
    assert prices.get("one", "m") == Price(1.0, 0.0)
