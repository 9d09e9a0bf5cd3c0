"""OpenAI's deprecated `function_call`: unchanged in passthrough, a tool call after translation."""

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
RESPONSE = (GOLDEN / "responses" / "function-call.openai.json").read_bytes()
STREAM = (GOLDEN / "streams" / "function-call.openai.sse").read_bytes().replace(b'": ', b'":').replace(b', "', b',"')
"""Compact, so that its chunks can be recognised in the next stream."""
DONE = b"data: [DONE]\n\n"


def changed(**message: Any) -> bytes:
    body = json.loads(RESPONSE)
    body["choices"][0]["message"].update(message)
    return json.dumps(body).encode()


def events_of(out: bytes) -> list[Any]:
    lines = [line.removeprefix("data: ") for line in out.decode().splitlines() if line.startswith("data: {")]
    return [json.loads(line) for line in lines]


def test_response_function_call_same_dialect_is_unchanged() -> None:
    passed = pass_through_response(openai.dialect, RESPONSE)
    assert passed.body is RESPONSE
    assert passed.finish_reason == "tool_calls"


def test_response_repair_keeps_function_call() -> None:
    body = json.loads(RESPONSE)
    del body["object"], body["choices"][0]["finish_reason"]
    made = json.loads(pass_through_response(openai.dialect, json.dumps(body).encode()).body)
    assert made == json.loads(RESPONSE)


@pytest.mark.parametrize("include_usage", [True, False])
@pytest.mark.parametrize("size", [1, 50, 10_000])
def test_stream_function_call_same_dialect_is_unchanged(include_usage: bool, size: int) -> None:
    target = ModelProfile("m")
    transform = create_stream_transform(openai.dialect, openai.dialect, include_usage=include_usage, profile=target)
    out = b"".join(transform.feed(STREAM[at : at + size]) for at in range(0, len(STREAM), size))
    events = STREAM.split(b"\n\n")
    usage = [event for event in events if b'"choices":[]' in event]
    assert len(usage) == 1
    assert out == (STREAM if include_usage else b"\n\n".join(event for event in events if event not in usage))
    assert (transform.has_ended, transform.error, transform.finish_reason) == (True, None, "tool_calls")


def test_response_to_anthropic_function_call_becomes_tool_use() -> None:
    made = json.loads(anthropic.dialect.encode_response(openai.dialect.decode_response(RESPONSE)))
    [block] = made["content"]
    assert (made["stop_reason"], block["type"], block["name"]) == ("tool_use", "tool_use", "weather")
    assert block["input"] == {"city": "Oslo"}
    assert block["id"].startswith("call_")


def test_stream_to_anthropic_function_call_becomes_tool_use() -> None:
    transform = create_stream_transform(openai.dialect, anthropic.dialect, include_usage=True)
    events = events_of(transform.feed(STREAM))
    assert [event["type"] for event in events] == [
        *("message_start", "content_block_start", *["content_block_delta"] * 3, "content_block_stop"),
        *("message_delta", "message_stop"),
    ]
    assert events[1]["content_block"]["name"] == "weather"
    arguments = "".join(event["delta"]["partial_json"] for event in events[2:5])
    assert json.loads(arguments) == {"city": "Oslo"}
    assert events[-2]["delta"]["stop_reason"] == "tool_use"


def test_translation_function_call_repeating_tool_call_is_one_call() -> None:
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


def test_decode_response_function_call_without_name_raises_provider_failed() -> None:
    with pytest.raises(ProviderFailed):
        openai.dialect.decode_response(changed(function_call={"arguments": "{}"}))


def test_decode_request_function_call_in_history_raises_invalid_request() -> None:
    call = {"role": "assistant", "content": None, "function_call": {"name": "f", "arguments": "{}"}}
    raw = json.dumps({"model": "m", "messages": [{"role": "user", "content": "hi"}, call]}).encode()
    with pytest.raises(InvalidRequest) as caught:
        openai.dialect.decode_request(raw)
    assert caught.value.param == "messages[1].function_call"
    assert pass_through_request(openai.dialect, raw, ModelProfile("m")).body is raw
