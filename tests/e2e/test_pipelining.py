"""Many requests pipelined behind a response in progress use bounded memory."""

from __future__ import annotations

import contextlib
import signal

from svc.gateway.server.request import MAX_PIPELINED_REQUESTS_PER_READ
from tests.e2e.conftest import StartGateway
from tests.e2e.harness import GPT, HI, KEY, Gateway
from tests.e2e.test_memory import resident
from tests.fakes import openai_wire
from tests.fakes.http_client import RawClient, request_bytes
from tests.fakes.provider import FakeProvider
from tests.fakes.script import Gate, answer, hold

CHAT = request_bytes("POST", "/v1/chat/completions", {"model": GPT, "messages": HI}, key=KEY)
REJECTED = b"POST /v1/messages HTTP/1.1\r\nhost:\r\n\r\n"
"""A minimal request, which the connection handler itself answers with 401."""
CLIENTS = 8
KIB = 1024


def send_at_once(gateway: Gateway, clients: list[RawClient], data: bytes) -> None:
    """Stop the gateway while sending, so that it then reads everything that fits into the socket buffers."""
    gateway.process.send_signal(signal.SIGSTOP)
    for raw in clients:
        raw.socket.setblocking(False)
        with contextlib.suppress(BlockingIOError):
            raw.socket.send(data)
        raw.socket.settimeout(10)
    gateway.process.send_signal(signal.SIGCONT)


def test_pipelining_many_requests_in_one_read_use_bounded_memory(
    start_gateway: StartGateway, provider_a: FakeProvider
) -> None:
    gateway, gate = start_gateway(env={"SVC_FASTPATH": "1"}), Gate()
    with contextlib.ExitStack() as stack:
        clients = [stack.enter_context(gateway.raw()) for _ in range(CLIENTS)]
        for raw in clients * 3:  # a cached head lets the gateway read all requests together
            raw.send(CHAT)
            assert raw.read().status == 200
        sent_before = len(provider_a.requests)
        provider_a.always_plays(hold(gate) + answer(200, openai_wire.chat("one")))
        for raw in clients:
            raw.send(CHAT)
        provider_a.wait(sent_before + CLIENTS)
        before = resident(gateway)
        send_at_once(gateway, clients, REJECTED * 6000)
        assert gateway.request("GET", "/health").status == 200  # the pipelined requests have been read by now
        assert (resident(gateway) - before) / CLIENTS < 2700 * KIB
        gate.opened.set()
        for raw in clients:
            assert raw.read().json["choices"][0]["message"]["content"] == "one"
            assert [raw.read().status for _ in range(MAX_PIPELINED_REQUESTS_PER_READ)] == [
                401
            ] * MAX_PIPELINED_REQUESTS_PER_READ
            assert (last := raw.read()).status == 400
            assert "pipelined" in last.json["error"]["message"]
