"""Clients that do not read: what they cost the gateway's memory, and what the upstream notices."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Mapping

import pytest

from tests.e2e.conftest import StartGateway
from tests.e2e.harness import CLAUDE, GPT, HI
from tests.e2e.test_memory import resident
from tests.fakes import anthropic_wire, openai_wire
from tests.fakes.http_client import request_bytes
from tests.fakes.provider import FakeProvider, Recorded
from tests.fakes.script import sse

STREAMS = 16
KIB = 1024
FAST = {
    "long pieces": [openai_wire.role(), *[openai_wire.chunk({"content": "x" * 16_000})] * 2000],
    "words": [openai_wire.role(), *[openai_wire.chunk({"content": " word"}) * 80] * 2000],
    "translated": [
        *anthropic_wire.stream("")[:3],
        *[anthropic_wire.event("content_block_delta", index=0, delta={"type": "text_delta", "text": "x"}) * 150] * 2000,
    ],
}
"""More than all buffers of the system hold, as fast as it is taken."""


def wait_until_still(streams: list[Recorded]) -> None:
    """Until no more of them is taken."""
    before: list[int] = []
    deadline = time.monotonic() + 20
    while before != (now := [one.sent for one in streams]):
        assert time.monotonic() < deadline, "the upstreams are still being read"
        before = now
        time.sleep(0.5)


@pytest.mark.parametrize("kind", FAST)
def test_who_does_not_read_costs_little_and_stops_the_upstream(
    start_gateway: StartGateway, fakes: Mapping[str, FakeProvider], kind: str
) -> None:
    gateway = start_gateway()
    letter, model = ("B", CLAUDE) if kind == "translated" else ("A", GPT)
    fake = fakes[letter]
    gateway.chat(model, stream=True)  # what the first stream loads is no stream's cost
    fake.forget()
    fake.always_plays(sse(FAST[kind]))
    asked = request_bytes(
        "POST", "/v1/chat/completions", {"model": model, "messages": HI, "stream": True}, key=gateway.key
    )
    before = resident(gateway)
    with contextlib.ExitStack() as stack:
        for _ in range(STREAMS):
            stack.enter_context(gateway.raw()).send(asked)
        fake.wait(STREAMS, 20)
        wait_until_still(fake.requests)
        grown = (resident(gateway) - before) / STREAMS
        assert grown < 256 * KIB
        assert not any(one.played for one in fake.requests)
