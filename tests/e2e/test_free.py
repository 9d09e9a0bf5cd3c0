"""A connection that reads freely, since its requests were small and known: every limit holds as on one that is new."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator, Mapping

import pytest

from tests.e2e.conftest import StartGateway, serve
from tests.e2e.harness import GPT, HI, KEY, Gateway
from tests.fakes import openai_wire
from tests.fakes.http_client import RawClient, request_bytes
from tests.fakes.provider import FakeProvider
from tests.fakes.script import Gate, answer, hold, sse

CHAT = {"model": GPT, "messages": HI}
USUAL = request_bytes("POST", "/v1/chat/completions", CHAT, key=KEY)
LONG = request_bytes(
    "POST", "/v1/chat/completions", {"model": GPT, "messages": [{"role": "user", "content": "x" * 300_000}]}, key=KEY
)
HEAD = f"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {KEY}\r\n".encode()
SETTINGS = "[gateway]\nheader_timeout = 0.4\nbody_timeout = 0.4\nkeep_alive = 1.5\n"


@pytest.fixture(scope="module")
def hasty(all_fakes: Mapping[str, FakeProvider], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    yield from serve(all_fakes, tmp_path_factory.mktemp("gateway"), SETTINGS)


def free(gateway: Gateway) -> RawClient:
    raw = gateway.raw()
    for _ in range(3):
        raw.send(USUAL)
        assert raw.read().status == 200
    return raw


LATE = {
    "a head": USUAL[:30],
    "a small body": USUAL[:-5],
    "a middling body": LONG[:9000],
    "a long body": LONG[:200_000],
    "all of a long body but a byte": LONG[:-1],
    "chunks": HEAD + b"transfer-encoding: chunked\r\n\r\n5\r\n{    \r\n",
    "an expected body": HEAD + b"expect: 100-continue\r\ncontent-length: 300000\r\n\r\n",
}


@pytest.mark.parametrize("name", LATE)
def test_what_does_not_come_in_time(hasty: Gateway, name: str) -> None:
    with free(hasty) as raw:
        raw.send(LATE[name])
        got = raw.read()
        assert (got.status, got.whole) == (408, True)


TOO_LARGE = {
    "a header": (b"x: " + b"y" * 66_000, 431),
    "many headers": (b"\r\n".join(b"x%d: y" % number for number in range(101)), 431),
}


@pytest.mark.parametrize("name", TOO_LARGE)
def test_a_head_that_is_too_large(hasty: Gateway, name: str) -> None:
    headers, status = TOO_LARGE[name]
    for cut in (len(HEAD) + len(headers) + 4, 9_000, 40_000):
        with free(hasty) as raw:
            data = HEAD + headers + b"\r\n\r\n"
            raw.send(data[:cut])
            time.sleep(0.01)
            raw.send(data[cut:])
            assert raw.read().status == status


def test_an_unused_one_is_closed(hasty: Gateway) -> None:
    with free(hasty) as raw:
        began = time.monotonic()
        assert raw.closed()
        assert 1.2 < time.monotonic() - began < 4


def test_who_leaves_before_the_end_is_let_go(hasty: Gateway, provider_a: FakeProvider) -> None:
    gate = Gate()
    for script in (hold(gate) + answer(200, b"{}"), sse([openai_wire.role()]) + hold(gate)):
        with free(hasty) as raw:
            provider_a.requests.clear()
            provider_a.plays(script)
            raw.send(USUAL)
            provider_a.wait()
            raw.socket.shutdown(socket.SHUT_WR)
            provider_a.wait().wait_left()


@pytest.mark.parametrize("running", [False, True])
def test_the_server_stops(start_gateway: StartGateway, provider_a: FakeProvider, running: bool) -> None:
    gateway, gate = start_gateway(), Gate()
    with free(gateway) as raw:
        if running:
            provider_a.requests.clear()
            provider_a.plays(hold(gate) + answer(200, openai_wire.chat("last")))
            raw.send(USUAL)
            provider_a.wait()
        gateway.ask_to_stop()
        time.sleep(0.3)
        gate.opened.set()
        if not running:  # it may have been on its way
            raw.send(USUAL)
        got = raw.read()
        assert (got.status, got.headers["connection"]) == (200, "close")
        assert raw.closed()
    assert gateway.process.wait(10) == 0
