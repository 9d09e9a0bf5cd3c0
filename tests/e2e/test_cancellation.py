"""The client goes away, or does not read: what the upstream notices."""

from __future__ import annotations

import contextlib
import json
import socket
import time

import openai
import pytest

from tests.e2e.conftest import StartGateway
from tests.e2e.harness import CLAUDE, GPT, HI, Gateway
from tests.e2e.reading import text_of, whole_chunks
from tests.e2e.test_streams import started
from tests.fakes import openai_wire
from tests.fakes.http_client import RawClient, request_bytes
from tests.fakes.provider import FakeProvider
from tests.fakes.script import Script, answer, body, head, sse, stall

A_AND_B = [("A", GPT), ("B", CLAUDE)]
AT_MOST = 0.1


def ask(client: RawClient, gateway: Gateway, model: str, *, stream: bool) -> None:
    asked = {"model": model, "messages": HI, "stream": stream}
    client.send(request_bytes("POST", "/v1/chat/completions", json.dumps(asked).encode(), key=gateway.key))


def leave(client: RawClient, how: str) -> None:
    if how == "reset":
        client.reset()
    elif how == "half-close":  # it would still read
        client.socket.shutdown(socket.SHUT_WR)
    else:
        client.socket.close()


BEFORE: dict[str, Script] = {
    "silent": stall(),
    "head only": head(content_type="text/event-stream") + stall(),
    "half a body": head() + body(b'{"id"') + stall(),
}


@pytest.mark.parametrize("where", BEFORE)
@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("how", ["close", "reset", "half-close"])
@pytest.mark.parametrize(("letter", "model"), A_AND_B)
def test_leaving_before_the_first_byte(
    gateway: Gateway, fakes: dict[str, FakeProvider], letter: str, model: str, how: str, stream: bool, where: str
) -> None:
    fakes[letter].plays(BEFORE[where])
    with gateway.raw() as client:
        ask(client, gateway, model, stream=stream)
        seen = fakes[letter].wait()
        time.sleep(0.02)  # so that the head of the answer has come to the gateway, where there is one
        left = time.monotonic()
        leave(client, how)
        assert seen.wait_left() - left < AT_MOST
    assert len(fakes[letter].requests) == 1, "a client that left is no failure to try again"


@pytest.mark.parametrize("how", ["close", "reset", "half-close"])
@pytest.mark.parametrize(("letter", "model"), A_AND_B)
def test_leaving_in_mid_stream(
    gateway: Gateway, fakes: dict[str, FakeProvider], letter: str, model: str, how: str
) -> None:

    fakes[letter].plays(sse(started(letter), end=stall()))
    with gateway.raw() as client:
        ask(client, gateway, model, stream=True)
        client.read_until(b"eins")
        left = time.monotonic()
        leave(client, how)
        assert fakes[letter].wait().wait_left() - left < AT_MOST


def test_the_sdk_closes_its_stream(openai_client: openai.OpenAI, provider_a: FakeProvider) -> None:
    provider_a.plays(sse(openai_wire.stream()[:3], end=stall()))
    with openai_client.chat.completions.create(model=GPT, messages=HI, stream=True) as stream:
        next(iter(stream))
        left = time.monotonic()
    assert provider_a.wait().wait_left() - left < AT_MOST


def test_leaving_while_we_wait_for_another_try(start_gateway: StartGateway, provider_a: FakeProvider) -> None:
    gateway = start_gateway()
    provider_a.plays(answer(429, openai_wire.error(), headers={"retry-after": "1"}))
    with gateway.raw() as client:
        ask(client, gateway, GPT, stream=False)
        provider_a.wait()
        provider_a.until(lambda: provider_a.requests[0].played)
        time.sleep(0.05)
    time.sleep(1.3)
    assert len(provider_a.requests) == 1
    entry = json.loads(next(line for line in gateway.logged("client_closed").splitlines() if "client_closed" in line))
    assert (entry["attempts"], entry["prompt_tokens"], entry["cost_usd"]) == (1, None, None), "429 costs nothing"


def test_a_client_that_does_not_read_slows_the_upstream_down(gateway: Gateway, provider_a: FakeProvider) -> None:
    piece = openai_wire.chunk({"content": "x" * 16_000})
    provider_a.plays(sse([openai_wire.role(), *[piece] * 2000, *openai_wire.stream("")[2:]]))
    with gateway.raw() as client:
        ask(client, gateway, GPT, stream=True)
        seen = provider_a.wait()
        before = -1
        while seen.sent != before:
            before = seen.sent
            time.sleep(0.2)
        assert seen.sent < 20_000_000, "the buffers of the system and at most 256 KiB of ours"
        assert not seen.played
        got = client.read()
    assert got.whole
    assert len(text_of(whole_chunks(got.body))) == 16_000 * 2000


def test_a_client_that_never_reads_is_dropped(start_gateway: StartGateway, provider_a: FakeProvider) -> None:
    started = start_gateway(config="[gateway]\nwrite_timeout = 0.5\nidle_timeout = 0.2\n")
    piece = openai_wire.chunk({"content": "x" * 16_000})
    provider_a.plays(sse([openai_wire.role(), *[piece] * 2000]))
    with started.raw() as client:
        ask(client, started, GPT, stream=True)
        seen = provider_a.wait()
        began = time.monotonic()
        assert 0.3 < seen.wait_left(10) - began < 5


def test_who_says_that_it_sends_no_more_has_left_even_if_it_does_not_read(
    start_gateway: StartGateway, provider_a: FakeProvider
) -> None:
    """What waits for it is kept for `write_timeout`, also when it takes a part of it."""
    started = start_gateway(config="[gateway]\nwrite_timeout = 1\n")
    piece = openai_wire.chunk({"content": "x" * 16_000})
    provider_a.always_plays(sse([openai_wire.role(), *[piece] * 2000]))
    with contextlib.ExitStack() as stack:
        for count in range(10):
            client = stack.enter_context(started.raw())
            ask(client, started, GPT, stream=True)
            seen, before = provider_a.wait(count + 1), -1
            while seen.sent != before:
                before = seen.sent
                time.sleep(0.05)
            left = time.monotonic()
            client.socket.shutdown(socket.SHUT_WR)
            assert seen.wait_left() - left < AT_MOST
            client.socket.recv(count * 16_384 + 1, socket.MSG_WAITALL)
        deadline = time.monotonic() + 10
        while open_connections(started) > 1:
            assert time.monotonic() < deadline
            time.sleep(0.2)


def open_connections(gateway: Gateway) -> int:
    page = gateway.request("GET", "/metrics").body.decode()
    return int(page.partition("\nsvc_open_connections ")[2].partition("\n")[0])


def test_a_client_that_pauses_is_not_the_upstreams_idleness(
    start_gateway: StartGateway, provider_a: FakeProvider
) -> None:
    started = start_gateway(config="[gateway]\nidle_timeout = 0.3\n")
    piece = openai_wire.chunk({"content": "x" * 16_000})
    provider_a.plays(sse([openai_wire.role(), *[piece] * 1500, *openai_wire.stream("")[2:]]))
    with started.raw() as client:
        ask(client, started, GPT, stream=True)
        provider_a.wait()
        time.sleep(1.2)
        assert client.read().body.endswith(b"data: [DONE]\n\n")


def test_no_connection_is_left_behind(gateway: Gateway, provider_a: FakeProvider) -> None:
    for count in range(20):
        provider_a.plays(stall())
        with gateway.raw() as client:
            ask(client, gateway, GPT, stream=True)
            provider_a.wait(count + 1)
    provider_a.until(lambda: not any(one.busy for one in provider_a.connections))
    assert gateway.chat().status == 200
