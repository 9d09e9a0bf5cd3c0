"""A busy embedded model does not open the breaker. A dead one does."""

from __future__ import annotations

import msgspec
import pytest

from svc.gateway.routing.backends import Backend, build_backends
from svc.gateway.routing.failures import AttemptFailure, connection_failure, timeout_failure
from svc.gateway.routing.load_balancer import LoadBalancer
from svc.gateway.routing.providers import build_providers
from svc.settings import ModelSettings, ProviderSettings, RoutingSettings, Settings


def build_backend(name: str) -> Backend:
    entry = ProviderSettings(name=name, base_url="http://127.0.0.1:9/v1", models=(ModelSettings(id="m"),))
    settings = msgspec.structs.replace(Settings(), providers=(entry,))
    return next(one for each in build_providers(settings) if each.name == name for one in build_backends(each))


@pytest.mark.parametrize(
    ("name", "failure", "state"),
    [
        ("local", timeout_failure("to begin its response"), "closed"),
        ("local", connection_failure("connection lost", connected=False), "open"),
        ("other", timeout_failure("to begin its response"), "open"),
    ],
)
def test_breaker_timeouts_of_embedded_model_keep_it_closed(name: str, failure: AttemptFailure, state: str) -> None:
    balancer, backend = LoadBalancer(RoutingSettings()), build_backend(name)
    for _ in range(30):
        balancer.record_failure(backend, failure, 100.0)
    assert set(balancer.breaker_states().values()) == {state}


@pytest.mark.parametrize(("name", "state"), [("local", "closed"), ("other", "open")])
def test_breaker_slow_embedded_model_keeps_it_closed(name: str, state: str) -> None:
    balancer, backend = LoadBalancer(RoutingSettings()), build_backend(name)
    for number in range(60):
        balancer.record_success(backend, 0.1 if number < 30 else 30.0, 100.0, stream=True)
    assert set(balancer.breaker_states().values()) == {state}


@pytest.mark.parametrize(("name", "state"), [("local", "closed"), ("other", "open")])
def test_breaker_restarted_embedded_model_is_closed(name: str, state: str) -> None:
    """A new backend of the embedded model is a new process. For another provider it is the same server."""
    balancer, old, new = LoadBalancer(RoutingSettings()), build_backend(name), build_backend(name)
    for _ in range(30):
        balancer.record_failure(old, connection_failure("connection lost", connected=False), 100.0)
    balancer.health_of(new)
    assert set(balancer.breaker_states().values()) == {state}
