"""The upstream's view of a client that disconnects or does not read."""

from __future__ import annotations

import contextlib
import json
import socket
import time

import openai
import pytest

from tests.e2e.conftest import StartGateway
from tests.e2e.harness import CLAUDE, GPT, HI, Gateway
from tests.e2e.reading import complete_chunks, text_of
from tests.e2e.test_streams import first_events
from tests.fakes import openai_wire
from tests.fakes.http_client import RawClient, request_bytes
from tests.fakes.provider import FakeProvider
from tests.fakes.script import Script, answer, body, head, sse, stall

A_AND_B = [("A", GPT), ("B", CLAUDE)]
MAX_CLOSE_DELAY_SECONDS = 0.1


def ask(client: RawClient, gateway: Gateway, model: str, *, stream: bool) -> None:
    chat_request = {"model": model, "messages": HI, "stream": stream}
    client.send(request_bytes("POST", "/v1/chat/completions", json.dumps(chat_request).encode(), key=gateway.key))


def disconnect(client: RawClient, how: str) -> None:
    if how == "reset":
        client.reset()
    elif how == "half-close":  # the client could still read
        client.socket.shutdown(socket.SHUT_WR)
    else:
        client.socket.close()


SCRIPTS_BEFORE_FIRST_BYTE: dict[str, Script] = {
    "silent": stall(),
    "head only": head(content_type="text/event-stream") + stall(),
    "half a body": head() + body(b'{"id"') + stall(),
}


@pytest.mark.parametrize("where", SCRIPTS_BEFORE_FIRST_BYTE)
@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("how", ["close", "reset", "half-close"])
@pytest.mark.parametrize(("letter", "model"), A_AND_B)
def test_client_disconnect_before_first_byte_closes_upstream(
    gateway: Gateway, fakes: dict[str, FakeProvider], letter: str, model: str, how: str, stream: bool, where: str
) -> None:
    fakes[letter].plays(SCRIPTS_BEFORE_FIRST_BYTE[where])
    with gateway.raw() as client:
        ask(client, gateway, model, stream=stream)
        seen = fakes[letter].wait()
        time.sleep(0.02)  # lets the gateway receive the response head, if there is one
        left = time.monotonic()
        disconnect(client, how)
        assert seen.wait_left() - left < MAX_CLOSE_DELAY_SECONDS
    assert len(fakes[letter].requests) == 1, "a disconnected client causes no retry"


@pytest.mark.parametrize("how", ["close", "reset", "half-close"])
@pytest.mark.parametrize(("letter", "model"), A_AND_B)
def test_client_disconnect_in_mid_stream_closes_upstream(
    gateway: Gateway, fakes: dict[str, FakeProvider], letter: str, model: str, how: str
) -> None:

    fakes[letter].plays(sse(first_events(letter), end=stall()))
    with gateway.raw() as client:
        ask(client, gateway, model, stream=True)
        client.read_until(b"eins")
        left = time.monotonic()
        disconnect(client, how)
        assert fakes[letter].wait().wait_left() - left < MAX_CLOSE_DELAY_SECONDS


def test_client_sdk_closing_stream_closes_upstream(openai_client: openai.OpenAI, provider_a: FakeProvider) -> None:
    provider_a.plays(sse(openai_wire.stream()[:3], end=stall()))
    with openai_client.chat.completions.create(model=GPT, messages=HI, stream=True) as stream:
        next(iter(stream))
        left = time.monotonic()
    assert provider_a.wait().wait_left() - left < MAX_CLOSE_DELAY_SECONDS


def test_client_disconnect_during_backoff_sends_no_retry(start_gateway: StartGateway, provider_a: FakeProvider) -> None:
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


def test_client_not_reading_pauses_upstream_and_loses_nothing(gateway: Gateway, provider_a: FakeProvider) -> None:
    chunk = openai_wire.chunk({"content": "x" * 16_000})
    provider_a.plays(sse([openai_wire.role(), *[chunk] * 2000, *openai_wire.stream("")[2:]]))
    with gateway.raw() as client:
        ask(client, gateway, GPT, stream=True)
        seen = provider_a.wait()
        before = -1
        while seen.sent != before:
            before = seen.sent
            time.sleep(0.2)
        assert seen.sent < 20_000_000, "socket buffers and at most 256 KiB of the gateway's"
        assert not seen.played
        got = client.read()
    assert got.whole
    assert len(text_of(complete_chunks(got.body))) == 16_000 * 2000


def test_client_never_reading_is_closed_after_write_timeout(
    start_gateway: StartGateway, provider_a: FakeProvider
) -> None:
    started = start_gateway(config="[gateway]\nwrite_timeout = 0.5\nidle_timeout = 0.2\n")
    chunk = openai_wire.chunk({"content": "x" * 16_000})
    provider_a.plays(sse([openai_wire.role(), *[chunk] * 2000]))
    with started.raw() as client:
        ask(client, started, GPT, stream=True)
        seen = provider_a.wait()
        began = time.monotonic()
        assert 0.3 < seen.wait_left(10) - began < 5


def test_client_half_close_without_reading_closes_upstream(
    start_gateway: StartGateway, provider_a: FakeProvider
) -> None:
    """Unsent data is kept for `write_timeout`, even if the client reads a part of it."""
    started = start_gateway(config="[gateway]\nwrite_timeout = 1\n")
    chunk = openai_wire.chunk({"content": "x" * 16_000})
    provider_a.always_plays(sse([openai_wire.role(), *[chunk] * 2000]))
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
            assert seen.wait_left() - left < MAX_CLOSE_DELAY_SECONDS
            client.socket.recv(count * 16_384 + 1, socket.MSG_WAITALL)
        deadline = time.monotonic() + 10
        while open_connections(started) > 1:
            assert time.monotonic() < deadline
            time.sleep(0.2)


def open_connections(gateway: Gateway) -> int:
    page = gateway.request("GET", "/metrics").body.decode()
    return int(page.partition("\nsvc_open_connections ")[2].partition("\n")[0])


def test_client_pause_is_not_upstream_idle_timeout(start_gateway: StartGateway, provider_a: FakeProvider) -> None:
    started = start_gateway(config="[gateway]\nidle_timeout = 0.3\n")
    chunk = openai_wire.chunk({"content": "x" * 16_000})
    provider_a.plays(sse([openai_wire.role(), *[chunk] * 1500, *openai_wire.stream("")[2:]]))
    with started.raw() as client:
        ask(client, started, GPT, stream=True)
        provider_a.wait()
        time.sleep(1.2)
        assert client.read().body.endswith(b"data: [DONE]\n\n")


def test_client_disconnects_leave_no_upstream_connection_open(gateway: Gateway, provider_a: FakeProvider) -> None:
    for count in range(20):
        provider_a.plays(stall())
        with gateway.raw() as client:
            ask(client, gateway, GPT, stream=True)
            provider_a.wait(count + 1)
    provider_a.until(lambda: not any(one.busy for one in provider_a.connections))
    assert gateway.chat().status == 200
