"""A connection after several small requests: the same limits apply as on a new connection."""

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
def short_timeout_gateway(
    all_fakes: Mapping[str, FakeProvider], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Gateway]:
    yield from serve(all_fakes, tmp_path_factory.mktemp("gateway"), SETTINGS)


def reused_connection(gateway: Gateway) -> RawClient:
    raw = gateway.raw()
    for _ in range(3):
        raw.send(USUAL)
        assert raw.read().status == 200
    return raw


INCOMPLETE_REQUESTS = {
    "head": USUAL[:30],
    "small body": USUAL[:-5],
    "medium body": LONG[:9000],
    "long body": LONG[:200_000],
    "long body without last byte": LONG[:-1],
    "chunks": HEAD + b"transfer-encoding: chunked\r\n\r\n5\r\n{    \r\n",
    "body after 100-continue": HEAD + b"expect: 100-continue\r\ncontent-length: 300000\r\n\r\n",
}


@pytest.mark.parametrize("name", INCOMPLETE_REQUESTS)
def test_reused_connection_incomplete_request_returns_408(short_timeout_gateway: Gateway, name: str) -> None:
    with reused_connection(short_timeout_gateway) as raw:
        raw.send(INCOMPLETE_REQUESTS[name])
        got = raw.read()
        assert (got.status, got.whole) == (408, True)


TOO_LARGE = {
    "long header": (b"x: " + b"y" * 66_000, 431),
    "many headers": (b"\r\n".join(b"x%d: y" % number for number in range(101)), 431),
}


@pytest.mark.parametrize("name", TOO_LARGE)
def test_reused_connection_head_too_large_returns_431(short_timeout_gateway: Gateway, name: str) -> None:
    headers, status = TOO_LARGE[name]
    for cut in (len(HEAD) + len(headers) + 4, 9_000, 40_000):
        with reused_connection(short_timeout_gateway) as raw:
            data = HEAD + headers + b"\r\n\r\n"
            raw.send(data[:cut])
            time.sleep(0.01)
            raw.send(data[cut:])
            assert raw.read().status == status


def test_reused_connection_idle_is_closed_after_keep_alive(short_timeout_gateway: Gateway) -> None:
    with reused_connection(short_timeout_gateway) as raw:
        began = time.monotonic()
        assert raw.closed()
        assert 1.2 < time.monotonic() - began < 4


def test_reused_connection_client_half_close_closes_upstream(
    short_timeout_gateway: Gateway, provider_a: FakeProvider
) -> None:
    gate = Gate()
    for script in (hold(gate) + answer(200, b"{}"), sse([openai_wire.role()], end=hold(gate))):
        with reused_connection(short_timeout_gateway) as raw:
            provider_a.requests.clear()
            provider_a.plays(script)
            raw.send(USUAL)
            provider_a.wait()
            raw.socket.shutdown(socket.SHUT_WR)
            provider_a.wait().wait_left()


@pytest.mark.parametrize("running", [False, True])
def test_reused_connection_sigterm_completes_request_and_closes(
    start_gateway: StartGateway, provider_a: FakeProvider, running: bool
) -> None:
    gateway, gate = start_gateway(), Gate()
    with reused_connection(gateway) as raw:
        if running:
            provider_a.requests.clear()
            provider_a.plays(hold(gate) + answer(200, openai_wire.chat("last")))
            raw.send(USUAL)
            provider_a.wait()
        gateway.send_sigterm()
        time.sleep(0.3)
        gate.opened.set()
        if not running:  # the request may be in flight when the server stops
            raw.send(USUAL)
        got = raw.read()
        assert (got.status, got.headers["connection"]) == (200, "close")
        assert raw.closed()
    assert gateway.process.wait(10) == 0
