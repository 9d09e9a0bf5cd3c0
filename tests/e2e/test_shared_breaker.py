"""Breakers that several machines share through Redis."""

from __future__ import annotations

import time

from tests.e2e.conftest import Nodes
from tests.fakes import openai_wire
from tests.fakes.provider import FakeProvider
from tests.fakes.script import answer


def test_a_breaker_that_one_machine_opens_is_open_at_the_other(nodes: Nodes, provider_a: FakeProvider) -> None:
    one, other = nodes(), nodes()
    assert other.chat().status == 200
    provider_a.always_plays(answer(500, openai_wire.error("down")))
    for number in range(20):
        one.chat(seed=number)
    one.logged("closed -> open")
    other.logged("open, as another process has found")
    asked = len(provider_a.requests)
    assert other.chat(seed=1).status == 502
    assert len(provider_a.requests) == asked
    provider_a.always_plays(None)
    deadline = time.monotonic() + 20
    while other.chat(seed=2).status != 200:
        assert time.monotonic() < deadline
        time.sleep(0.2)
