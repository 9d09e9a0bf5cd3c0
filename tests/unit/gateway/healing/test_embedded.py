"""A model on this machine that is busy is no outage; one that has died is."""

from __future__ import annotations

import msgspec
import pytest

from svc.gateway.failures import Failure, late, lost
from svc.gateway.healing.steering import Steering
from svc.gateway.offers import Offer, offers_of
from svc.gateway.providers import providers_of
from svc.settings import ModelSettings, ProviderSettings, RoutingSettings, Settings


def offer(name: str) -> Offer:
    entry = ProviderSettings(name=name, base_url="http://127.0.0.1:9/v1", models=(ModelSettings(id="m"),))
    settings = msgspec.structs.replace(Settings(), providers=(entry,))
    return next(one for each in providers_of(settings) if each.name == name for one in offers_of(each))


@pytest.mark.parametrize(
    ("name", "failure", "state"),
    [
        ("local", late("to begin its answer"), "closed"),
        ("local", lost("gone", made=False), "open"),
        ("other", late("to begin its answer"), "open"),
    ],
)
def test_lateness(name: str, failure: Failure, state: str) -> None:
    steering, target = Steering(RoutingSettings()), offer(name)
    for _ in range(30):
        steering.failed(target, failure, 100.0)
    assert set(steering.states().values()) == {state}


@pytest.mark.parametrize(("name", "state"), [("local", "closed"), ("other", "open")])
def test_slowness(name: str, state: str) -> None:
    steering, target = Steering(RoutingSettings()), offer(name)
    for number in range(60):
        steering.answered(target, 0.1 if number < 30 else 30.0, 100.0, stream=True)
    assert set(steering.states().values()) == {state}


@pytest.mark.parametrize(("name", "state"), [("local", "closed"), ("other", "open")])
def test_breaker_model_is_started_again_is_closed(name: str, state: str) -> None:
    """A new offer of the embedded model is a new process; that of another provider is the same one, elsewhere."""
    steering, dead, started = Steering(RoutingSettings()), offer(name), offer(name)
    for _ in range(30):
        steering.failed(dead, lost("gone", made=False), 100.0)
    steering.of(started)
    assert set(steering.states().values()) == {state}
