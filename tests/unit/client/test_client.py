"""svc.Client and svc.AsyncClient behave alike with a server that responds, stalls, truncates and misbehaves."""

from __future__ import annotations

import asyncio
import inspect
import io
import json
import math
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any, assert_type

import pytest
from tests.fakes import openai_wire
from tests.fakes.ports import closed_port
from tests.fakes.provider import FakeProvider
from tests.fakes.script import Gate, answer, body, fin, head, hold, raw, reset, sse, stall

import svc
from svc import errors
from svc.client import retry
from svc.client.aio import AsyncChatStream, AsyncResponseStream, AsyncSpeechStream
from svc.client.chat import ChatResult
from svc.client.client import ChatStream, ResponseStream, SpeechStream
from svc.client.responses import ResponseResult

Call = Callable[..., Any]


def error_response(status: int, code: str, **headers: str) -> Any:
    return answer(status, {"error": {"message": "no", "type": "t", "code": code, "param": None}}, headers=headers)


def test_chat_message_returns_text_and_usage(call: Call, server: FakeProvider) -> None:
    completion = call("chat", "Hi", model="m1", max_tokens=5, temperature=None)
    assert completion.text == openai_wire.TEXT
    assert completion.usage == svc.client.chat.ChatUsage(11, 7, 18)
    assert completion.raw["id"] == openai_wire.ID
    assert (completion.model, completion.finish_reason) == ("gpt-4o-2024-08-06", "stop")
    seen = server.wait()
    assert seen.json == {"model": "m1", "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 5}
    assert seen.headers["authorization"] == "Bearer key-1"
    assert seen.path == "/v1/chat/completions"


def test_chat_messages_are_sent_unchanged_with_default_model(call: Call, server: FakeProvider) -> None:
    turns = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}]
    call("chat", turns)
    assert server.wait().json == {"model": "gpt-4o-mini", "messages": turns}


def test_chat_default_model_missing_uses_an_offered_model(call: Call, server: FakeProvider) -> None:
    listed = {"object": "list", "data": [{"id": "only", "object": "model", "created": 1, "owned_by": "local"}]}
    server.plays(error_response(404, "model_not_found"), answer(200, listed), answer(200, openai_wire.chat("ok")))
    assert call("chat", "Hi").text == "ok"
    assert server.requests[2].json["model"] == "only"
    server.plays(error_response(404, "model_not_found"))
    with pytest.raises(errors.ModelNotFound):
        call("chat", "Hi", model="other")


@pytest.mark.parametrize("size", [1, 7, 100000])
def test_chat_stream_any_split_returns_same_text(call: Call, server: FakeProvider, size: int) -> None:
    server.plays(sse(openai_wire.stream(), split_at=size))
    chunks, made = call("chat", "Hi", stream=True)
    assert "".join(chunk.text for chunk in chunks) == made.text == openai_wire.TEXT
    assert [chunk.finish_reason for chunk in chunks if chunk.finish_reason] == ["stop"]
    assert made.usage.total_tokens == 18
    assert server.wait().json["stream_options"] == {"include_usage": True}


@pytest.mark.parametrize("end", [fin(), reset(), None])
def test_chat_stream_truncated_raises(call: Call, server: FakeProvider, end: Any) -> None:
    server.plays(sse(openai_wire.stream()[:3], end=end))
    with pytest.raises((errors.ProviderFailed, errors.GatewayFailed)):
        call("chat", "Hi", stream=True)


def test_chat_stream_error_event_raises_provider_failed(call: Call, server: FakeProvider) -> None:
    said = openai_wire.event({"error": {"message": "it broke", "type": "api_error", "code": "provider_error"}})
    server.plays(sse([*openai_wire.stream()[:2], said], end=fin()))
    with pytest.raises(errors.ProviderFailed, match="it broke"):
        call("chat", "Hi", stream=True)


@pytest.mark.parametrize(
    ("status", "code", "kind"),
    [
        (400, "invalid_request", errors.InvalidRequest),
        (413, "request_too_large", errors.TooLarge),
        (431, "too_large", errors.HeadTooLarge),
        (401, "authentication_error", errors.AuthenticationFailed),
        (401, "invalid_api_key", errors.AuthenticationFailed),
        (403, "permission_denied", errors.PermissionDenied),
        (404, "model_not_found", errors.ModelNotFound),
        (404, "not_found", errors.NotFound),
        (405, "method_not_allowed", errors.MethodNotAllowed),
        (409, "already_exists", errors.AlreadyExists),
        (429, "rate_limit_exceeded", errors.RateLimited),
        (502, "provider_error", errors.ProviderFailed),
        (500, "internal_error", errors.InternalError),
        (503, "whatever", errors.GatewayFailed),
        (418, "teapot", errors.InvalidRequest),
    ],
)
def test_chat_error_response_raises_exception_of_its_code(
    call: Call, server: FakeProvider, status: int, code: str, kind: type[svc.SvcError]
) -> None:
    server.plays(error_response(status, code, **{"x-request-id": "req-1", "retry-after": "7"}))
    with pytest.raises(kind) as caught:
        call("chat", "Hi", model="m", client={"retries": 0})
    assert type(caught.value) is kind
    assert (caught.value.message, caught.value.request_id) == ("no", "req-1")
    if isinstance(caught.value, errors.RateLimited):
        assert caught.value.retry_after == 7


@pytest.mark.parametrize(
    "script",
    [
        answer(200, b"<html>"),
        answer(200, b"{}"),
        answer(200, b""),
        answer(502, b"\xff\xfe"),
        raw(b"SSH-2.0\r\n\r\n") + fin(),
    ],
)
def test_chat_malformed_response_raises_gateway_failed(call: Call, server: FakeProvider, script: Any) -> None:
    server.plays(script)
    with pytest.raises(errors.GatewayFailed):
        call("chat", "Hi", client={"retries": 0})


def test_chat_retryable_statuses_are_retried(call: Call, server: FakeProvider) -> None:
    server.plays(
        error_response(503, "x", **{"retry-after-ms": "10"}),
        error_response(429, "rate_limit_exceeded", **{"retry-after": "0"}),
    )
    assert call("chat", "Hi").text == openai_wire.TEXT
    assert len(server.requests) == 3


def test_chat_retry_after_delays_retry(call: Call, server: FakeProvider) -> None:
    server.plays(error_response(429, "rate_limit_exceeded", **{"retry-after": "1"}))
    started_at = time.monotonic()
    call("chat", "Hi")
    assert 1.0 <= time.monotonic() - started_at < 3.0


@pytest.mark.parametrize("headers", [{"x-should-retry": "false"}, {"retry-after": "500"}])
def test_chat_server_forbids_retry_sends_one_request(call: Call, server: FakeProvider, headers: dict[str, str]) -> None:
    server.plays(error_response(429, "rate_limit_exceeded", **headers))
    with pytest.raises(errors.RateLimited):
        call("chat", "Hi")
    assert len(server.requests) == 1


def test_chat_connection_reset_before_response_is_retried(call: Call, server: FakeProvider) -> None:
    server.plays(reset(), head(framing="length", length=10) + body(b"abc") + fin())
    # The second attempt fails during the response, so the gateway may have processed the request.
    with pytest.raises(errors.GatewayFailed):
        call("chat", "Hi")
    assert len(server.requests) == 2


def test_chat_timeout_raises_gateway_failed(call: Call, server: FakeProvider) -> None:
    server.always_plays(stall())
    for options in ({"client": {"timeout": 0.2}}, {"timeout_s": 0.2}):
        started_at = time.monotonic()
        with pytest.raises(errors.GatewayFailed, match="timed out"):
            call("chat", "Hi", **options)
        assert time.monotonic() - started_at < 2


@pytest.mark.parametrize(
    ("method", "argument", "named"),
    [
        ("models", (), {}),
        ("transcribe", (b"audio",), {}),
        ("speak", ("Hi",), {"model": "m"}),
        ("speak", ("Hi",), {"model": "m", "stream": True}),
        ("speak", ("Hi",), {}),
    ],
)
def test_call_timeout_s_limits_the_call_and_is_not_sent(
    call: Call, server: FakeProvider, method: str, argument: tuple[Any, ...], named: dict[str, Any]
) -> None:
    server.plays(stall())
    with pytest.raises(errors.GatewayFailed, match="timed out"):
        call(method, *argument, timeout_s=0.2, **named)
    assert b"timeout_s" not in server.requests[0].body


def test_chat_stream_timeout_raises_gateway_failed(call: Call, server: FakeProvider) -> None:
    server.plays(sse(openai_wire.stream()[:3], end=stall()))
    with pytest.raises(errors.GatewayFailed, match="timed out"):
        call("chat", "Hi", stream=True, timeout_s=0.3)


def test_chat_unreachable_gateway_raises_gateway_failed(call: Call) -> None:
    with pytest.raises(errors.GatewayFailed, match="cannot be reached"):
        call("chat", "Hi", client={"gateway_url": f"http://127.0.0.1:{closed_port()}/v1", "retries": 0})


def test_models_unreachable_default_gateway_suggests_svc_up(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("SVC_GATEWAY_URL", "SVC_PLATFORM_URL"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(errors.GatewayFailed, match=r"SVC_GATEWAY_URL.*svc up"):
        call("models", client={"gateway_url": None, "retries": 0})


def test_models_list_is_parsed_or_rejected(call: Call, server: FakeProvider) -> None:
    listed = {"object": "list", "data": [{"id": "a", "object": "model", "created": 1, "owned_by": "x", "more": [1]}]}
    server.plays(answer(200, listed))
    (model,) = call("models")
    assert (model.id, model.owned_by) == ("a", "x")
    server.plays(answer(200, {"object": "list"}))
    with pytest.raises(errors.GatewayFailed):
        call("models")


def test_chat_message_not_serializable_raises_before_sending(call: Call, server: FakeProvider) -> None:
    with pytest.raises(errors.InvalidRequest):
        call("chat", [{"role": "user", "content": object()}])
    assert server.requests == []


@pytest.mark.parametrize(
    ("method", "arguments", "param"),
    [
        ("chat", {"temperature": math.nan}, "temperature"),
        ("chat", {"timeout_s": math.nan}, "timeout_s"),
        ("chat", {"timeout_s": "3"}, "timeout_s"),
        ("chat", {"client": {"api_key": 7}}, "api_key"),
        ("chat", {"client": {"gateway_url": 7}}, "gateway_url"),
        ("chat", {"client": {"retries": 2.5}}, "retries"),
        ("chat", {"client": {"timeout": "3"}}, "timeout"),
        ("responses", {"top_p": math.inf}, "top_p"),
        ("speak", {"speed": math.nan}, "speed"),
        ("embed", {"dimensions": math.nan}, "dimensions"),
        ("chat", {"logit_bias": {"7": math.inf}}, "logit_bias.7"),
        ("responses", {"tools": [{"type": "x"}, {"weight": math.nan}]}, "tools[1].weight"),
    ],
)
def test_call_impossible_value_is_rejected_and_not_sent(
    call: Call, server: FakeProvider, method: str, arguments: dict[str, Any], param: str
) -> None:
    with pytest.raises(errors.InvalidRequest) as caught:
        call(method, "Hi", model="gpt-4o-mini", **arguments)
    assert caught.value.param == param
    assert server.requests == []


@pytest.mark.parametrize("value", [None, 7, b"Hi", {"role": "user", "content": "Hi"}])
@pytest.mark.parametrize(("method", "param"), [("chat", "messages"), ("responses", "input")])
def test_call_messages_that_are_no_list_are_rejected(
    call: Call, server: FakeProvider, method: str, param: str, value: object
) -> None:
    with pytest.raises(errors.InvalidRequest, match=f"{param} is neither a string nor a list") as caught:
        call(method, value)
    assert caught.value.param == param
    assert server.requests == []


@pytest.mark.parametrize("seconds", [math.inf, 1e300])
def test_chat_timeout_without_end_is_possible(call: Call, seconds: float) -> None:
    assert call("chat", "Hi", client={"timeout": seconds}, timeout_s=seconds).text == openai_wire.TEXT
    _, stream = call("chat", "Hi", stream=True, client={"timeout": seconds}, timeout_s=seconds)
    assert stream.text == openai_wire.TEXT


def test_async_client_outside_asyncio_raises_usage_error(server: FakeProvider) -> None:
    chat = svc.AsyncClient(gateway_url=server.address).chat("Hi")
    with pytest.raises(errors.UsageError, match="event loop of asyncio"):
        chat.send(None)


@pytest.mark.parametrize("audio", [None, 7, io.BytesIO(b"RIFF")])
def test_transcribe_audio_of_a_wrong_type_is_rejected(call: Call, server: FakeProvider, audio: object) -> None:
    with pytest.raises(errors.InvalidRequest, match="neither a path nor bytes") as caught:
        call("transcribe", audio)
    assert caught.value.param == "audio"
    assert server.requests == []


@pytest.mark.parametrize("stream", [False, True])
def test_calls_take_a_stream_flag_of_the_type_bool(server: FakeProvider, stream: bool) -> None:
    """mypy checks the types: without overloads for bool, it rejects the calls."""

    async def run() -> None:
        async with svc.AsyncClient(gateway_url=server.address, api_key="key-1") as client:
            answer = assert_type(await client.chat("Hi", stream=stream), ChatResult | AsyncChatStream)
            assert isinstance(answer, AsyncChatStream if stream else ChatResult)
            assert_type(await client.responses("Hi", stream=stream), ResponseResult | AsyncResponseStream)
            assert_type(await client.speak("Hi", model="tts-1", stream=stream), bytes | AsyncSpeechStream)

    with svc.Client(gateway_url=server.address, api_key="key-1") as client:
        answer = assert_type(client.chat("Hi", stream=stream), ChatResult | ChatStream)
        assert isinstance(answer, ChatStream if stream else ChatResult)
        assert_type(client.responses("Hi", stream=stream), ResponseResult | ResponseStream)
        assert_type(client.speak("Hi", model="tts-1", stream=stream), bytes | SpeechStream)
    asyncio.run(run())


def test_chat_message_with_nan_is_rejected_and_null_is_sent(call: Call, server: FakeProvider) -> None:
    turns: list[dict[str, Any]] = [{"role": "assistant", "content": None}, {"role": "user", "content": "Hi"}]
    call("chat", turns)
    assert json.loads(server.requests[0].body)["messages"] == turns
    server.forget()
    with pytest.raises(errors.InvalidRequest, match="must be a finite number") as caught:
        call("chat", [*turns, {"role": "user", "content": [{"type": "x", "value": math.nan}]}])
    assert caught.value.param == "messages[2].content[0].value"
    assert server.requests == []


def test_chat_redirect_is_not_followed_and_named(call: Call, server: FakeProvider) -> None:
    other = {"error": {"message": "no", "type": "t", "code": "permission_denied", "param": "p"}}
    server.plays(answer(308, other, headers={"location": "https://gateway.example/v1", "x-request-id": "req-7"}))
    with pytest.raises(errors.GatewayFailed, match=r"redirects to https://gateway\.example/v1\.") as caught:
        call("chat", "Hi")
    assert caught.value.request_id == "req-7"
    assert str(caught.value) == caught.value.message
    assert len(server.requests) == 1


def test_chat_stream_has_what_a_result_has(call: Call, server: FakeProvider) -> None:
    result = call("chat", "Hi")
    _, stream = call("chat", "Hi", stream=True)
    for name in ("text", "model", "finish_reason", "reasoning"):
        assert getattr(stream, name) == getattr(result, name), name


def test_transcribe_missing_file_raises_usage_error(call: Call, server: FakeProvider) -> None:
    with pytest.raises(errors.UsageError, match="no file"):
        call("transcribe", "/nowhere/at/all.wav")


# Tests of one kind of client.


def test_client_connection_is_reused_and_replaced_when_closed(server: FakeProvider) -> None:
    with svc.Client(gateway_url=f"{server.address}/v1", api_key="key-1", retries=0) as client:
        for _ in range(3):
            client.chat("Hi")
        for _ in client.chat("Hi", stream=True):
            pass
        client.chat("Hi")
        assert server.accepted == 1
        server.forget()
        for connection in list(server.connections):
            server._loop.call_soon_threadsafe(connection._transport.close)
        time.sleep(0.05)
        assert client.chat("Hi").text == openai_wire.TEXT


def test_chat_stream_first_chunk_is_yielded_before_last_is_sent(server: FakeProvider) -> None:
    gate = Gate()
    events = openai_wire.stream()
    server.plays(sse(events[:3], end=hold(gate) + body(b"".join(events[3:])) + fin()))
    with svc.Client(gateway_url=server.address, api_key="key-1").chat("Hi", stream=True) as stream:
        assert next(stream).text
        gate.open()


def test_chat_stream_exit_closes_connection(server: FakeProvider) -> None:
    server.plays(sse(openai_wire.stream()[:3], end=stall()))
    with svc.Client(gateway_url=server.address, api_key="key-1").chat("Hi", stream=True) as stream:
        next(stream)
    server.wait().wait_left(2.0)


def test_client_breaker_opens_when_gateway_is_down() -> None:
    client = svc.Client(gateway_url=f"http://127.0.0.1:{closed_port()}/v1", retries=0)
    for _ in range(5):
        with pytest.raises(errors.GatewayFailed, match="cannot be reached"):
            client.models()
    with pytest.raises(errors.GatewayFailed, match="5 times in a row"):
        client.models()


def test_client_breaker_ignores_provider_errors(server: FakeProvider) -> None:
    server.always_plays(error_response(502, "provider_error", **{"x-should-retry": "false"}))
    client = svc.Client(gateway_url=server.address, api_key="key-1", retries=0)
    for _ in range(8):
        with pytest.raises(errors.ProviderFailed):
            client.chat("Hi")


def test_async_client_cancelled_call_closes_connection(server: FakeProvider) -> None:
    server.always_plays(stall())

    async def run() -> None:
        async with svc.AsyncClient(gateway_url=server.address, api_key="key-1") as client:
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.2):
                    await client.chat("Hi")

    asyncio.run(run())
    server.wait().wait_left(2.0)


def test_client_close_closes_connections(server: FakeProvider) -> None:
    with svc.Client(gateway_url=server.address, api_key="key-1") as client:
        client.chat("Hi")
        list(client.chat("Hi", stream=True))
        assert len(server.connections) == 1
    server.until(lambda: not server.connections, 20)


def test_client_breaker_half_open_probe_closes_it(server: FakeProvider, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retry, "SDK_BREAKER_OPEN_SECONDS", 1.0)
    server.always_plays(answer(503, b"down for maintenance"))
    client = svc.Client(gateway_url=server.address, api_key="key-1", retries=0)
    for _ in range(retry.SDK_BREAKER_FAILURE_THRESHOLD):
        with pytest.raises(errors.GatewayFailed):
            client.models()
    for _ in range(3):
        with pytest.raises(errors.GatewayFailed, match="5 times in a row"):
            client.models()
    assert len(server.requests) == retry.SDK_BREAKER_FAILURE_THRESHOLD  # the open breaker sent no request
    time.sleep(1.1)
    with pytest.raises(errors.GatewayFailed):  # one probe
        client.models()
    with pytest.raises(errors.GatewayFailed, match="6 times in a row"):
        client.models()
    assert len(server.requests) == retry.SDK_BREAKER_FAILURE_THRESHOLD + 1
    server.always_plays(None)
    time.sleep(1.1)
    assert client.models()
    assert client.models()


def test_blocking_and_async_clients_have_same_signatures() -> None:
    for one, other in ((svc.Client, svc.AsyncClient), (svc.client.client.Live, svc.client.aio.AsyncLive)):
        names = {name for name in vars(one) if not name.startswith("_")}
        assert names == {name for name in vars(other) if not name.startswith("_")}
        for name in names:
            if callable(getattr(one, name)):
                mine, theirs = inspect.signature(getattr(one, name)), inspect.signature(getattr(other, name))
                assert str(mine).partition(" -> ")[0] == str(theirs).partition(" -> ")[0], name
                assert getattr(one, name).__doc__ == getattr(other, name).__doc__, name


def test_import_svc_is_fast_and_loads_no_heavy_modules() -> None:
    """Measured in CPU time, since other tests may run concurrently."""
    script = (
        "import time; begun = time.process_time(); import svc; svc.Client; took = time.process_time() - begun\n"
        "import sys; heavy = {'starlette', 'uvicorn', 'numpy', 'sherpa_onnx', 'xllamacpp', 'uvloop', 'asyncio'}\n"
        "server = {'svc.gateway', 'svc.speech', 'svc.registry', 'svc.stores', 'svc.app', 'svc.settings'}\n"
        "assert not (heavy | server) & set(sys.modules), (heavy | server) & set(sys.modules)\n"
        "print(took)"
    )
    runs = [
        subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60) for _ in range(3)
    ]
    assert all(one.returncode == 0 for one in runs), runs[0].stderr
    assert min(float(one.stdout) for one in runs) < 0.1


def test_chat_error_with_numeric_code_keeps_message(call: Call, server: FakeProvider) -> None:
    """llama.cpp's server and some providers send numeric codes."""
    server.plays(answer(400, {"error": {"code": 400, "message": "the prompt is too long", "type": "x"}}))
    with pytest.raises(errors.InvalidRequest, match=r"^the prompt is too long$"):
        call("chat", "Hi")


def test_async_client_in_successive_event_loops_works(server: FakeProvider) -> None:
    client = svc.AsyncClient(gateway_url=f"{server.address}/v1", api_key="key-1")

    async def ask() -> str:
        return (await client.chat("Hi")).text

    assert [asyncio.run(ask()) for _ in range(3)] == [openai_wire.TEXT] * 3
    asyncio.run(client.close())
