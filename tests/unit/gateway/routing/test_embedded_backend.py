"""A model on this machine that is busy is no outage; one that has died is."""

from __future__ import annotations

import msgspec
import pytest

from svc.gateway.routing.backends import Backend, build_backends
from svc.gateway.routing.failures import AttemptFailure, connection_failure, timeout_failure
from svc.gateway.routing.load_balancer import LoadBalancer
from svc.gateway.routing.providers import build_providers
from svc.settings import ModelSettings, ProviderSettings, RoutingSettings, Settings


def offer(name: str) -> Backend:
    entry = ProviderSettings(name=name, base_url="http://127.0.0.1:9/v1", models=(ModelSettings(id="m"),))
    settings = msgspec.structs.replace(Settings(), providers=(entry,))
    return next(one for each in build_providers(settings) if each.name == name for one in build_backends(each))


@pytest.mark.parametrize(
    ("name", "failure", "state"),
    [
        ("local", timeout_failure("to begin its answer"), "closed"),
        ("local", connection_failure("gone", connected=False), "open"),
        ("other", timeout_failure("to begin its answer"), "open"),
    ],
)
def test_lateness(name: str, failure: AttemptFailure, state: str) -> None:
    steering, target = LoadBalancer(RoutingSettings()), offer(name)
    for _ in range(30):
        steering.record_failure(target, failure, 100.0)
    assert set(steering.breaker_states().values()) == {state}


@pytest.mark.parametrize(("name", "state"), [("local", "closed"), ("other", "open")])
def test_slowness(name: str, state: str) -> None:
    steering, target = LoadBalancer(RoutingSettings()), offer(name)
    for number in range(60):
        steering.record_success(target, 0.1 if number < 30 else 30.0, 100.0, stream=True)
    assert set(steering.breaker_states().values()) == {state}


@pytest.mark.parametrize(("name", "state"), [("local", "closed"), ("other", "open")])
def test_breaker_model_is_started_again_is_closed(name: str, state: str) -> None:
    """A new offer of the embedded model is a new process; that of another provider is the same one, elsewhere."""
    steering, dead, started = LoadBalancer(RoutingSettings()), offer(name), offer(name)
    for _ in range(30):
        steering.record_failure(dead, connection_failure("gone", connected=False), 100.0)
    steering.health_of(started)
    assert set(steering.breaker_states().values()) == {state}
