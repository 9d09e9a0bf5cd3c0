"""Backpressure: memory use for clients that do not read, and the effect on the upstream."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Iterator, Mapping

import pytest

from tests.e2e.conftest import StartGateway
from tests.e2e.harness import CLAUDE, GPT, HI, Gateway
from tests.e2e.test_memory import resident
from tests.fakes import anthropic_wire, openai_wire
from tests.fakes.http_client import RawClient, request_bytes
from tests.fakes.provider import FakeProvider, Recorded
from tests.fakes.script import Gate, Script, answer, body, end, head, hold, pause, raw, sse

STREAM_COUNT = 16
KIB = 1024
STREAMS_BY_KIND = {
    "long chunks": [openai_wire.role(), *[openai_wire.chunk({"content": "x" * 16_000})] * 2000],
    "words": [openai_wire.role(), *[openai_wire.chunk({"content": " word"}) * 80] * 2000],
    "translated": [
        *anthropic_wire.stream("")[:3],
        *[anthropic_wire.event("content_block_delta", index=0, delta={"type": "text_delta", "text": "x"}) * 150] * 2000,
    ],
}
"""Streams without pauses that are larger than all socket buffers."""
RESUMABLE = f"""
[routing]
resume = true
[routing.fallbacks]
"{GPT}" = ["{CLAUDE}"]
"""


def wait_until_still(streams: list[Recorded], seconds: float = 20) -> None:
    """Wait until no stream is read any further."""
    before: list[int] = []
    deadline = time.monotonic() + seconds
    while before != (now := [one.sent for one in streams]):
        assert time.monotonic() < deadline, "the upstreams are still being read"
        before = now
        time.sleep(0.5)


@pytest.mark.slow
@pytest.mark.parametrize("kind", [*STREAMS_BY_KIND, "resumable"])
def test_backpressure_unread_stream_uses_bounded_memory_and_pauses_upstream(
    start_gateway: StartGateway, fakes: Mapping[str, FakeProvider], kind: str
) -> None:
    gateway = start_gateway(config=RESUMABLE if kind == "resumable" else None)
    letter, model = ("B", CLAUDE) if kind == "translated" else ("A", GPT)
    fake = fakes[letter]
    gateway.chat(model, stream=True)  # the first stream loads code, which must not count
    fake.forget()
    fake.always_plays(sse(STREAMS_BY_KIND.get(kind, STREAMS_BY_KIND["words"])))
    request = request_bytes(
        "POST", "/v1/chat/completions", {"model": model, "messages": HI, "stream": True}, key=gateway.key
    )
    before = resident(gateway)
    with contextlib.ExitStack() as stack:
        for _ in range(STREAM_COUNT):
            stack.enter_context(gateway.raw()).send(request)
        fake.wait(STREAM_COUNT, 20)
        wait_until_still(fake.requests)
        grown = (resident(gateway) - before) / STREAM_COUNT
        assert grown < 256 * KIB
        assert not any(one.played for one in fake.requests)


def test_backpressure_unread_stream_on_reused_connection_uses_bounded_memory(
    start_gateway: StartGateway, provider_a: FakeProvider
) -> None:
    """A small response came first on each connection."""
    gateway, gate = start_gateway(), Gate()
    request = {"model": GPT, "messages": HI}
    provider_a.always_plays(hold(gate) + answer(200, openai_wire.chat()))
    with contextlib.ExitStack() as stack:
        clients = [stack.enter_context(gateway.raw()) for _ in range(STREAM_COUNT)]
        for client in clients:
            client.send(request_bytes("POST", "/v1/chat/completions", request, key=gateway.key))
        provider_a.wait(STREAM_COUNT, 20)
        gate.opened.set()
        assert [client.read().status for client in clients] == [200] * STREAM_COUNT
        provider_a.forget()
        provider_a.always_plays(sse(STREAMS_BY_KIND["long chunks"]))
        before = resident(gateway)
        for client in clients:
            client.send(request_bytes("POST", "/v1/chat/completions", {**request, "stream": True}, key=gateway.key))
        provider_a.wait(STREAM_COUNT, 20)
        wait_until_still(provider_a.requests)
        assert (resident(gateway) - before) / STREAM_COUNT < 256 * KIB


CACHING = "[cache]\nenabled = true\n[gateway]\nwrite_timeout = 0.5\n"
CACHED = {"model": GPT, "messages": HI}


def cache_long_response(gateway: Gateway, provider: FakeProvider, client: RawClient) -> bytes:
    """Let the gateway cache a response of 1 MB and the head of the request, which it returns."""
    provider.always_plays(answer(200, openai_wire.chat("x" * 1_000_000)))
    request = request_bytes("POST", "/v1/chat/completions", CACHED, key=gateway.key)
    for _ in range(3):
        client.send(request)
        assert client.read().status == 200
    return request


def test_backpressure_client_that_reads_no_cached_response_is_closed(
    start_gateway: StartGateway, provider_a: FakeProvider
) -> None:
    """The responses are sent at the end of a batch of reads, after the connection has become idle."""
    gateway = start_gateway(config=CACHING)
    with gateway.raw() as client:
        request = cache_long_response(gateway, provider_a, client)
        for _ in range(20):  # more than the buffers of the sockets hold
            client.send(request)
            time.sleep(0.02)
        time.sleep(2)
        received = 0
        with contextlib.suppress(ConnectionResetError):
            while data := client.socket.recv(1 << 20):  # raises TimeoutError while the connection is open
                received += len(data)
        assert received < 20_000_000


def test_backpressure_pipelined_cached_responses_use_bounded_memory(
    start_gateway: StartGateway, provider_a: FakeProvider
) -> None:
    gateway = start_gateway(config=CACHING)
    with gateway.raw() as client:
        request = cache_long_response(gateway, provider_a, client)
        before = resident(gateway)
        client.send(request * 100)  # the gateway reads these requests together
        assert gateway.request("GET", "/health").status == 200
        time.sleep(0.2)
        assert resident(gateway) - before < 16 * KIB * KIB


STREAM = {"model": GPT, "messages": HI, "stream": True}
WORD = openai_wire.chunk({"content": " word"})


@pytest.mark.slow
def test_backpressure_slowly_read_stream_of_small_chunks_uses_bounded_memory(
    start_gateway: StartGateway, provider_a: FakeProvider
) -> None:
    """When the client continues, the socket buffers hold many small chunks that can be read at once."""
    gateway = start_gateway()
    gateway.chat(stream=True)
    provider_a.forget()
    small = body(WORD * 30) + pause(0.01)  # each chunk is read separately
    flood = raw((b"%x\r\n%b\r\n" % (len(WORD), WORD)) * 300)
    stream_start = head(content_type="text/event-stream") + body(openai_wire.role())
    provider_a.always_plays(Script((*stream_start.steps, *small.steps * 1000, *flood.steps * 400)))
    before, count = resident(gateway), 4
    with contextlib.ExitStack() as stack:
        clients = [stack.enter_context(socket.socket()) for _ in range(count)]
        for client in clients:
            client.settimeout(10)
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            client.connect(("127.0.0.1", gateway.port))
            client.sendall(request_bytes("POST", "/v1/chat/completions", STREAM, key=gateway.key))
        provider_a.wait(count, 20)
        wait_until_still(provider_a.requests, 60)
        for client in clients:  # read until the gateway continues to read
            taken = sum(one.sent for one in provider_a.requests)
            while sum(one.sent for one in provider_a.requests) == taken:
                assert client.recv(8192)
                time.sleep(0.001)
            wait_until_still(provider_a.requests)
        assert (resident(gateway) - before) / count < 256 * KIB


RESUME = f'[routing]\nresume = true\nretries = 0\n[routing.fallbacks]\n"{GPT}" = ["{CLAUDE}"]\n'
LARGE = "\x01" * 1_040_000
"""In JSON, six times this size: more than the socket buffers hold."""


def test_backpressure_upstream_connection_paused_at_end_is_not_reused(
    start_gateway: StartGateway, provider_a: FakeProvider
) -> None:
    """The last read pauses the connection and ends the response, which has no `[DONE]`."""
    gateway = start_gateway(config="[gateway]\nfirst_byte_timeout = 2\n")
    large = openai_wire.chunk({"content": LARGE})
    rest = large[-2:] + openai_wire.chunk({}, "stop")
    provider_a.plays(
        head(content_type="text/event-stream")
        + body(openai_wire.role())
        + body(large[:-2])
        + pause(0.5)
        + raw(b"%x\r\n%b\r\n0\r\n\r\n" % (len(rest), rest))
    )
    with gateway.raw() as client:
        client.send(request_bytes("POST", "/v1/chat/completions", STREAM, key=gateway.key))
        provider_a.wait()
        time.sleep(1)
        assert client.read().body.endswith(b"data: [DONE]\n\n")
    assert gateway.chat().status == 200


def test_backpressure_unread_resumed_stream_pauses_new_upstream(
    start_gateway: StartGateway, provider_a: FakeProvider, provider_b: FakeProvider
) -> None:
    """Little text in chunks that each repeat a long model name."""
    gateway = start_gateway(config=RESUME)
    failure = openai_wire.event(openai_wire.error("down", "server_error"))
    provider_a.plays(
        head(content_type="text/event-stream")
        + body(openai_wire.chunk({"role": "assistant", "content": ""}, model="m" * 300_000))
        + pause(0.3)
        + body(openai_wire.chunk({"content": "x"}) * 60 + failure)
        + end()
    )
    provider_b.plays(sse(STREAMS_BY_KIND["translated"]))
    with gateway.raw() as client:
        client.send(request_bytes("POST", "/v1/chat/completions", STREAM, key=gateway.key))
        provider_b.wait()
        wait_until_still(provider_b.requests)
        assert not provider_b.requests[0].played
        assert provider_b.requests[0].sent < 20_000_000


@contextlib.contextmanager
def peak(gateway: Gateway) -> Iterator[list[int]]:
    """Measure the peak memory growth in bytes during the block."""
    stopped, before, most = threading.Event(), resident(gateway), [0]

    def watch() -> None:
        while not stopped.wait(0.02):
            most[0] = max(most[0], resident(gateway) - before)

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield most
    finally:
        stopped.set()
        thread.join()


@pytest.mark.slow
def test_resume_text_of_small_chunks_uses_bounded_memory(start_gateway: StartGateway, provider_a: FakeProvider) -> None:
    """1.6 MB in chunks of four characters. The gateway keeps up to 1 MiB for a resume."""
    gateway = start_gateway(config=RESUME)
    gateway.chat(stream=True)
    words = b"".join([openai_wire.chunk({"content": " wor"})] * 1000)
    provider_a.plays(sse([openai_wire.role(), *[words] * 400, openai_wire.chunk({}, "stop"), openai_wire.DONE]))
    with peak(gateway) as most, gateway.raw(timeout=30) as client:
        client.send(request_bytes("POST", "/v1/chat/completions", STREAM, key=gateway.key))
        assert client.read().whole
    assert most[0] < 14 * KIB * KIB
