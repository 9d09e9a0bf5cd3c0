"""Streams of Anthropic upstreams, and streams to Anthropic clients; errors in Anthropic's shape."""

from __future__ import annotations

import json
from functools import partial
from typing import Any

import pytest
from tests.codecs import create_stream_passthrough, create_stream_transform, pass_through_response

from svc import errors
from svc.dialects import anthropic, openai
from svc.dialects.base import Dialect
from svc.gateway.endpoints import messages

DIALECTS = (openai.dialect, anthropic.dialect)


def event(kind: str, **fields: Any) -> bytes:
    return f"event: {kind}\ndata: {json.dumps({'type': kind, **fields}, separators=(',', ':'))}\n\n".encode()


def text(word: str) -> bytes:
    return event("content_block_delta", index=0, delta={"type": "text_delta", "text": word})


MESSAGE = {"id": "msg_1", "type": "message", "role": "assistant", "model": "claude", "content": []}
START = event("message_start", message={**MESSAGE, "usage": {"input_tokens": 3, "output_tokens": 1}})
OPEN = event("content_block_start", index=0, content_block={"type": "text", "text": ""})
CLOSE = event("content_block_stop", index=0)
LAST = event("message_delta", delta={"stop_reason": "end_turn"}, usage={"output_tokens": 9})
STOP = event("message_stop")


def failing(upstream: Dialect, first: bytes) -> list[type[Exception]]:
    kinds = []
    for client in DIALECTS:
        with pytest.raises(errors.SvcError) as caught:
            create_stream_transform(upstream, client, include_usage=True).feed(first)
        kinds.append(type(caught.value))
    return kinds


@pytest.mark.parametrize(
    ("kind", "raised"),
    [
        ("overloaded_error", errors.ProviderFailed),
        ("api_error", errors.ProviderFailed),
        ("authentication_error", errors.ProviderFailed),
        ("rate_limit_error", errors.RateLimited),
        ("invalid_request_error", errors.InvalidRequest),
    ],
)
def test_an_error_before_the_start_is_raised(kind: str, raised: type[Exception]) -> None:
    first = event("error", error={"type": kind, "message": "no"})
    assert failing(anthropic.dialect, event("ping") + first) == [raised, raised]


@pytest.mark.parametrize("client", DIALECTS, ids=lambda dialect: dialect.name)
@pytest.mark.parametrize("kind", ["authentication_error", "permission_error"])
def test_error_event_about_the_gateways_key_is_a_provider_error(client: Dialect, kind: str) -> None:
    pipe = create_stream_transform(anthropic.dialect, client, include_usage=True)
    out = pipe.feed(START + event("error", error={"type": kind, "message": "invalid x-api-key of org 1234"}))
    assert isinstance(pipe.error, errors.ProviderFailed)
    assert pipe.error.http_status == 502
    assert b"api_error" in out
    assert kind.encode() not in out
    assert b"1234" not in out


@pytest.mark.parametrize("first", [b"data: <html>\n\n", text("a"), STOP, b"data: [1]\n\n", event("message_start")])
def test_a_stream_without_a_beginning_is_raised(first: bytes) -> None:
    assert failing(anthropic.dialect, first) == [errors.ProviderFailed] * 2


@pytest.mark.parametrize("size", [1, 7, 10_000])
def test_a_beginning_that_is_left_out_is_made_up(size: int) -> None:
    """llama.cpp's server leaves it out when the answer's first token is a part of a character (an emoji) only."""
    last = event("message_delta", delta={"type": "", "stop_reason": "end_turn"}, usage={"output_tokens": 9})
    stream = OPEN + text("\N{SPARKLES}") + text(" a") + CLOSE + last + STOP
    for client in DIALECTS:
        pipe = create_stream_transform(anthropic.dialect, client, include_usage=True)
        out = b"".join(pipe.feed(stream[at : at + size]) for at in range(0, len(stream), size)) + pipe.end()
        assert (pipe.error, pipe.has_ended, pipe.finish_reason) == (None, True, "stop")
        assert pipe.usage is None  # of the prompt nothing is known, so that all is estimated
        if client is anthropic.dialect:
            begin, rest = out.split(b"\n\n", 1)
            said = json.loads(begin.split(b"data: ")[1])
            assert (said["type"], said["message"]["role"], rest) == ("message_start", "assistant", stream)
            assert said["message"]["id"].startswith("msg_")
        else:
            chunks = [json.loads(line[6:]) for line in out.split(b"\n\n") if line.startswith(b"data: {")]
            assert "".join(chunk["choices"][0]["delta"].get("content") or "" for chunk in chunks) == "\N{SPARKLES} a"


@pytest.mark.parametrize("begun", [{}, {"output_tokens": 1}])
def test_half_a_usage_is_none(begun: dict[str, int]) -> None:
    start = event("message_start", message={**MESSAGE, "usage": begun})
    for client in DIALECTS:
        pipe = create_stream_transform(anthropic.dialect, client, include_usage=True)
        pipe.feed(start + OPEN + text("a") + CLOSE + LAST + STOP)
        assert (pipe.has_ended, pipe.usage) == (True, None)


def test_a_right_stream_goes_through_as_it_is() -> None:
    stream = START + OPEN + b"".join(text(f" {number}") for number in range(9)) + CLOSE + LAST + STOP
    pipe = create_stream_passthrough(anthropic.dialect, include_usage=False)
    assert pipe.feed(stream) is stream
    assert (pipe.has_ended, pipe.finish_reason, pipe.model) == (True, "stop", "claude")
    assert pipe.usage is not None
    assert (pipe.usage.prompt_tokens, pipe.usage.completion_tokens) == (3, 9)


@pytest.mark.parametrize("client", DIALECTS, ids=lambda dialect: dialect.name)
def test_an_end_mark_without_a_stop_reason_is_no_end(client: Dialect) -> None:
    pipe = create_stream_transform(anthropic.dialect, client, include_usage=True)
    out = pipe.feed(START + OPEN + text("a") + CLOSE + STOP)
    assert isinstance(pipe.error, errors.ProviderFailed)
    assert b"message_stop" not in out
    assert b"[DONE]" not in out


@pytest.mark.parametrize("client", DIALECTS, ids=lambda dialect: dialect.name)
def test_what_we_break_off_ends_once(client: Dialect) -> None:
    pipe = create_stream_transform(anthropic.dialect, client, include_usage=True)
    pipe.feed(START)
    assert b"too slow" in pipe.fail(errors.ProviderFailed("too slow"))
    assert pipe.fail(errors.ProviderFailed("again")) == b""
    assert pipe.end() == b""
    assert pipe.feed(LAST + STOP) == b""


def test_usage_replaces_and_is_never_added() -> None:
    pipe = create_stream_transform(anthropic.dialect, openai.dialect, include_usage=True)
    restated = {"input_tokens": 5, "cache_read_input_tokens": 2, "output_tokens": 4}
    pipe.feed(START + OPEN + event("message_delta", delta={}, usage=restated) + LAST + STOP)
    assert pipe.usage is not None
    assert (pipe.usage.prompt_tokens, pipe.usage.cached_tokens, pipe.usage.completion_tokens) == (7, 2, 9)


def test_a_name_that_comes_late_is_waited_for() -> None:
    def call(**function: str) -> bytes:
        delta = {"tool_calls": [{"index": 0, "id": "c", "function": function}]}
        return b"data: " + json.dumps({"choices": [{"delta": delta}]}).encode() + b"\n\n"

    pipe = create_stream_transform(openai.dialect, anthropic.dialect, include_usage=True)
    out = pipe.feed(call(arguments='{"a"') + call(name="f") + call(arguments=":1}"))
    pieces = [json.loads(line[6:]) for line in out.decode().splitlines() if line.startswith("data: ")]
    assert pieces[1]["content_block"]["name"] == "f"
    assert "".join(piece["delta"]["partial_json"] for piece in pieces[2:]) == '{"a":1}'


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (errors.InvalidRequest("x"), "invalid_request_error"),
        (errors.TooLarge("x"), "request_too_large"),
        (errors.AuthenticationFailed("x"), "authentication_error"),
        (errors.PermissionDenied("x"), "permission_error"),
        (errors.ModelNotFound("x"), "not_found_error"),
        (errors.NotFound("x"), "not_found_error"),
        (errors.MethodNotAllowed("x"), "invalid_request_error"),
        (errors.RateLimited("x"), "rate_limit_error"),
        (errors.ProviderFailed("x"), "api_error"),
        (errors.InternalError("x"), "api_error"),
    ],
)
def test_our_errors(error: errors.SvcError, kind: str) -> None:
    assert json.loads(messages.endpoint.encode_error(error, "req_1")) == {
        "type": "error",
        "error": {"type": kind, "message": "x"},
        "request_id": "req_1",
    }


def test_credentials() -> None:
    assert dict(anthropic.dialect.auth_headers("k")) == {"x-api-key": "k", "anthropic-version": "2023-06-01"}
    assert dict(openai.dialect.auth_headers("k")) == {"authorization": "Bearer k"}


@pytest.mark.parametrize("raw", [b"", b"<html>", b"{}", b'{"type":"message"}', b'{"error":{"type":"api_error"}}'])
def test_what_is_no_answer_is_the_providers_failure(raw: bytes) -> None:
    for read in (partial(pass_through_response, anthropic.dialect), anthropic.dialect.decode_response):
        with pytest.raises(errors.ProviderFailed):
            read(raw)


def test_a_start_that_is_said_again_is_left_out() -> None:
    pipe = create_stream_passthrough(anthropic.dialect, include_usage=False)
    out = pipe.feed(START + START + OPEN + text("a") + START + CLOSE + LAST + STOP)
    assert out == START + OPEN + text("a") + CLOSE + LAST + STOP
    assert pipe.has_ended


@pytest.mark.parametrize("client", DIALECTS, ids=lambda dialect: dialect.name)
def test_tool_input_nested_to_any_depth_is_read_or_the_providers_failure(client: Dialect) -> None:
    for depth in range(900, 1100):
        pipe = create_stream_transform(anthropic.dialect, client, include_usage=True)
        nested = '{"a":' * depth + "1" + "}" * depth
        block = f'{{"type":"tool_use","id":"t","name":"f","input":{nested}}}'
        pipe.feed(START + f'data: {{"type":"content_block_start","index":0,"content_block":{block}}}\n\n'.encode())
        assert pipe.error is None or isinstance(pipe.error, errors.ProviderFailed)
