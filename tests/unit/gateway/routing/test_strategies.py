"""The order of the providers of a model, by its routing strategy."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from svc import settings
from svc.dialects.base import RequestBody
from svc.dialects.routing_info import RoutingInfo
from svc.errors import UsageError
from svc.gateway.accounting.cost import PriceTable, compute_token_cost
from svc.gateway.routing.backends import Backend, build_backends
from svc.gateway.routing.providers import build_providers
from svc.gateway.routing.router import Router
from svc.gateway.routing.strategies import LATENCY_MAX_AGE_SECONDS, BackendLoad, RoutingStrategies
from svc.settings import ModelSettings, ProviderSettings, RoutingSettings, Settings
from svc.wire.usage import TokenUsage

BODY = RequestBody(b'{"model":"m","messages":[{"role":"user","content":"Hi"}]}')
INFO = RoutingInfo(model="m")
NOW = 100.0


def backends_of(*names: str, model: str = "m") -> tuple[Backend, ...]:
    entries = tuple(
        ProviderSettings(name=name, base_url="http://127.0.0.1:1/v1", models=(ModelSettings(id=model),))
        for name in names
    )
    providers = {provider.name: provider for provider in build_providers(Settings(providers=entries))}
    return tuple(build_backends(providers[name])[0] for name in names)


def ordered(
    strategies: RoutingStrategies, backends: tuple[Backend, ...], info: RoutingInfo = INFO, *, now: float = NOW
) -> str:
    return " ".join(backend.provider_name for backend in strategies.order(backends, BODY, info, now))


def test_default_strategy_is_disabled_and_keeps_the_order() -> None:
    strategies = RoutingStrategies(RoutingSettings())
    assert not strategies.is_enabled
    assert not strategies.tracks_load
    assert ordered(strategies, backends_of("b", "a")) == "b a"


def test_weighted_first_provider_is_in_proportion_to_weights() -> None:
    routing = RoutingSettings(strategy="weighted", weights={"m": {"a": 3, "c": 0}})
    strategies, backends = RoutingStrategies(routing), backends_of("c", "a", "b")
    orders = Counter(ordered(strategies, backends) for _ in range(4000))
    assert orders.keys() == {"a b c", "b a c"}  # c comes last, and b has the weight 1
    assert 2800 < orders["a b c"] < 3200


def test_least_busy_fewest_requests_in_flight_come_first() -> None:
    strategies, backends = RoutingStrategies(RoutingSettings(strategy="least_busy")), backends_of("a", "b", "c")
    assert strategies.tracks_load
    for backend, in_flight in zip(backends, (2, 0, 1), strict=True):
        strategies.load_of(backend).in_flight = in_flight
    assert ordered(strategies, backends) == "b c a"


def test_least_busy_equal_load_fastest_comes_first_per_kind_of_response() -> None:
    strategies, backends = RoutingStrategies(RoutingSettings(strategy="least_busy")), backends_of("a", "b")
    a, b = (strategies.load_of(backend) for backend in backends)
    a.record_latency(0.2, NOW, stream=False)
    b.record_latency(0.1, NOW, stream=False)
    a.record_latency(0.1, NOW, stream=True)
    b.record_latency(0.2, NOW, stream=True)
    assert ordered(strategies, backends) == "b a"
    assert ordered(strategies, backends, RoutingInfo(model="m", stream=True)) == "a b"


def test_least_busy_provider_without_a_recent_latency_is_measured_again() -> None:
    strategies, backends = RoutingStrategies(RoutingSettings(strategy="least_busy")), backends_of("a", "b")
    a, b = (strategies.load_of(backend) for backend in backends)
    a.record_latency(0.2, NOW, stream=False)
    later = NOW + LATENCY_MAX_AGE_SECONDS + 1
    b.record_latency(0.1, later, stream=False)
    assert ordered(strategies, backends, now=NOW + 1) == "b a"
    assert ordered(strategies, backends, now=later) == "a b"


def test_backend_load_outdated_average_is_replaced() -> None:
    load = BackendLoad()
    load.record_latency(10.0, NOW, stream=False)
    later = NOW + LATENCY_MAX_AGE_SECONDS + 1
    load.record_latency(0.1, later, stream=False)
    assert load.average_latency(later, stream=False) == pytest.approx(0.1)
    load.record_latency(1.1, later, stream=False)
    assert load.average_latency(later, stream=False) == pytest.approx(0.3)


def priced_strategies(backends: tuple[Backend, ...]) -> RoutingStrategies:
    prices = PriceTable(backends)

    def estimate_cost(backend: Backend, usage: TokenUsage) -> float | None:
        price = prices.get_for_backend(backend)
        return None if price is None else compute_token_cost(price, usage)

    strategies = RoutingStrategies(RoutingSettings(strategy="cheapest"))
    strategies.estimate_cost = estimate_cost
    return strategies


def test_cheapest_depends_on_prompt_and_output_tokens_and_unknown_prices_come_last() -> None:
    prices = {"unknown": {}, "input": {"input_price": 9, "output_price": 1}, "output": {"output_price": 9}}
    entries = tuple(
        ProviderSettings(name=name, base_url="http://127.0.0.1:1/v1", models=(ModelSettings(id="m", **price),))
        for name, price in prices.items()
    )
    backends = tuple(build_backends(provider)[0] for provider in build_providers(Settings(providers=entries)))
    strategies = priced_strategies(backends)
    assert ordered(strategies, backends) == "input output unknown"
    assert ordered(strategies, backends, RoutingInfo(model="m", max_tokens=1)) == "output input unknown"
    embedding = RoutingInfo(model="m", has_completion=False)
    assert ordered(strategies, backends, embedding) == "output input unknown"


def test_strategy_applies_within_each_model_of_a_fallback_chain() -> None:
    routing = RoutingSettings(strategy="least_busy", strategies={"n": "order"})
    strategies = RoutingStrategies(routing)
    chain = Router([*backends_of("a", "b"), *backends_of("c", "d", model="n")], {"m": ("n",)}).route("m")
    assert [backend.provider_name for backend in chain] == ["a", "b", "c", "d"]
    for backend in (chain[0], chain[2]):
        strategies.load_of(backend).in_flight = 1
    assert ordered(strategies, chain) == "b a c d"


def test_configure_changes_the_strategy_and_keeps_the_load() -> None:
    strategies, backends = RoutingStrategies(RoutingSettings(strategy="least_busy")), backends_of("a", "b")
    strategies.load_of(backends[0]).in_flight = 1
    strategies.configure(RoutingSettings(strategies={"m": "order"}))
    assert not strategies.is_enabled
    strategies.configure(RoutingSettings(strategies={"m": "least_busy"}))
    assert strategies.is_enabled
    assert ordered(strategies, backends) == "b a"


TWO = """
[[providers]]
name = "a"
base_url = "http://127.0.0.1:1/v1"
models = [{ id = "m" }]
[[providers]]
name = "b"
base_url = "http://127.0.0.1:1/v1"
models = [{ id = "m" }, { id = "only-b" }]
"""


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            '[routing.strategies]\n"x" = "weighted"\n[[aliases]]\nname = "x"\nmodel = "m"',
            "line 2: [routing.strategies] names the alias 'x': use its model 'm'",
        ),
        ('[routing]\nstrategy = "fastest"', "Invalid enum value 'fastest' in [routing.strategy]"),
        ('[routing.strategies]\n"m" = 1', "Expected string, got integer"),
        (
            '[routing.strategies]\n"n" = "weighted"',
            "line 2: [routing.strategies] names a model that no provider has: 'n'",
        ),
        ('[routing.strategies]\n"only-c" = "order"', "did you mean 'only-b'?"),
        ('[routing.weights."only-c"]\nb = 1', "line 1: [routing.weights] names a model that no provider has: 'only-c'"),
        (
            '[routing]\nstrategy = "weighted"\n[routing.weights."only-b"]\na = 1',
            "does not have the model 'only-b': 'a'",
        ),
        ('[routing]\nstrategy = "weighted"\n[routing.weights."m"]\na = -1', "at least 0.0"),
        ('[routing]\nstrategy = "weighted"\n[routing.weights."m"]\na = "3"', "Expected number, got string"),
        ('[routing]\nstrategy = "weighted"\n[routing.weights."m"]\na = 0\nb = 0', "no provider with a weight above 0"),
        ('[routing.weights."m"]\na = 1', "has no effect, because its strategy is 'order'"),
    ],
)
def test_settings_invalid_strategy_names_the_field(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "svc.toml"
    path.write_text(text + TWO)
    with pytest.raises(UsageError) as caught:
        build_providers(settings.load({}, config=str(path)))
    assert message in caught.value.message


def test_settings_strategy_of_the_embedded_model_is_valid(tmp_path: Path) -> None:
    path = tmp_path / "svc.toml"
    path.write_text('[routing.strategies]\n"smollm2-135m" = "weighted"\n[routing.weights."smollm2-135m"]\nlocal = 2\n')
    assert build_providers(settings.load({}, config=str(path))) == []
