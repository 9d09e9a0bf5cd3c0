"""Messages of OpenTelemetry's conventions, made of requests and responses."""

from __future__ import annotations

import json
from typing import Any

import pytest

from svc.gateway.observability.genai_messages import MAX_CONTENT_PART_CHARS, MAX_MESSAGES_BYTES, describe_content
from svc.gateway.observability.request_content import MAX_CONTENT_BODY_BYTES, ContentQuota, RequestContent
from svc.tracing.sampler import SampledTrace

TRACE = SampledTrace(b"1" * 16)
CALL = {"type": "tool_call", "name": "add", "arguments": {"a": 1}, "id": "c1"}
RESULT = {"type": "tool_call_response", "response": "2", "id": "c1"}


def describe(request: Any, *chunks: bytes, quota: ContentQuota | None = None) -> dict[str, Any]:
    body = request if isinstance(request, bytes) else json.dumps(request).encode()
    content = RequestContent(TRACE, body, quota or ContentQuota())
    for chunk in chunks:
        content.append(chunk)
    found = describe_content(content)
    return {name: json.loads(value) if isinstance(value, str) else value for name, value in found}


def events(*values: Any) -> bytes:
    return b"".join([b"data: " + json.dumps(value).encode() + b"\n\n" for value in values])


@pytest.mark.parametrize(
    "request_body",
    [
        {
            "messages": [
                {
                    "role": "assistant",
                    "content": None,
                    "tool_calls": [
                        {"id": "c1", "type": "function", "function": {"name": "add", "arguments": '{"a":1}'}}
                    ],
                },
                {"role": "tool", "tool_call_id": "c1", "content": "2"},
            ]
        },
        {
            "messages": [
                {"role": "assistant", "content": [{"type": "tool_use", "id": "c1", "name": "add", "input": {"a": 1}}]},
                {"role": "tool", "content": [], "tool_call_id": "c0"},
                {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c1", "content": "2"}]},
            ]
        },
        {
            "input": [
                {"type": "function_call", "call_id": "c1", "name": "add", "arguments": '{"a":1}'},
                {"type": "function_call_output", "call_id": "c1", "output": "2"},
            ]
        },
    ],
)
def test_messages_of_tool_calls_have_the_same_parts_for_each_api(request_body: Any) -> None:
    messages = describe(request_body)["gen_ai.input.messages"]
    assert messages[0] == {"role": "assistant", "parts": [CALL]}
    assert messages[-1]["parts"] == [RESULT]


def test_messages_of_chat_stream_join_text_and_tool_calls() -> None:
    def chunk(delta: Any, reason: str | None = None) -> Any:
        return {"choices": [{"index": 0, "delta": delta, "finish_reason": reason}]}

    stream = events(
        chunk({"role": "assistant", "content": "Wa"}),
        chunk({"content": "it"}),
        chunk({"tool_calls": [{"index": 0, "id": "c1", "function": {"name": "add", "arguments": ""}}]}),
        chunk({"tool_calls": [{"index": 0, "function": {"arguments": '{"a":1}'}}]}),
        chunk({}, "tool_calls"),
    )
    found = describe({}, *[stream[at : at + 7] for at in range(0, len(stream), 7)], b"data: [DONE]\n\n")
    assert found["gen_ai.output.messages"] == [
        {"role": "assistant", "parts": [{"type": "text", "content": "Wait"}, CALL], "finish_reason": "tool_call"}
    ]


def test_messages_of_interrupted_stream_end_with_error() -> None:
    stream = events(
        {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
        {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "Half"}},
    )
    (message,) = describe({}, stream)["gen_ai.output.messages"]
    assert (message["parts"], message["finish_reason"]) == ([{"type": "text", "content": "Half"}], "error")


def test_messages_beyond_the_bound_keep_the_last_parts() -> None:
    found = describe({"messages": [{"role": "user", "content": f"{number:05d}" * 2000} for number in range(40)]})
    messages = found["gen_ai.input.messages"]
    assert found["svc.content_shortened"] is True
    assert len(json.dumps(messages, ensure_ascii=False).encode()) <= MAX_MESSAGES_BYTES + 1000
    assert messages[-1]["parts"][0]["content"].startswith("00039")
    assert len(messages[-1]["parts"][0]["content"]) == MAX_CONTENT_PART_CHARS + 1
    assert 2 < len(messages) < 40


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"[1]",
        b"\xff",
        b'{"messages":7}',
        b'{"messages":[7,{"role":7,"content":7,"tool_calls":7}],"system":[7]}',
        b'{"input":[{"type":["x"]}],"instructions":7}',
        b'{"messages":[{"role":"user","content":[{"type":"tool_use","input":' + b"[" * 900 + b"]" * 900 + b"}]}]}",
    ],
)
def test_messages_of_invalid_bodies_raise_nothing(body: bytes) -> None:
    describe(body, body)
    describe(b"{}", b"data: " + body + b"\n\n")


def test_content_beyond_the_quota_is_left_out_and_its_memory_is_given_back() -> None:
    quota = ContentQuota(100)
    first = RequestContent(TRACE, b"x" * 60, quota)
    second = RequestContent(TRACE, b"y" * 60, quota)
    assert (first.has_omissions, second.has_omissions) == (False, True)
    second.append(b"z" * 40)
    assert b"".join(second.chunks) == b"z" * 40
    first.free()
    second.cancel()
    third = RequestContent(TRACE, b"x" * 100, quota)
    assert not third.has_omissions


def test_content_of_a_long_response_ends_at_the_bound_without_holes() -> None:
    content = RequestContent(TRACE, b"{}", ContentQuota())
    for size in (MAX_CONTENT_BODY_BYTES - 1, 2, 1):
        content.append(b"x" * size)
    assert content.response_bytes == MAX_CONTENT_BODY_BYTES - 1
    assert content.has_omissions
