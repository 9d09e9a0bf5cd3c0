"""Configured timeouts: connect, first byte, idle, total."""

from __future__ import annotations

import time

import pytest

from tests.e2e.conftest import StartGateway
from tests.e2e.harness import CLAUDE, GPT, Gateway
from tests.e2e.reading import broken_stream, complete_chunks, text_of
from tests.e2e.test_streams import first_events
from tests.fakes import openai_wire
from tests.fakes.ports import silent_port
from tests.fakes.provider import FakeProvider
from tests.fakes.script import answer, body, head, pause, sse, stall

A_AND_B = [("A", GPT), ("B", CLAUDE)]


def expect_502(gateway: Gateway, model: str, *, least: float, most: float, stream: bool = False) -> None:
    """Expect a 502 `provider_error` after one attempt within the given time in seconds."""
    began = time.monotonic()
    got = gateway.chat(model, stream=stream)
    took = time.monotonic() - began
    assert (got.status, got.code) == (502, "provider_error")
    assert got.headers["x-svc-attempts"] == "1", "a timeout is not retried at the same target"
    assert least <= took < most


def test_timeout_connect_returns_502(start_gateway: StartGateway) -> None:
    with silent_port() as port:
        gateway = start_gateway(
            config="[gateway]\nconnect_timeout = 0.4\n",
            env={"PROVIDER_A_BASE_URL": f"http://127.0.0.1:{port}/v1"},
        )
        expect_502(gateway, GPT, least=0.35, most=2)


@pytest.mark.parametrize(("letter", "model"), A_AND_B)
def test_timeout_first_byte_returns_502(
    start_gateway: StartGateway, fakes: dict[str, FakeProvider], letter: str, model: str
) -> None:
    gateway = start_gateway(config="[gateway]\nfirst_byte_timeout = 0.4\n")
    for stream, script in [(False, stall()), (True, stall()), (True, head(content_type="text/event-stream") + stall())]:
        fakes[letter].plays(script)
        expect_502(gateway, model, least=0.3, most=2, stream=stream)
        fakes[letter].requests[-1].wait_left(1)
    fakes[letter].plays(pause(0.2) + fakes[letter].wire.usual(fakes[letter].requests[0]))
    assert gateway.chat(model).status == 200


@pytest.mark.parametrize(("letter", "model"), A_AND_B)
def test_timeout_idle_in_stream_ends_with_error(
    start_gateway: StartGateway, fakes: dict[str, FakeProvider], letter: str, model: str
) -> None:
    gateway = start_gateway(config="[gateway]\nidle_timeout = 0.4\n")
    fakes[letter].plays(sse(first_events(letter), end=stall()))
    began = time.monotonic()
    got = gateway.chat(model, stream=True)
    assert 0.3 <= time.monotonic() - began < 2
    chunks, error = broken_stream(got.body)
    assert text_of(chunks).startswith("eins")
    assert error["code"] == "provider_error"
    fakes[letter].requests[-1].wait_left(1)


def test_timeout_idle_in_json_response_returns_502(start_gateway: StartGateway, provider_a: FakeProvider) -> None:
    gateway = start_gateway(config="[gateway]\nidle_timeout = 0.4\n")
    provider_a.plays(head() + body(b'{"id"') + stall())
    expect_502(gateway, GPT, least=0.3, most=2)


def test_timeout_idle_is_reset_by_each_chunk(start_gateway: StartGateway, provider_a: FakeProvider) -> None:
    gateway = start_gateway(config="[gateway]\nidle_timeout = 0.4\n")
    provider_a.plays(sse(openai_wire.stream("a b c"), every=0.15))
    assert text_of(complete_chunks(gateway.chat(stream=True).body)) == "a b c"


def test_timeout_total_ends_stream_and_json_response(start_gateway: StartGateway, provider_a: FakeProvider) -> None:
    gateway = start_gateway(config="[gateway]\ntotal_timeout = 0.6\n[routing]\nretries = 0\n")
    words = [openai_wire.role(), *[openai_wire.chunk({"content": "x"})] * 100]
    provider_a.plays(sse(words, every=0.05), stall(), pause(0.1) + answer(500, b""))
    began = time.monotonic()
    chunks, error = broken_stream(gateway.chat(stream=True).body)
    assert 0.4 <= time.monotonic() - began < 2
    assert error["code"] == "provider_error"
    assert len(chunks) < 60
    expect_502(gateway, GPT, least=0.4, most=2)


def test_timeout_total_includes_retries(start_gateway: StartGateway, provider_a: FakeProvider) -> None:
    gateway = start_gateway(config="[gateway]\ntotal_timeout = 0.7\n[routing]\nretries = 10\n")
    provider_a.always_plays(pause(0.2) + answer(500, b""))
    began = time.monotonic()
    assert gateway.chat().status == 502
    assert time.monotonic() - began < 2
