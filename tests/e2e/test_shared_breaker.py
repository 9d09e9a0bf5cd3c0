"""Circuit breakers that several gateways share through Redis."""

from __future__ import annotations

import contextlib
import time

from tests.e2e.conftest import Nodes
from tests.e2e.harness import GPT, HI
from tests.fakes import openai_wire
from tests.fakes.http_client import request_bytes
from tests.fakes.provider import FakeProvider
from tests.fakes.script import answer, sse, stall


def test_shared_breaker_opened_by_one_gateway_is_open_at_other(nodes: Nodes, provider_a: FakeProvider) -> None:
    one, other = nodes(), nodes()
    assert other.chat().status == 200
    provider_a.always_plays(answer(500, openai_wire.error("down")))
    for number in range(20):
        one.chat(seed=number)
    one.logged("closed -> open")
    other.logged("opened by another process")
    sent = len(provider_a.requests)
    assert other.chat(seed=1).status == 502
    assert len(provider_a.requests) == sent
    provider_a.always_plays(None)
    deadline = time.monotonic() + 20
    while other.chat(seed=2).status != 200:
        assert time.monotonic() < deadline
        time.sleep(0.2)


def test_shared_breaker_streams_interrupted_by_shutdown_are_not_failures(
    nodes: Nodes, provider_a: FakeProvider
) -> None:
    one, other = nodes("[gateway]\ndrain_timeout = 1\n"), nodes()
    assert other.chat().status == 200
    provider_a.always_plays(sse(openai_wire.stream()[:3], end=stall()))
    request = request_bytes("POST", "/v1/chat/completions", {"model": GPT, "messages": HI, "stream": True}, key=one.key)
    with contextlib.ExitStack() as stack:
        clients = [stack.enter_context(one.raw()) for _ in range(25)]
        for client in clients:
            client.send(request)
        for client in clients:
            client.read_until(b"Hello")
        assert one.stop() == 0
    time.sleep(1.5)
    assert "breaker" not in one.log + other.log
