"""Translation of each part of a response, complete and streamed, and of malformed responses."""

from __future__ import annotations

import json
from typing import Any

import pytest
from tests.codecs import pass_through_response

from svc.dialects.anthropic import dialect as anthropic
from svc.dialects.anthropic.schema import encode_usage, to_finish_reason, to_stop_reason
from svc.dialects.anthropic.unsigned_thinking import UNSIGNED_MARK
from svc.dialects.base import Dialect
from svc.dialects.openai import dialect as openai
from svc.errors import InvalidRequest, ProviderFailed, RateLimited, SvcError
from svc.wire.chat import (
    ChatResponse,
    RedactedDelta,
    RedactedThinkingPart,
    RefusalDelta,
    RefusalPart,
    SignatureDelta,
    StreamDelta,
    StreamError,
    StreamFinish,
    StreamStart,
    TextDelta,
    TextPart,
    ThinkingDelta,
    ThinkingPart,
    ToolCall,
    ToolCallArguments,
    ToolCallStart,
    UsageUpdate,
)
from svc.wire.usage import TokenUsage

USAGE = TokenUsage(100, 20, cached_tokens=30, cache_write_tokens=10, reasoning_tokens=5)
ANTHROPIC_USAGE = {
    "input_tokens": 60,
    "cache_creation_input_tokens": 10,
    "cache_read_input_tokens": 30,
    "output_tokens": 20,
    "output_tokens_details": {"thinking_tokens": 5},
}
NOT_UNDERSTOOD = "The provider sent an invalid event."


def message(*blocks: dict[str, Any], **more: Any) -> bytes:
    """Return a complete response of an Anthropic upstream."""
    body = {"id": "msg_1", "type": "message", "role": "assistant", "model": "theirs", "content": list(blocks)}
    return json.dumps({**body, "stop_reason": "end_turn", "usage": ANTHROPIC_USAGE, **more}).encode()


def completion(fields: dict[str, Any], **more: Any) -> bytes:
    """Return a complete response of an OpenAI upstream."""
    choice = {"index": 0, "message": {"role": "assistant", **fields}, "finish_reason": "stop"}
    body = {"id": "c1", "object": "chat.completion", "created": 7, "model": "theirs", "choices": [choice]}
    return json.dumps({**body, **more}).encode()


def response(*parts: Any, finish: Any = "stop", usage: TokenUsage | None = USAGE) -> ChatResponse:
    return ChatResponse("id1", "theirs", 7, list(parts), finish, usage)


def written(dialect: Dialect, *parts: Any, **more: Any) -> dict[str, Any]:
    return dict(json.loads(dialect.encode_response(response(*parts, **more))))


def events(*bodies: dict[str, Any]) -> list[bytes]:
    return [f"event: {body['type']}\ndata: {json.dumps(body)}\n\n".encode() for body in bodies]


def chunk(delta: dict[str, Any] | None = None, finish: str | None = None, **more: Any) -> bytes:
    choices = [] if delta is None else [{"index": 0, "delta": delta, "finish_reason": finish}]
    body = {"id": "c1", "object": "chat.completion.chunk", "created": 7, "model": "theirs", "choices": choices, **more}
    return f"data: {json.dumps(body)}\n\n".encode()


def deltas(dialect: Dialect, *stream: bytes) -> list[StreamDelta]:
    reader = dialect.create_stream_decoder()
    return [delta for event in stream for delta in reader.decode(event)]


def started(dialect: Dialect, *stream: bytes) -> list[StreamDelta]:
    """Return the deltas after the stream's start."""
    start = chunk({"role": "assistant", "content": ""})
    if dialect is anthropic:
        (start,) = events({"type": "message_start", "message": {"id": "m", "model": "theirs"}})
    found = deltas(dialect, start, *stream)
    assert isinstance(found[0], StreamStart)
    return found[1:]


def block(index: int, content: dict[str, Any]) -> dict[str, Any]:
    return {"type": "content_block_start", "index": index, "content_block": content}


def block_delta(index: int, **delta: Any) -> dict[str, Any]:
    return {"type": "content_block_delta", "index": index, "delta": delta}


def failure(read: Any, *arguments: Any) -> SvcError:
    with pytest.raises(SvcError) as caught:
        read(*arguments)
    return caught.value


# complete responses of an Anthropic upstream


def test_anthropic_response_all_block_types_are_decoded() -> None:
    found = anthropic.decode_response(
        message(
            {"type": "thinking", "thinking": "hm", "signature": "s"},
            {"type": "thinking", "thinking": "unsigned"},
            {"type": "redacted_thinking", "data": "d"},
            {"type": "text", "text": "a"},
            {"type": "text", "text": ""},
            {"type": "tool_use", "id": "t1", "name": "f", "input": {"a": 1}},
            {"type": "tool_use", "id": "t2", "name": "g"},
            {"type": "server_tool_use", "id": "t3", "name": "search", "input": {}},
            stop_reason="tool_use",
        )
    )
    assert found.parts == [
        ThinkingPart("hm", "s"),
        ThinkingPart("unsigned"),
        RedactedThinkingPart("d"),
        TextPart("a"),
        ToolCall("t1", "f", '{"a":1}'),
        ToolCall("t2", "g", "{}"),
    ]
    assert (found.id, found.model, found.finish, found.usage) == ("msg_1", "theirs", "tool_calls", USAGE)


@pytest.mark.parametrize("usage", [None, {}, {"input_tokens": 3}, {"input_tokens": None, "output_tokens": 2}], ids=str)
def test_anthropic_response_without_both_counts_has_no_usage(usage: dict[str, int | None] | None) -> None:
    raw = message({"type": "text", "text": "a"}, usage=usage)
    assert anthropic.decode_response(raw).usage is None
    assert pass_through_response(anthropic, raw).usage is None


@pytest.mark.parametrize("missing", ["id", "name"])
def test_anthropic_response_tool_call_without_id_or_name_is_an_error(missing: str) -> None:
    call = {"type": "tool_use", "id": "t", "name": "f", "input": {}}
    del call[missing]
    error = failure(anthropic.decode_response, message(call))
    assert error.message == "The provider's response has a tool call without a name."


def test_anthropic_response_error_object_raises_matching_error() -> None:
    raw = json.dumps({"type": "error", "error": {"type": "rate_limit_error", "message": "slow down"}}).encode()
    error = failure(anthropic.decode_response, raw)
    assert isinstance(error, RateLimited)
    assert error.message == "slow down"
    error = failure(anthropic.decode_response, b'{"type":"message"}')
    assert isinstance(error, ProviderFailed)
    assert error.message == "The provider sent an invalid response."


@pytest.mark.parametrize(
    ("stop_reason", "finish_reason"),
    [
        ("end_turn", "stop"),
        ("stop_sequence", "stop"),
        ("pause_turn", "stop"),
        ("max_tokens", "length"),
        ("model_context_window_exceeded", "length"),
        ("tool_use", "tool_calls"),
        ("refusal", "content_filter"),
        ("invented", "stop"),
        (None, "stop"),
    ],
)
def test_anthropic_response_stop_reason_maps_to_finish_reason(stop_reason: str | None, finish_reason: str) -> None:
    assert to_finish_reason(stop_reason) == finish_reason
    assert anthropic.decode_response(message(stop_reason=stop_reason)).finish == finish_reason


# complete responses for an Anthropic client


def test_anthropic_client_all_parts_are_encoded() -> None:
    body = written(
        anthropic,
        ThinkingPart("hm", "s"),
        ThinkingPart("unsigned"),
        RedactedThinkingPart("d"),
        TextPart("a"),
        TextPart(""),
        ToolCall("t1", "f", '{"a":1}'),
        ToolCall("t2", "g", " "),
        finish="tool_calls",
    )
    assert body == {
        "id": "id1",
        "type": "message",
        "role": "assistant",
        "model": "theirs",
        "content": [
            {"type": "thinking", "thinking": "hm", "signature": "s"},
            {"type": "thinking", "thinking": "unsigned", "signature": UNSIGNED_MARK},
            {"type": "redacted_thinking", "data": "d"},
            {"type": "text", "text": "a"},
            {"type": "tool_use", "id": "t1", "name": "f", "input": {"a": 1}},
            {"type": "tool_use", "id": "t2", "name": "g", "input": {}},
        ],
        "stop_reason": "tool_use",
        "stop_sequence": None,
        "usage": {name: count for name, count in ANTHROPIC_USAGE.items() if name != "output_tokens_details"},
    }


@pytest.mark.parametrize(
    ("finish", "parts", "expected"),
    [
        ("stop", [TextPart("a")], "end_turn"),
        ("stop", [ToolCall("t", "f", "{}")], "tool_use"),
        ("stop", [RefusalPart("no")], "refusal"),
        ("stop", [RefusalPart("no"), ToolCall("t", "f", "{}")], "tool_use"),
        ("length", [ToolCall("t", "f", '{"a"')], "max_tokens"),
        ("content_filter", [TextPart("a")], "refusal"),
        ("tool_calls", [ToolCall("t", "f", "{}")], "tool_use"),
    ],
)
def test_anthropic_client_finish_reason_maps_to_stop_reason(finish: str, parts: list[Any], expected: str) -> None:
    assert written(anthropic, *parts, finish=finish)["stop_reason"] == expected


def test_anthropic_client_tool_arguments_not_an_object_is_an_error() -> None:
    for arguments in ("[1]", '{"a":', "x"):
        error = failure(anthropic.encode_response, response(ToolCall("t", "f", arguments)))
        assert error.message == "The model called a tool with arguments that are not a JSON object."


def test_anthropic_usage_cached_tokens_above_input_is_never_negative() -> None:
    assert encode_usage(None) == {
        "input_tokens": 0,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": 0,
        "output_tokens": 0,
    }
    assert encode_usage(TokenUsage(5, 1, cached_tokens=9))["input_tokens"] == 0
    assert to_stop_reason("stop", has_tool_calls=False, has_refusal=False) == "end_turn"


# complete responses of an OpenAI upstream


def test_openai_response_all_parts_are_decoded() -> None:
    call = {"id": "t1", "type": "function", "function": {"name": "f", "arguments": '{"a":1}'}}
    fields = {"content": "a", "refusal": "no", "reasoning_content": "hm", "tool_calls": [call]}
    counts = {
        "prompt_tokens": 100,
        "completion_tokens": 20,
        "total_tokens": 120,
        "prompt_tokens_details": {"cached_tokens": 30},
        "completion_tokens_details": {"reasoning_tokens": 5},
    }
    found = openai.decode_response(completion(fields, usage=counts))
    assert found.parts == [ThinkingPart("hm"), TextPart("a"), RefusalPart("no"), ToolCall("t1", "f", '{"a":1}')]
    assert (found.id, found.created, found.model, found.finish) == ("c1", 7, "theirs", "stop")
    assert found.usage == TokenUsage(100, 20, 30, 0, 5)


def test_openai_response_thinking_is_read_from_either_field() -> None:
    assert openai.decode_response(completion({"content": "a", "reasoning": "hm"})).parts[0] == ThinkingPart("hm")
    both = {"content": "a", "reasoning": "second", "reasoning_content": "first"}
    assert openai.decode_response(completion(both)).parts[0] == ThinkingPart("first")
    assert openai.decode_response(completion({"content": "a", "reasoning": 7})).parts == [TextPart("a")]
    assert openai.decode_response(completion({"content": "a", "reasoning": ""})).parts == [TextPart("a")]


def test_openai_response_error_object_raises_matching_error() -> None:
    error = failure(openai.decode_response, b'{"error":{"type":"invalid_request_error","message":"bad"}}')
    assert isinstance(error, InvalidRequest)
    assert error.message == "bad"


# complete responses for an OpenAI client


def test_openai_client_all_parts_are_encoded() -> None:
    body = written(
        openai,
        ThinkingPart("hm", "s"),
        ThinkingPart("unsigned"),
        RedactedThinkingPart("d"),
        TextPart("a"),
        TextPart("b"),
        RefusalPart("no"),
        ToolCall("t1", "f", '{"a":1}'),
        finish="tool_calls",
    )
    assert body["choices"] == [
        {
            "index": 0,
            "logprobs": None,
            "finish_reason": "tool_calls",
            "message": {
                "role": "assistant",
                "content": "ab",
                "refusal": "no",
                "reasoning_content": "hmunsigned",
                "thinking_blocks": [
                    {"index": 0, "type": "thinking", "thinking": "hm", "signature": "s"},
                    {"index": 1, "type": "redacted_thinking", "data": "d"},
                ],
                "tool_calls": [{"id": "t1", "type": "function", "function": {"name": "f", "arguments": '{"a":1}'}}],
            },
        }
    ]
    assert body["usage"] == {
        "prompt_tokens": 100,
        "completion_tokens": 20,
        "total_tokens": 120,
        "prompt_tokens_details": {"cached_tokens": 30},
        "completion_tokens_details": {"reasoning_tokens": 5},
    }
    assert (body["id"], body["object"], body["created"], body["model"]) == ("id1", "chat.completion", 7, "theirs")


def test_openai_client_content_is_null_only_with_tool_calls_or_refusal() -> None:
    assert written(openai)["choices"][0]["message"]["content"] == ""
    assert written(openai, ToolCall("t", "f", "{}"))["choices"][0]["message"]["content"] is None
    assert written(openai, RefusalPart("no"))["choices"][0]["message"]["content"] is None
    assert "usage" not in written(openai, usage=None)


def test_openai_client_lone_surrogate_raises_provider_failed() -> None:
    error = failure(openai.encode_response, response(TextPart("\ud800")))
    assert isinstance(error, ProviderFailed)
    assert error.message == "The provider sent an invalid response."


# streams of an Anthropic upstream


def test_anthropic_stream_all_event_types_are_decoded() -> None:
    found = deltas(
        anthropic,
        *events(
            {"type": "message_start", "message": {"id": "m", "model": "theirs", "usage": {"input_tokens": 3}}},
            {"type": "ping"},
            block(0, {"type": "thinking", "thinking": "h"}),
            block_delta(0, type="thinking_delta", thinking="m"),
            block_delta(0, type="thinking_delta", thinking=""),
            block_delta(0, type="signature_delta", signature="s"),
            block_delta(0, type="signature_delta", signature=""),
            {"type": "content_block_stop", "index": 0},
            block(1, {"type": "redacted_thinking", "data": "d"}),
            block(2, {"type": "text", "text": "a"}),
            block_delta(2, type="text_delta", text="b"),
            block_delta(2, type="text_delta", text=""),
            block_delta(2, type="citations_delta", citation={}),
            block(3, {"type": "tool_use", "id": "t1", "name": "f", "input": {}}),
            block_delta(3, type="input_json_delta", partial_json='{"a"'),
            block_delta(3, type="input_json_delta", partial_json=""),
            {"type": "content_block_stop", "index": 3},
            block(4, {"type": "tool_use", "id": "t2", "name": "g"}),
            {"type": "content_block_stop", "index": 4},
            block(5, {"type": "server_tool_use", "id": "t3", "name": "search"}),
            block_delta(5, type="input_json_delta", partial_json="{}"),
            {"type": "content_block_stop", "index": 5},
            {"type": "message_delta", "delta": {"stop_reason": "tool_use"}, "usage": {"output_tokens": 9}},
            {"type": "invented_event", "delta": 7},
        ),
    )
    assert isinstance(found[0], StreamStart)
    assert (found[0].id, found[0].model, found[0].usage) == ("m", "theirs", TokenUsage(3))
    assert found[1:] == [
        ThinkingDelta("h"),
        ThinkingDelta("m"),
        SignatureDelta("s"),
        RedactedDelta("d"),
        TextDelta("a"),
        TextDelta("b"),
        ToolCallStart(0, "t1", "f"),
        ToolCallArguments(0, '{"a"'),
        ToolCallStart(1, "t2", "g"),
        ToolCallArguments(1, "{}"),
        UsageUpdate(TokenUsage(3, 9)),
        StreamFinish("tool_calls"),
    ]


def test_anthropic_stream_usage_replaces_earlier_counts_once_both_are_known() -> None:
    stop = {"type": "message_delta", "delta": {"stop_reason": "end_turn"}}
    assert started(anthropic, *events({**stop, "usage": {"output_tokens": 9}})) == [StreamFinish("stop")]
    later = events(
        {"type": "message_delta", "delta": {}, "usage": {"input_tokens": 5, "output_tokens": 1}},
        {"type": "message_delta", "delta": {}, "usage": {"output_tokens": 4, "cache_read_input_tokens": 2}},
    )
    assert started(anthropic, *later) == [UsageUpdate(TokenUsage(5, 1)), UsageUpdate(TokenUsage(7, 4, 2))]


def test_anthropic_stream_message_stop_completes_stream() -> None:
    reader = anthropic.create_stream_decoder()
    for event in events({"type": "message_start", "message": {}}, {"type": "message_delta", "delta": {}}):
        reader.decode(event)
    assert not reader.is_complete
    reader.decode(events({"type": "message_stop"})[0])
    assert reader.is_complete


@pytest.mark.parametrize(
    ("event", "words"),
    [
        ({"type": "content_block_delta", "index": 0}, NOT_UNDERSTOOD),
        ({"type": "content_block_start", "index": 0}, NOT_UNDERSTOOD),
        ({"type": "message_start"}, "The provider's stream has no start event."),
        (block_delta(0, type="input_json_delta", partial_json="{"), "The provider sent tool arguments without a tool."),
        (block(0, {"type": "tool_use", "name": "f"}), "The provider sent a tool call without a name."),
        (block(0, {"type": "tool_use", "id": "t"}), "The provider sent a tool call without a name."),
        ({"type": "message_delta", "delta": 7}, "The provider sent an invalid response."),
    ],
)
def test_anthropic_stream_malformed_event_is_an_error(event: dict[str, Any], words: str) -> None:
    assert failure(started, anthropic, *events(event)).message == words


def test_anthropic_stream_error_event_yields_stream_error() -> None:
    event = {"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}}
    assert started(anthropic, *events(event)) == [StreamError("The provider failed: Overloaded", 502)]
    limited = {"type": "error", "error": {"type": "rate_limit_error"}}
    (failed,) = started(anthropic, *events(limited))
    assert isinstance(failed, StreamError)
    assert failed.status == 429


# streams of an OpenAI upstream


def test_openai_stream_all_chunk_types_are_decoded() -> None:
    first = {"index": 0, "id": "t1", "type": "function", "function": {"name": "f", "arguments": ""}}
    rest = {"index": 0, "function": {"arguments": '{"a"'}}
    found = deltas(
        openai,
        chunk({"role": "assistant", "content": ""}),
        chunk({"reasoning_content": "hm"}),
        chunk({"reasoning": "hm2"}),
        chunk({"content": "a"}),
        chunk({"content": "b", "role": "assistant"}),
        chunk({"refusal": "no"}),
        chunk({"tool_calls": [first]}),
        chunk({"tool_calls": [rest]}),
        chunk({}, "tool_calls"),
        chunk(usage={"prompt_tokens": 3, "completion_tokens": 4, "total_tokens": 7}),
        b"data: [DONE]\n\n",
    )
    assert found == [
        StreamStart("c1", "theirs", 7),
        ThinkingDelta("hm"),
        ThinkingDelta("hm2"),
        TextDelta("a"),
        TextDelta("b"),
        RefusalDelta("no"),
        ToolCallStart(0, "t1", "f"),
        ToolCallArguments(0, '{"a"'),
        StreamFinish("tool_calls"),
        UsageUpdate(TokenUsage(3, 4)),
    ]


def test_openai_stream_done_marker_completes_stream() -> None:
    reader = openai.create_stream_decoder()
    reader.decode(chunk({"content": "a"}, "stop"))
    assert not reader.is_complete
    assert reader.decode(b"data: [DONE] \n\n") == []
    assert reader.is_complete


def test_openai_stream_vendor_usage_is_read_and_missing_id_is_filled_in() -> None:
    vendor = chunk({}, x_groq={"usage": {"prompt_tokens": 3, "completion_tokens": 4}})
    assert started(openai, vendor) == [UsageUpdate(TokenUsage(3, 4))]
    (start,) = deltas(openai, b'data: {"choices":[{"delta":{}}]}\n\n')
    assert isinstance(start, StreamStart)
    assert start.id.startswith("chatcmpl-")
    assert (start.model, start.created > 10**9) == ("unknown", True)


def test_openai_stream_arguments_before_name_are_buffered() -> None:
    early = {"index": 0, "function": {"arguments": "{"}}
    named = {"index": 0, "function": {"name": "f", "arguments": "}"}}
    call, arguments = started(openai, chunk({"tool_calls": [early]}), chunk({"tool_calls": [named]}))
    assert isinstance(call, ToolCallStart)
    assert (call.index, call.name, call.id.startswith("call_")) == (0, "f", True)
    assert arguments == ToolCallArguments(0, "{}")


def test_openai_stream_events_without_data_yield_no_deltas() -> None:
    assert deltas(openai, b": comment\n\n", b"event: ping\ndata: {}\n\n", b"data: \n\n") == []
    assert started(openai, chunk()) == []


@pytest.mark.parametrize(
    ("event", "words"),
    [
        (b"data: {}\n\n", "The provider sent an invalid response."),
        (b"data: {\n\n", "The provider sent an invalid response."),
        (chunk({"tool_calls": [7]}), "The provider sent a tool call that is not an object."),
        (chunk({}, "error"), "The provider failed during its response."),
    ],
)
def test_openai_stream_malformed_chunk_is_an_error(event: bytes, words: str) -> None:
    assert failure(deltas, openai, event).message == words


def test_openai_stream_finish_with_unnamed_tool_call_is_an_error() -> None:
    early = {"index": 0, "function": {"arguments": "{"}}
    error = failure(deltas, openai, chunk({"tool_calls": [early]}), chunk({}, "tool_calls"))
    assert error.message == "The provider sent a tool call without a name."


@pytest.mark.parametrize(
    "event",
    [
        b'data: {"error":{"message":"broke"}}\n\n',
        b'event: error\ndata: {"message":"broke"}\n\n',
        b'data: {"object":"error","message":"broke"}\n\n',
    ],
)
def test_openai_stream_error_of_any_shape_yields_stream_error(event: bytes) -> None:
    assert deltas(openai, event) == [StreamError("The provider failed: broke", 502)]


# streams for clients


def test_openai_client_stream_thinking_block_is_sent_when_complete() -> None:
    writer = openai.create_stream_encoder(include_usage=True)
    out = b"".join(
        writer.encode(delta)
        for delta in (
            StreamStart("id1", "theirs", 7),
            ThinkingDelta("h"),
            ThinkingDelta("m"),
            SignatureDelta("s"),
            RedactedDelta("d"),
            RefusalDelta("no"),
            ToolCallStart(0, "t", "f"),
            ToolCallArguments(0, "{}"),
            StreamFinish("tool_calls"),
            UsageUpdate(USAGE),
        )
    )
    out += writer.encode_end()
    bodies = [json.loads(line[6:]) for line in out.decode().splitlines() if line.startswith("data: {")]
    assert [body["choices"][0]["delta"] for body in bodies if body["choices"]] == [
        {"role": "assistant", "content": ""},
        {"reasoning_content": "h"},
        {"reasoning_content": "m"},
        {"thinking_blocks": [{"index": 0, "type": "thinking", "thinking": "hm", "signature": "s"}]},
        {"thinking_blocks": [{"index": 1, "type": "redacted_thinking", "data": "d"}]},
        {"refusal": "no"},
        {"tool_calls": [{"index": 0, "id": "t", "type": "function", "function": {"name": "f", "arguments": ""}}]},
        {"tool_calls": [{"index": 0, "function": {"arguments": "{}"}}]},
        {},
    ]
    assert [body["choices"][0]["finish_reason"] for body in bodies[:-1]] == [None] * 8 + ["tool_calls"]
    assert bodies[-1]["usage"]["total_tokens"] == 120
    assert all(body["usage"] is None for body in bodies[:-1])
    assert {body["id"] for body in bodies} == {"id1"}
    assert out.endswith(b"data: [DONE]\n\n")


def test_openai_client_stream_without_include_usage_omits_usage() -> None:
    writer = openai.create_stream_encoder(include_usage=False)
    out = writer.encode(StreamStart("id1", "theirs", 7, USAGE)) + writer.encode(TextDelta("a")) + writer.encode_end()
    assert b"usage" not in out
    assert b'"finish_reason":"stop"' in out


def test_anthropic_client_stream_has_one_open_block_at_a_time() -> None:
    writer = anthropic.create_stream_encoder(include_usage=True)
    out = b"".join(
        writer.encode(delta)
        for delta in (
            StreamStart("id1", "theirs", 7, TokenUsage(60)),
            ThinkingDelta("hm"),
            SignatureDelta("s"),
            RedactedDelta("d"),
            TextDelta("a"),
            TextDelta("b"),
            RefusalDelta("no"),
            ToolCallStart(0, "t", "f"),
            ToolCallArguments(0, "{}"),
            UsageUpdate(USAGE),
            StreamFinish("stop"),
        )
    )
    out += writer.encode_end()
    bodies = [json.loads(line[6:]) for line in out.decode().splitlines() if line.startswith("data: ")]
    shown = [
        (
            body["type"],
            body.get("index"),
            body.get("content_block", {}).get("type") or body.get("delta", {}).get("type"),
        )
        for body in bodies
    ]
    assert shown == [
        ("message_start", None, None),
        ("content_block_start", 0, "thinking"),
        ("content_block_delta", 0, "thinking_delta"),
        ("content_block_delta", 0, "signature_delta"),
        ("content_block_stop", 0, None),
        ("content_block_start", 1, "redacted_thinking"),
        ("content_block_stop", 1, None),
        ("content_block_start", 2, "text"),
        ("content_block_delta", 2, "text_delta"),
        ("content_block_delta", 2, "text_delta"),
        ("content_block_delta", 2, "text_delta"),
        ("content_block_stop", 2, None),
        ("content_block_start", 3, "tool_use"),
        ("content_block_delta", 3, "input_json_delta"),
        ("content_block_stop", 3, None),
        ("message_delta", None, None),
        ("message_stop", None, None),
    ]
    assert bodies[0]["message"]["usage"]["input_tokens"] == 60
    assert bodies[-2]["delta"] == {"stop_reason": "tool_use", "stop_sequence": None}
    assert bodies[-2]["usage"]["output_tokens"] == 20


def test_dialects_paths_and_auth_headers_follow_api_references() -> None:
    paths = [(one.name, one.chat_path, one.models_path) for one in (openai, anthropic)]
    assert paths == [
        ("openai", "/chat/completions", "/models"),
        ("anthropic", "/v1/messages", "/v1/models"),
    ]
    assert openai.auth_headers("k") == (("authorization", "Bearer k"),)
    assert anthropic.auth_headers("k") == (("x-api-key", "k"), ("anthropic-version", "2023-06-01"))
