"""Streams of Anthropic upstreams and to Anthropic clients, and errors in Anthropic's format."""

from __future__ import annotations

import json
from functools import partial
from typing import Any

import pytest
from tests.codecs import create_stream_passthrough, create_stream_transform, pass_through_response
from tests.nesting import depths_near_limit

from svc import errors
from svc.dialects import anthropic, openai
from svc.dialects.base import Dialect
from svc.dialects.resume import ResumableTranslation
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


def raised_errors(upstream: Dialect, first: bytes) -> list[type[Exception]]:
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
def test_stream_error_before_message_start_is_raised(kind: str, raised: type[Exception]) -> None:
    first = event("error", error={"type": kind, "message": "no"})
    assert raised_errors(anthropic.dialect, event("ping") + first) == [raised, raised]


@pytest.mark.parametrize("client", DIALECTS, ids=lambda dialect: dialect.name)
@pytest.mark.parametrize("kind", ["authentication_error", "permission_error"])
def test_stream_upstream_authentication_error_becomes_provider_failed(client: Dialect, kind: str) -> None:
    transform = create_stream_transform(anthropic.dialect, client, include_usage=True)
    out = transform.feed(START + event("error", error={"type": kind, "message": "invalid x-api-key of org acme"}))
    assert isinstance(transform.error, errors.ProviderFailed)
    assert transform.error.http_status == 502
    assert b"api_error" in out
    assert kind.encode() not in out
    assert b"acme" not in out


@pytest.mark.parametrize("first", [b"data: <html>\n\n", text("a"), STOP, b"data: [1]\n\n", event("message_start")])
def test_stream_without_message_start_raises_provider_failed(first: bytes) -> None:
    assert raised_errors(anthropic.dialect, first) == [errors.ProviderFailed] * 2


@pytest.mark.parametrize("size", [1, 7, 10_000])
def test_stream_missing_message_start_before_content_is_added(size: int) -> None:
    """llama.cpp's server omits it when the first token is only part of a character (an emoji)."""
    last = event("message_delta", delta={"type": "", "stop_reason": "end_turn"}, usage={"output_tokens": 9})
    stream = OPEN + text("\N{SPARKLES}") + text(" a") + CLOSE + last + STOP
    for client in DIALECTS:
        transform = create_stream_transform(anthropic.dialect, client, include_usage=True)
        out = b"".join(transform.feed(stream[at : at + size]) for at in range(0, len(stream), size)) + transform.end()
        assert (transform.error, transform.has_ended, transform.finish_reason) == (None, True, "stop")
        assert transform.usage is None  # the prompt's tokens are unknown, so all usage is estimated
        if client is anthropic.dialect:
            begin, rest = out.split(b"\n\n", 1)
            start = json.loads(begin.split(b"data: ")[1])
            assert (start["type"], start["message"]["role"], rest) == ("message_start", "assistant", stream)
            assert start["message"]["id"].startswith("msg_")
        else:
            chunks = [json.loads(line[6:]) for line in out.split(b"\n\n") if line.startswith(b"data: {")]
            assert "".join(chunk["choices"][0]["delta"].get("content") or "" for chunk in chunks) == "\N{SPARKLES} a"


@pytest.mark.parametrize("usage", [{}, {"input_tokens": 3}, {"output_tokens": None}], ids=str)
@pytest.mark.parametrize("client", DIALECTS, ids=lambda dialect: dialect.name)
def test_stream_usage_without_output_tokens_is_that_of_the_start(client: Dialect, usage: dict[str, int | None]) -> None:
    transform = create_stream_transform(anthropic.dialect, client, include_usage=True)
    transform.feed(START + OPEN + text("a") + CLOSE)
    transform.feed(event("message_delta", delta={"stop_reason": "end_turn"}, usage=usage) + STOP)
    assert (transform.has_ended, transform.error, transform.has_only_start_usage) == (True, None, True)


@pytest.mark.parametrize("start_usage", [{}, {"output_tokens": 1}])
def test_stream_incomplete_usage_is_none(start_usage: dict[str, int]) -> None:
    start = event("message_start", message={**MESSAGE, "usage": start_usage})
    for client in DIALECTS:
        transform = create_stream_transform(anthropic.dialect, client, include_usage=True)
        transform.feed(start + OPEN + text("a") + CLOSE + LAST + STOP)
        assert (transform.has_ended, transform.usage) == (True, None)


def test_stream_passthrough_valid_stream_returns_same_object() -> None:
    stream = START + OPEN + b"".join(text(f" {number}") for number in range(9)) + CLOSE + LAST + STOP
    transform = create_stream_passthrough(anthropic.dialect, include_usage=False)
    assert transform.feed(stream) is stream
    assert (transform.has_ended, transform.finish_reason, transform.model) == (True, "stop", "claude")
    assert transform.usage is not None
    assert (transform.usage.prompt_tokens, transform.usage.completion_tokens) == (3, 9)


@pytest.mark.parametrize("client", DIALECTS, ids=lambda dialect: dialect.name)
def test_stream_message_stop_without_stop_reason_is_an_error(client: Dialect) -> None:
    transform = create_stream_transform(anthropic.dialect, client, include_usage=True)
    out = transform.feed(START + OPEN + text("a") + CLOSE + STOP)
    assert isinstance(transform.error, errors.ProviderFailed)
    assert b"message_stop" not in out
    assert b"[DONE]" not in out


@pytest.mark.parametrize("client", DIALECTS, ids=lambda dialect: dialect.name)
def test_stream_fail_sends_one_error_and_nothing_after(client: Dialect) -> None:
    transform = create_stream_transform(anthropic.dialect, client, include_usage=True)
    transform.feed(START)
    assert b"too slow" in transform.fail(errors.ProviderFailed("too slow"))
    assert transform.fail(errors.ProviderFailed("again")) == b""
    assert transform.end() == b""
    assert transform.feed(LAST + STOP) == b""


def test_stream_repeated_usage_replaces_earlier_counts() -> None:
    transform = create_stream_transform(anthropic.dialect, openai.dialect, include_usage=True)
    restated = {"input_tokens": 5, "cache_read_input_tokens": 2, "output_tokens": 4}
    transform.feed(START + OPEN + event("message_delta", delta={}, usage=restated) + LAST + STOP)
    assert transform.usage is not None
    assert (transform.usage.prompt_tokens, transform.usage.cached_tokens, transform.usage.completion_tokens) == (
        7,
        2,
        9,
    )


@pytest.mark.parametrize("texts", [("a", "b"), ("", ""), ("a", "")])
def test_stream_resumable_consecutive_thinking_blocks_keep_their_signatures(texts: tuple[str, str]) -> None:
    encoder = anthropic.dialect.create_stream_encoder(include_usage=False)
    transform = ResumableTranslation(anthropic.dialect.create_stream_decoder(), encoder)
    blocks = []
    for index, thinking in enumerate(texts):
        block = {"type": "thinking", "thinking": "", "signature": ""}
        deltas = [{"type": "thinking_delta", "thinking": thinking}] if thinking else []
        blocks.append(event("content_block_start", index=index, content_block=block))
        for delta in (*deltas, {"type": "signature_delta", "signature": f"signature {index}"}):
            blocks.append(event("content_block_delta", index=index, delta=delta))
        blocks.append(event("content_block_stop", index=index))
    events = b"".join(blocks)
    assert events in transform.feed(START + events + LAST + STOP)


def test_stream_tool_name_after_arguments_is_awaited() -> None:
    def call(**function: str) -> bytes:
        delta = {"tool_calls": [{"index": 0, "id": "c", "function": function}]}
        return b"data: " + json.dumps({"choices": [{"delta": delta}]}).encode() + b"\n\n"

    transform = create_stream_transform(openai.dialect, anthropic.dialect, include_usage=True)
    out = transform.feed(call(arguments='{"a"') + call(name="f") + call(arguments=":1}"))
    events = [json.loads(line[6:]) for line in out.decode().splitlines() if line.startswith("data: ")]
    assert events[1]["content_block"]["name"] == "f"
    assert "".join(each["delta"]["partial_json"] for each in events[2:]) == '{"a":1}'


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
def test_encode_error_uses_anthropic_error_type(error: errors.SvcError, kind: str) -> None:
    assert json.loads(messages.endpoint.encode_error(error, "req_1")) == {
        "type": "error",
        "error": {"type": kind, "message": "x"},
        "request_id": "req_1",
    }


def test_auth_headers_follow_dialect() -> None:
    assert dict(anthropic.dialect.auth_headers("k")) == {"x-api-key": "k", "anthropic-version": "2023-06-01"}
    assert dict(openai.dialect.auth_headers("k")) == {"authorization": "Bearer k"}


@pytest.mark.parametrize("raw", [b"", b"<html>", b"{}", b'{"type":"message"}', b'{"error":{"type":"api_error"}}'])
def test_response_malformed_body_raises_provider_failed(raw: bytes) -> None:
    for read in (partial(pass_through_response, anthropic.dialect), anthropic.dialect.decode_response):
        with pytest.raises(errors.ProviderFailed):
            read(raw)


@pytest.mark.parametrize("data", ["data:", "data: ", "data"])
def test_stream_passthrough_event_with_empty_data_is_dropped(data: str) -> None:
    transform = create_stream_passthrough(anthropic.dialect, include_usage=False)
    out = transform.feed(START + OPEN + f"event: content_block_delta\n{data}\n\n".encode())
    assert out == START + OPEN
    out = transform.feed(f"event: message_stop\n{data}".encode()) + transform.end()
    assert out.startswith(b'event: error\ndata: {"type":"error"')
    assert isinstance(transform.error, errors.ProviderFailed)


@pytest.mark.parametrize("prefix", [b"", b": comment\n", b"id: 1\n"], ids=["none", "comment", "id"])
def test_stream_passthrough_unnamed_events_get_their_type_as_name(prefix: bytes) -> None:
    words = b"".join(text(f" {number}") for number in range(30))
    named = START + event("ping") + OPEN + words + CLOSE + LAST + STOP
    lines = [line for line in named.split(b"\n") if not line.startswith(b"event:")]
    unnamed = b"\n".join(prefix + line if line.startswith(b"data:") else line for line in lines)
    transform = create_stream_passthrough(anthropic.dialect, include_usage=False)
    pieces = [piece + b"\n\n" for piece in unnamed.split(b"\n\n") if piece]
    out = b"".join(transform.feed(piece) for piece in pieces)
    expected = [line for line in named.split(b"\n") if line.startswith(b"event:") and line != b"event: ping"]
    assert [line for line in out.split(b"\n") if line.startswith(b"event:")] == expected
    assert [line for line in out.split(b"\n") if line.startswith(b"data:")] == [
        line for line in lines if line.startswith(b"data:")
    ]
    assert (transform.has_ended, transform.error) == (True, None)


def test_stream_passthrough_repeated_message_start_is_dropped() -> None:
    transform = create_stream_passthrough(anthropic.dialect, include_usage=False)
    out = transform.feed(START + START + OPEN + text("a") + START + CLOSE + LAST + STOP)
    assert out == START + OPEN + text("a") + CLOSE + LAST + STOP
    assert transform.has_ended


@pytest.mark.parametrize("client", DIALECTS, ids=lambda dialect: dialect.name)
def test_stream_deeply_nested_tool_input_is_decoded_or_provider_failed(client: Dialect) -> None:
    for depth in depths_near_limit():
        transform = create_stream_transform(anthropic.dialect, client, include_usage=True)
        nested = '{"a":' * depth + "1" + "}" * depth
        block = f'{{"type":"tool_use","id":"t","name":"f","input":{nested}}}'
        transform.feed(START + f'data: {{"type":"content_block_start","index":0,"content_block":{block}}}\n\n'.encode())
        assert transform.error is None or isinstance(transform.error, errors.ProviderFailed)
