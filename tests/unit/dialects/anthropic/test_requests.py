"""Requests of Anthropic clients, and requests to Anthropic upstreams: what is checked, filled in, left out, refused."""

from __future__ import annotations

import json
from typing import Any

import pytest
from tests.codecs import decode_routing_info, pass_through_request

from svc.dialects import anthropic, openai
from svc.dialects.base import ModelProfile
from svc.errors import InvalidRequest
from svc.wire.chat import UpstreamOverrides

USER = {"role": "user", "content": "hi"}
TOOL = {"type": "function", "function": {"name": "f"}}


def asked(**fields: Any) -> bytes:
    return json.dumps({"model": "m", "messages": [USER], **fields}).encode()


def sent(*, limit: int = 4096, **fields: Any) -> tuple[dict[str, Any], tuple[str, ...]]:
    """What an Anthropic upstream gets of an OpenAI client's request."""
    request = openai.dialect.decode_request(asked(**fields))
    built = anthropic.dialect.encode_request(request, ModelProfile("claude", max_output_tokens=limit))
    return json.loads(built.body), built.dropped_fields


def refused(**fields: Any) -> InvalidRequest:
    with pytest.raises(InvalidRequest) as caught:
        sent(**fields)
    return caught.value


def test_the_limit_is_filled_in() -> None:
    assert sent(limit=8192)[0]["max_tokens"] == 8192
    assert sent(max_tokens=5)[0]["max_tokens"] == 5
    assert sent(max_completion_tokens=6)[0]["max_tokens"] == 6


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"n": 2}, "n"),
        ({"logprobs": True}, "logprobs"),
        ({"top_logprobs": 2}, "top_logprobs"),
        ({"logit_bias": {"1": 1}}, "logit_bias"),
        ({"response_format": {"type": "json_object"}}, "response_format.type"),
        ({"response_format": {"type": "json_schema"}}, "response_format.json_schema"),
        ({"response_format": {"type": "json_schema", "json_schema": {}}}, "response_format.json_schema.schema"),
        ({"tools": [{"type": "web"}]}, "tools[0].type"),
        ({"tool_choice": "maybe"}, "tool_choice"),
        ({"messages": [{"role": "function", "name": "f", "content": "x"}]}, "messages[0].role"),
        ({"messages": [{"role": "tool", "content": "x"}]}, "messages[0].tool_call_id"),
        ({"messages": [{"role": "user", "content": [{"type": "input_audio"}]}]}, "messages[0].content[0].type"),
        (
            {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "file:///x"}}]}]},
            "messages[0].content[0].image_url.url",
        ),
        ({"messages": [{"role": "user", "content": ""}]}, "messages"),
    ],
)
def test_what_has_no_word_there_is_refused(fields: dict[str, Any], param: str) -> None:
    assert refused(**fields).param == param


@pytest.mark.parametrize("arguments", ["{", "[1]", "1", "nonsense"])
def test_arguments_that_are_no_object(arguments: str) -> None:
    call = {"id": "a", "type": "function", "function": {"name": "f", "arguments": arguments}}
    error = refused(messages=[USER, {"role": "assistant", "content": None, "tool_calls": [call]}])
    assert error.param == "messages[1].tool_calls[0].function.arguments"


def test_hints_are_named() -> None:
    body, dropped = sent(seed=1, presence_penalty=0.5, store=True, metadata={"a": "b"}, nonsense=3, stop=["\n", "END"])
    assert set(dropped) == {"seed", "presence_penalty", "store", "metadata", "nonsense", "stop"}
    assert body["stop_sequences"] == ["END"]
    assert body.keys() == {"model", "max_tokens", "messages", "stop_sequences"}


@pytest.mark.parametrize(
    ("choice", "made"),
    [
        ("auto", {"type": "auto"}),
        ("none", {"type": "none"}),
        ("required", {"type": "any"}),
        ({"type": "function", "function": {"name": "f"}}, {"type": "tool", "name": "f"}),
    ],
)
def test_tool_choice(choice: Any, made: dict[str, Any]) -> None:
    assert sent(tools=[TOOL], tool_choice=choice)[0]["tool_choice"] == made
    assert "tool_choice" not in sent(tool_choice="auto")[0]


def test_thinking_without_a_signature_does_not_go_back() -> None:
    messages = [USER, {"role": "assistant", "content": "x", "reasoning_content": "hm"}, USER]
    assert sent(messages=messages)[0]["messages"][1] == {"role": "assistant", "content": "x"}


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({}, "max_tokens"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": 5, "temperature": 1.5}, "temperature"),
        ({"max_tokens": 5, "stream": "yes"}, "stream"),
        ({"max_tokens": 5, "messages": []}, "messages"),
        ({"max_tokens": 5, "messages": [{"role": "tool", "content": "x"}]}, "messages[0].role"),
        ({"max_tokens": 5, "messages": [{"role": "user"}]}, "messages[0].content"),
    ],
)
def test_the_head_of_an_anthropic_request(fields: dict[str, Any], param: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        decode_routing_info(anthropic.dialect, asked(**fields))
    assert caught.value.param == param


@pytest.mark.parametrize(
    ("block", "param"),
    [
        ({"type": "search_result"}, "messages[0].content[0].type"),
        ({"type": "document"}, "messages[0].content[0].source"),
        ({"type": "text"}, "messages[0].content[0].text"),
        ({"type": "image", "source": {"type": "file"}}, "messages[0].content[0].source"),
        ({"type": "tool_result"}, "messages[0].content[0].tool_use_id"),
        ({"type": "tool_result", "tool_use_id": "a", "content": 5}, "messages[0].content[0].content"),
    ],
)
def test_blocks_that_no_other_dialect_has(block: dict[str, Any], param: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        anthropic.dialect.decode_request(asked(max_tokens=5, messages=[{"role": "user", "content": [block]}]))
    assert caught.value.param == param


def test_tools_of_the_provider_itself_are_refused() -> None:
    with pytest.raises(InvalidRequest) as caught:
        anthropic.dialect.decode_request(asked(max_tokens=5, tools=[{"type": "web_search_20250305", "name": "web"}]))
    assert caught.value.param == "tools[0].type"


def test_the_same_dialect_keeps_the_bytes() -> None:
    raw = asked(max_tokens=5, top_k=3, new_field=1, stream=True)
    assert pass_through_request(anthropic.dialect, raw, ModelProfile("m")).body is raw
    assert json.loads(pass_through_request(anthropic.dialect, raw, ModelProfile("x")).body)["model"] == "x"
    quirks = UpstreamOverrides(rejects=("top_k",))
    built = pass_through_request(anthropic.dialect, raw, ModelProfile("m", overrides=quirks))
    assert "top_k" not in json.loads(built.body)
    assert built.dropped_fields == ("top_k",)


def test_a_limit_that_the_upstream_has_under_the_newer_name() -> None:
    request = anthropic.dialect.decode_request(asked(max_tokens=5))
    built = openai.dialect.encode_request(
        request, ModelProfile("o", overrides=UpstreamOverrides(rejects=("max_tokens",)))
    )
    assert json.loads(built.body)["max_completion_tokens"] == 5
