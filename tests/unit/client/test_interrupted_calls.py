"""Both clients at the edges of a call: timeouts of the caller, failures in a stream, dropped streams, and forks."""

from __future__ import annotations

import asyncio
import gc
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.fakes import openai_wire
from tests.fakes.provider import FakeProvider
from tests.fakes.script import answer, body, end, head, pause, reset, sse, stall

import svc
from svc import errors
from svc.client.retry import SDK_BREAKER_FAILURE_THRESHOLD, SDK_BREAKER_OPEN_SECONDS, ClientCircuitBreaker
from svc.client.transport import ClientRequest

Call = Callable[..., Any]

UNKNOWN_MODEL = answer(404, {"error": {"message": "no", "type": "t", "code": "model_not_found", "param": "model"}})
ID_HEADERS = {"x-request-id": "req-7"}
FAILED_EVENT = openai_wire.event(
    {"error": {"message": "The provider failed: boom", "type": "api_error", "code": "provider_error"}}
)


def streamed_at_once(*events: bytes) -> Any:
    """Return the script of a stream whose events arrive together."""
    headers = {"content-type": "text/event-stream", **ID_HEADERS}
    return head(200, framing="close", headers=headers) + body(b"".join(events))


@pytest.mark.parametrize(("method", "stream"), [("chat", False), ("chat", True), ("responses", False)])
def test_call_timeout_includes_the_list_of_models(call: Call, server: FakeProvider, method: str, stream: bool) -> None:
    server.plays(UNKNOWN_MODEL, stall())
    start = time.monotonic()
    with pytest.raises(errors.GatewayFailed, match="timed out"):
        call(method, "Hi", stream=stream, timeout_s=0.4)
    assert time.monotonic() - start < 3
    assert [request.path for request in server.requests[1:]] == ["/v1/models"]


def test_client_breaker_ignores_timeouts_of_the_caller(server: FakeProvider) -> None:
    with svc.Client(gateway_url=f"{server.address}/v1", api_key="key-1", retries=0) as client:
        server.plays(*[stall()] * SDK_BREAKER_FAILURE_THRESHOLD)
        for _ in range(SDK_BREAKER_FAILURE_THRESHOLD):
            with pytest.raises(errors.GatewayFailed, match="timed out"):
                client.chat("Hi", timeout_s=0.05)
        assert client.chat("Hi").text == openai_wire.TEXT


def test_client_breaker_abandoned_probe_admits_the_next() -> None:
    now = [0.0]
    breaker = ClientCircuitBreaker(lambda: now[0])
    for _ in range(SDK_BREAKER_FAILURE_THRESHOLD):
        breaker.record_failure()
    now[0] = SDK_BREAKER_OPEN_SECONDS + 1
    breaker.raise_if_open()
    with pytest.raises(errors.GatewayFailed):
        breaker.raise_if_open()
    breaker.record_abandoned()
    breaker.raise_if_open()


def test_chat_stream_text_before_an_error_is_returned_first(server: FakeProvider) -> None:
    server.plays(streamed_at_once(*openai_wire.stream()[:3], FAILED_EVENT))
    with svc.Client(gateway_url=f"{server.address}/v1", api_key="key-1") as client:
        stream = client.chat("Hi", stream=True)
        chunks: list[str] = []
        with pytest.raises(errors.ProviderFailed) as caught:
            chunks.extend(chunk.text for chunk in stream)
    assert "".join(chunks) == stream.text != ""
    assert caught.value.message == "The provider failed: boom"
    assert caught.value.request_id == "req-7"


def test_chat_stream_tool_calls_are_empty_before_the_finish_reason(server: FakeProvider) -> None:
    tools = [("call_1", "look", '{"a": 1}')]
    server.plays(streamed_at_once(*openai_wire.tool_stream(tools)))
    with svc.Client(gateway_url=f"{server.address}/v1", api_key="key-1") as client:
        stream = client.chat("Hi", stream=True)
        seen = [(chunk.finish_reason, len(stream.tool_calls)) for chunk in stream]
    assert {count for reason, count in seen[: [reason for reason, _ in seen].index("tool_calls")]} == {0}
    assert len(stream.tool_calls) == 1


@pytest.mark.parametrize("rest", [pause(0.1) + reset(), stall()])
def test_chat_stream_that_is_complete_ends_however_the_connection_does(
    call: Call, server: FakeProvider, rest: Any
) -> None:
    server.plays(sse(openai_wire.stream(), end=rest))
    _, made = call("chat", "Hi", stream=True)
    assert made.text == openai_wire.TEXT


@pytest.mark.parametrize(
    "script", [answer(200, {"object": "other"}, headers=ID_HEADERS), answer(200, b"{", headers=ID_HEADERS)]
)
def test_chat_malformed_response_error_has_the_request_id(call: Call, server: FakeProvider, script: Any) -> None:
    server.plays(script)
    with pytest.raises(errors.GatewayFailed) as caught:
        call("chat", "Hi")
    assert caught.value.request_id == "req-7"


def test_post_that_a_server_may_have_executed_is_not_sent_again(server: FakeProvider) -> None:
    async def run() -> None:
        async with svc.AsyncClient(gateway_url=f"{server.address}/v1", api_key="key-1", retries=0) as client:
            await client.chat("Hi")
            server.plays(pause(0.5) + reset())
            with pytest.raises(errors.GatewayFailed, match="cannot be reached"):
                await client.chat("Hi")

    with svc.Client(gateway_url=f"{server.address}/v1", api_key="key-1", retries=0) as client:
        client.chat("Hi")
        server.plays(pause(0.5) + reset())
        with pytest.raises(errors.GatewayFailed, match="cannot be reached"):
            client.chat("Hi")
    asyncio.run(run())
    assert len(server.requests) == 4


def test_async_stream_dropped_unread_closes_its_connection(server: FakeProvider) -> None:
    server.plays(sse(openai_wire.stream()[:3], end=stall()))

    async def run() -> None:
        async with svc.AsyncClient(gateway_url=f"{server.address}/v1", api_key="key-1") as client:
            await client.chat("Hi", stream=True)
            gc.collect()
            await asyncio.to_thread(server.wait().wait_left, 5.0)

    asyncio.run(run())


def test_client_after_a_fork_opens_connections_of_its_own(server: FakeProvider) -> None:
    with svc.Client(gateway_url=f"{server.address}/v1", api_key="key-1") as client:
        client.chat("Hi")
        pid = os.fork()
        if pid == 0:
            try:
                os._exit(client.chat("Hi").text != openai_wire.TEXT)
            finally:
                os._exit(2)
        assert os.waitpid(pid, 0)[1] == 0
        client.chat("Hi")
    first, of_child, last = (request.connection for request in server.requests)
    assert first == last != of_child


def test_stream_that_a_fork_closes_goes_on(server: FakeProvider) -> None:
    events = openai_wire.stream()
    server.plays(sse(events[:3], end=pause(0.5) + body(b"".join(events[3:])) + end()))
    with svc.Client(gateway_url=f"{server.address}/v1", api_key="key-1") as client:
        stream = client.chat("Hi", stream=True)
        next(stream)
        pid = os.fork()
        if pid == 0:
            try:
                stream.close()
                os._exit(0)
            finally:
                os._exit(2)
        assert os.waitpid(pid, 0)[1] == 0
        list(stream)
    assert stream.text == openai_wire.TEXT


def test_stream_dropped_unread_closes_its_connection_before_its_timeout(server: FakeProvider) -> None:
    server.plays(sse(openai_wire.stream()[:3], end=stall()))
    with svc.Client(gateway_url=f"{server.address}/v1", api_key="key-1") as client:
        client.chat("Hi", stream=True, timeout_s=60)
        gc.collect()
        server.wait().wait_left(5.0)


def test_client_breaker_ignores_timeouts_while_an_error_is_read(server: FakeProvider) -> None:
    with svc.Client(gateway_url=f"{server.address}/v1", api_key="key-1", retries=0) as client:
        server.plays(*[head(500, length=100, framing="length") + stall()] * SDK_BREAKER_FAILURE_THRESHOLD)
        for _ in range(SDK_BREAKER_FAILURE_THRESHOLD):
            with pytest.raises(errors.GatewayFailed, match="timed out"):
                client.chat("Hi", timeout_s=0.1)
        assert client.chat("Hi").text == openai_wire.TEXT


@pytest.mark.parametrize("options", [{"retries": -1}, {"timeout": 0}, {"timeout": -1.0}, {"timeout": float("nan")}])
def test_client_invalid_option_is_named(options: dict[str, Any]) -> None:
    for client in (svc.Client, svc.AsyncClient):
        with pytest.raises(errors.InvalidRequest) as caught:
            client(**options)
        assert caught.value.param == next(iter(options))


@pytest.mark.parametrize(("value", "seconds"), [("nan", 60.0), ("-5", 60.0), ("7", 7.0), ("soon", 60.0)])
def test_rate_limited_retry_after_is_a_valid_number(
    call: Call, server: FakeProvider, value: str, seconds: float
) -> None:
    refused = {"error": {"message": "no", "type": "t", "code": "rate_limit_exceeded", "param": None}}
    server.plays(answer(429, refused, headers={"retry-after": value, "x-should-retry": "false"}))
    with pytest.raises(errors.RateLimited) as caught:
        call("chat", "Hi")
    assert caught.value.retry_after == seconds


def test_transcribe_unreadable_path_raises_usage_error(call: Call, tmp_path: Path) -> None:
    for path in (tmp_path, f"{tmp_path}/a\0b"):
        with pytest.raises(errors.UsageError, match="cannot be read"):
            call("transcribe", path)


def test_client_request_does_not_show_the_key() -> None:
    request = ClientRequest("POST", "http://gateway/v1/chat/completions", {"authorization": "Bearer secret"})
    assert "secret" not in repr(request)


DONE = b'data: {"type":"transcript.text.done","text":"Hello","usage":{"type":"duration","seconds":1}}\n\n'
DELTA = b'data: {"type":"transcript.text.delta","delta":"Hel"}\n\n'


def test_transcribe_reads_events_so_that_each_extends_the_timeout(call: Call, server: FakeProvider) -> None:
    server.plays(sse([b": keep-alive\n\n", DELTA, DONE]))
    transcript = call("transcribe", b"RIFF")
    assert (transcript.text, transcript.raw["usage"]) == ("Hello", {"type": "duration", "seconds": 1})
    assert b'name="stream"\r\n\r\ntrue\r\n' in server.requests[0].body


def test_transcribe_server_without_events_returns_transcript(call: Call, server: FakeProvider) -> None:
    server.plays(answer(200, {"text": "Hello"}), answer(200, {"other": 1}, headers=ID_HEADERS))
    assert call("transcribe", b"RIFF").text == "Hello"
    with pytest.raises(errors.GatewayFailed, match="not a transcript") as caught:
        call("transcribe", b"RIFF")
    assert caught.value.request_id == "req-7"


@pytest.mark.parametrize(
    ("end", "error_type", "message"),
    [
        (b'data: {"error":{"message":"died","code":"asr_error"}}\n\n', errors.SpeechFailed, "died"),
        (b"", errors.ProviderFailed, "interrupted"),
        (b"data: {}\n\n", errors.ProviderFailed, "not one of a transcription"),
    ],
)
def test_transcribe_failed_stream_raises(
    call: Call, server: FakeProvider, end: bytes, error_type: type[errors.SvcError], message: str
) -> None:
    server.plays(sse([DELTA, end]))
    with pytest.raises(error_type, match=message):
        call("transcribe", b"RIFF")
