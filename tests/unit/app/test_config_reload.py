"""The state that a configuration reload keeps and resets."""

from __future__ import annotations

from svc.gateway.accounting.cost import PriceTable
from svc.gateway.accounting.price import Price
from svc.gateway.routing.backends import Backend, build_backends
from svc.gateway.routing.load_balancer import LoadBalancer
from svc.gateway.routing.providers import build_provider
from svc.gateway.routing.router import Router
from svc.settings import ModelSettings, ProviderSettings, RoutingSettings


def make_backend(name: str, model: str, key: str = "k", **model_settings: float) -> Backend:
    models = (ModelSettings(id=model, **model_settings),)  # type: ignore[arg-type]
    entry = ProviderSettings(name=name, base_url="http://provider.test/v1", models=models)
    return build_backends(build_provider(entry, entry.base_url, key))[0]


def test_router_replace_keeps_embedded_model() -> None:
    router = Router([make_backend("one", "m1")], {})
    router.put_backends([make_backend("local", "small")])
    router.replace([make_backend("two", "m2")], {"m2": ("small",)}, {})
    assert sorted(one.model_id for one in router.backends()) == ["m2", "small"]
    assert [one.model_id for one in router.route("m2")] == ["m2", "small"]


def test_load_balancer_configure_unchanged_backend_keeps_breaker() -> None:
    balancer = LoadBalancer(RoutingSettings())
    before = balancer.health_of(make_backend("one", "m"))
    same = make_backend("one", "m")
    balancer.configure(RoutingSettings(slow_after=7, retry_share=0.5), [same])
    assert balancer.health_of(same) is before
    assert (before.breaker.slow_after, before.retry_budget.max_retry_share) == (7, 0.5)


def test_load_balancer_configure_backend_with_new_key_gets_new_breaker() -> None:
    balancer = LoadBalancer(RoutingSettings())
    health = balancer.health_of(make_backend("one", "m"))
    breaker, health.cooldown_until = health.breaker, 1e12
    other = make_backend("one", "m", key="another")
    balancer.configure(RoutingSettings(), [other])
    assert balancer.health_of(other).breaker is not breaker
    assert balancer.health_of(other).cooldown_until == 0


def test_load_balancer_configure_new_key_after_idle_reload_ends_cooldown() -> None:
    balancer = LoadBalancer(RoutingSettings())
    health = balancer.health_of(make_backend("one", "m"))
    health.cooldown_until = 1e12
    balancer.configure(RoutingSettings(), [make_backend("one", "m")])
    other = make_backend("one", "m", key="another")
    balancer.configure(RoutingSettings(), [other])
    assert balancer.health_of(other) is health
    assert health.cooldown_until == 0


def test_price_table_replace_keeps_fetched_prices() -> None:
    listed, given = make_backend("one", "listed"), make_backend("one", "given", input_price=1.0, output_price=2.0)
    prices = PriceTable([listed, given])
    assert not prices.is_complete
    prices.add_fetched_prices(prices.price_lookups, {("one", "listed"): Price(3.0, 4.0)})
    prices.replace_backends([make_backend("one", "listed"), make_backend("one", "given", input_price=5.0)])
    assert prices.is_complete
    assert prices.get("one", "listed") == Price(3.0, 4.0)
    assert prices.get("one", "given") == Price(5.0, 0.0)


def test_price_table_replace_drops_price_removed_from_configuration() -> None:
    prices = PriceTable([make_backend("one", "m", input_price=1.0)])
    prices.replace_backends([make_backend("one", "m")])
    assert prices.get("one", "m") is None
    assert not prices.is_complete


def test_price_table_replace_keeps_price_of_removed_backend() -> None:
    prices = PriceTable([make_backend("one", "m", input_price=1.0)])
    prices.replace_backends([])
    assert prices.get("one", "m") == Price(1.0, 0.0)
