"""OpenAI's deprecated `function_call`: unchanged within the dialect, a tool call in the other one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.codecs import create_stream_transform, pass_through_request, pass_through_response

from svc.dialects import anthropic, openai
from svc.dialects.base import ModelProfile
from svc.errors import InvalidRequest, ProviderFailed

GOLDEN = Path(__file__).parents[3] / "golden"
ANSWER = (GOLDEN / "answers" / "function-call.openai.json").read_bytes()
STREAM = (GOLDEN / "streams" / "function-call.openai.sse").read_bytes().replace(b'": ', b'":').replace(b', "', b',"')
"""Compact, so that its chunks can be recognised in the next stream."""
DONE = b"data: [DONE]\n\n"


def changed(**message: Any) -> bytes:
    body = json.loads(ANSWER)
    body["choices"][0]["message"].update(message)
    return json.dumps(body).encode()


def events_of(out: bytes) -> list[Any]:
    lines = [line.removeprefix("data: ") for line in out.decode().splitlines() if line.startswith("data: {")]
    return [json.loads(line) for line in lines]


def test_answer_with_function_call_same_dialect_is_unchanged() -> None:
    passed = pass_through_response(openai.dialect, ANSWER)
    assert passed.body is ANSWER
    assert passed.finish_reason == "tool_calls"


def test_answer_with_function_call_that_needs_repair_keeps_it() -> None:
    body = json.loads(ANSWER)
    del body["object"], body["choices"][0]["finish_reason"]
    made = json.loads(pass_through_response(openai.dialect, json.dumps(body).encode()).body)
    assert made == json.loads(ANSWER)


@pytest.mark.parametrize("learned", [True, False])
@pytest.mark.parametrize("include_usage", [True, False])
@pytest.mark.parametrize("size", [1, 50, 10_000])
def test_stream_with_function_call_same_dialect_is_unchanged(learned: bool, include_usage: bool, size: int) -> None:
    target = ModelProfile("m")
    if learned:
        earlier = create_stream_transform(openai.dialect, openai.dialect, include_usage=include_usage, profile=target)
        assert earlier.feed(STREAM.replace(b"chatcmpl-1", b"chatcmpl-0")).endswith(DONE)
        assert target.chunk_caches
    pipe = create_stream_transform(openai.dialect, openai.dialect, include_usage=include_usage, profile=target)
    out = b"".join(pipe.feed(STREAM[at : at + size]) for at in range(0, len(STREAM), size))
    events = STREAM.split(b"\n\n")
    usage = [event for event in events if b'"choices":[]' in event]
    assert len(usage) == 1
    assert out == (STREAM if include_usage else b"\n\n".join(event for event in events if event not in usage))
    assert (pipe.has_ended, pipe.error, pipe.finish_reason) == (True, None, "tool_calls")


def test_answer_across_dialects_has_the_call_as_content() -> None:
    made = json.loads(anthropic.dialect.encode_response(openai.dialect.decode_response(ANSWER)))
    [block] = made["content"]
    assert (made["stop_reason"], block["type"], block["name"]) == ("tool_use", "tool_use", "weather")
    assert block["input"] == {"city": "Oslo"}
    assert block["id"].startswith("call_")


def test_stream_across_dialects_has_the_call_as_content() -> None:
    pipe = create_stream_transform(openai.dialect, anthropic.dialect, include_usage=True)
    events = events_of(pipe.feed(STREAM))
    assert [event["type"] for event in events] == [
        *("message_start", "content_block_start", *["content_block_delta"] * 3, "content_block_stop"),
        *("message_delta", "message_stop"),
    ]
    assert events[1]["content_block"]["name"] == "weather"
    arguments = "".join(event["delta"]["partial_json"] for event in events[2:5])
    assert json.loads(arguments) == {"city": "Oslo"}
    assert events[-2]["delta"]["stop_reason"] == "tool_use"


def test_function_call_that_repeats_a_tool_call_is_one_call() -> None:
    function = {"name": "weather", "arguments": "{}"}
    calls = [{"id": "call_1", "type": "function", "function": function}]
    made = json.loads(anthropic.dialect.encode_response(openai.dialect.decode_response(changed(tool_calls=calls))))
    assert [block["id"] for block in made["content"]] == ["call_1"]
    first, *rest = STREAM.split(b"\n\n")
    body = json.loads(first[6:])
    body["choices"][0]["delta"]["tool_calls"] = [{"index": 0, **calls[0]}]
    raw = b"data: " + json.dumps(body).encode() + b"\n\n" + b"\n\n".join(rest)
    events = events_of(create_stream_transform(openai.dialect, anthropic.dialect, include_usage=True).feed(raw))
    deltas = [event["delta"] for event in events if event["type"] == "content_block_delta"]
    assert [delta["partial_json"] for delta in deltas] == ["{}"]


def test_function_call_without_a_name_across_dialects_is_the_providers_failure() -> None:
    with pytest.raises(ProviderFailed):
        openai.dialect.decode_response(changed(function_call={"arguments": "{}"}))


def test_request_with_function_call_in_its_history_across_dialects_is_refused() -> None:
    call = {"role": "assistant", "content": None, "function_call": {"name": "f", "arguments": "{}"}}
    raw = json.dumps({"model": "m", "messages": [{"role": "user", "content": "hi"}, call]}).encode()
    with pytest.raises(InvalidRequest) as caught:
        openai.dialect.decode_request(raw)
    assert caught.value.param == "messages[1].function_call"
    assert pass_through_request(openai.dialect, raw, ModelProfile("m")).body is raw
