"""`traceparent` and `tracestate` reach the provider on every path (W3C Trace Context)."""

from __future__ import annotations

from typing import Any

import pytest

from tests.e2e.conftest import StartGateway
from tests.e2e.harness import CLAUDE, GPT, HI, KEY, Gateway
from tests.fakes import anthropic_wire, openai_wire
from tests.fakes.http_client import request_bytes
from tests.fakes.provider import FakeProvider
from tests.fakes.script import answer, pause, reset, sse, stall

PARENT = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
OTHER_PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-00"
STATE = "rojo=00f067aa0ba902b7,congo=t61rcWkgMzE"
TRACE = {"traceparent": PARENT, "tracestate": STATE}
CHAT = {"messages": HI}
RESPONSE = {"input": "Hi"}
MESSAGE = {"messages": HI, "max_tokens": 20}


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("path", "body"), [("/v1/chat/completions", CHAT), ("/v1/responses", RESPONSE), ("/v1/messages", MESSAGE)]
)
@pytest.mark.parametrize(("model", "letter"), [(GPT, "A"), (CLAUDE, "B")])
def test_trace_context_any_dialect_is_forwarded_unchanged(
    gateway: Gateway,
    fakes: dict[str, FakeProvider],
    path: str,
    body: dict[str, Any],
    model: str,
    letter: str,
    stream: bool,
) -> None:
    got = gateway.request("POST", path, {"model": model, "stream": stream, **body}, headers=TRACE)
    assert got.status == 200
    headers = fakes[letter].wait().headers
    assert (headers["traceparent"], headers["tracestate"]) == (PARENT, STATE)


def test_trace_context_embeddings_is_forwarded(gateway: Gateway, provider_a: FakeProvider) -> None:
    body = {"model": "text-embedding-3-small", "input": "Hi"}
    assert gateway.request("POST", "/v1/embeddings", body, headers=TRACE).status == 200
    assert provider_a.wait().headers["traceparent"] == PARENT


def test_trace_context_count_tokens_is_forwarded_beside_other_headers(
    gateway: Gateway, provider_b: FakeProvider
) -> None:
    headers = {**TRACE, "anthropic-beta": "context-1m"}
    body = {"model": CLAUDE, "messages": HI}
    assert gateway.request("POST", "/v1/messages/count_tokens?beta=true", body, headers=headers).status == 200
    seen = provider_b.wait().headers
    assert (seen["traceparent"], seen["tracestate"], seen["anthropic-beta"]) == (PARENT, STATE, "context-1m")


def test_trace_context_each_request_of_a_connection_has_its_own(gateway: Gateway, provider_a: FakeProvider) -> None:
    body = {"model": GPT, **CHAT}
    traces = [TRACE, TRACE, {**TRACE, "traceparent": OTHER_PARENT}, {**TRACE, "tracestate": "a=1"}, {}, TRACE]
    with gateway.raw() as raw:
        for headers in traces:
            assert raw.request("POST", "/v1/chat/completions", body, key=KEY, headers=headers).status == 200
    seen = [provider_a.wait(number).headers for number in range(1, len(traces) + 1)]
    assert [
        {name: value for name, value in headers.items() if name in ("traceparent", "tracestate")} for headers in seen
    ] == traces


def test_trace_context_several_states_are_all_forwarded(gateway: Gateway, provider_a: FakeProvider) -> None:
    data = request_bytes("POST", "/v1/chat/completions", {"model": GPT, **CHAT}, key=KEY, headers=TRACE)
    data = data.replace(b"\r\n\r\n", b"\r\ntracestate: vendor=2\r\n\r\n", 1)
    with gateway.raw() as raw:
        for _ in range(2):
            raw.send(data)
            assert raw.read().status == 200
    for number in (1, 2):
        states = [value for name, value in provider_a.wait(number).header_list if name == "tracestate"]
        assert states == [STATE, "vendor=2"]


@pytest.mark.parametrize("value", ["00-\u00e9", "x" * 1025])
def test_trace_context_unsafe_value_is_dropped(gateway: Gateway, provider_a: FakeProvider, value: str) -> None:
    headers = {"traceparent": value, "tracestate": STATE}
    assert gateway.chat(headers=headers).status == 200
    seen = provider_a.wait().headers
    assert "traceparent" not in seen
    assert seen["tracestate"] == STATE


def test_trace_context_is_forwarded_to_retries_and_fallbacks(
    start_gateway: StartGateway, provider_a: FakeProvider, provider_b: FakeProvider
) -> None:
    gateway = start_gateway(config=f'[routing]\nretries = 1\n[routing.fallbacks]\n"{GPT}" = ["{CLAUDE}"]\n')
    provider_a.plays(answer(500, openai_wire.error("down")))
    provider_a.plays(answer(500, openai_wire.error("down")))
    assert gateway.chat(headers=TRACE).headers["x-svc-attempts"] == "3"
    seen = [provider_a.wait(1), provider_a.wait(2), provider_b.wait()]
    assert [each.headers["traceparent"] for each in seen] == [PARENT] * 3


def test_trace_context_is_forwarded_to_hedged_and_resumed_attempts(
    start_gateway: StartGateway, provider_a: FakeProvider, provider_b: FakeProvider
) -> None:
    fallbacks = f'[routing.fallbacks]\n"{GPT}" = ["{CLAUDE}"]\n'
    hedging = start_gateway(config=f"[routing]\nhedge_after = 0.1\n{fallbacks}")
    provider_a.plays(stall())
    assert hedging.chat(headers=TRACE).status == 200
    assert provider_b.wait().headers["traceparent"] == PARENT
    provider_b.forget()
    resuming = start_gateway(config=f"[routing]\nresume = true\nretries = 0\n{fallbacks}")
    provider_a.plays(sse(openai_wire.stream("one two")[:2], end=pause(0.02) + reset()))
    provider_b.plays(sse(anthropic_wire.stream(" three")))
    assert resuming.chat(stream=True, headers=TRACE).status == 200
    assert provider_b.wait().headers["traceparent"] == PARENT
