"""Requests of Anthropic clients and to Anthropic upstreams: fields checked, filled in, dropped or rejected."""

from __future__ import annotations

import json
from typing import Any

import pytest
from tests.codecs import decode_routing_info, pass_through_request

from svc.dialects import anthropic, openai
from svc.dialects.anthropic.errors import encode_error as encode_error_body
from svc.dialects.base import ModelProfile
from svc.errors import InvalidRequest
from svc.wire.chat import UpstreamOverrides

USER = {"role": "user", "content": "hi"}
TOOL = {"type": "function", "function": {"name": "f"}}


def request_body(**fields: Any) -> bytes:
    return json.dumps({"model": "m", "messages": [USER], **fields}).encode()


def encode(
    *, limit: int = 4096, upstream_model: str = "claude", **fields: Any
) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Return the body for an Anthropic upstream and the dropped fields, for an OpenAI client's request."""
    request = openai.dialect.decode_request(request_body(**fields))
    built = anthropic.dialect.encode_request(request, ModelProfile(upstream_model, max_output_tokens=limit))
    return json.loads(built.body), built.dropped_fields


def encode_error(**fields: Any) -> InvalidRequest:
    with pytest.raises(InvalidRequest) as caught:
        encode(**fields)
    return caught.value


def test_encode_request_max_tokens_defaults_to_model_limit() -> None:
    assert encode(limit=8192)[0]["max_tokens"] == 8192
    assert encode(max_tokens=5)[0]["max_tokens"] == 5
    assert encode(max_completion_tokens=6)[0]["max_tokens"] == 6


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
def test_encode_request_unsupported_field_raises_invalid_request(fields: dict[str, Any], param: str) -> None:
    assert encode_error(**fields).param == param


@pytest.mark.parametrize("arguments", ["{", "[1]", "1", "nonsense"])
def test_encode_request_tool_arguments_not_an_object_raises_invalid_request(arguments: str) -> None:
    call = {"id": "a", "type": "function", "function": {"name": "f", "arguments": arguments}}
    error = encode_error(messages=[USER, {"role": "assistant", "content": None, "tool_calls": [call]}])
    assert error.param == "messages[1].tool_calls[0].function.arguments"


def test_encode_request_unsupported_optional_fields_are_listed_as_dropped() -> None:
    body, dropped = encode(seed=1, presence_penalty=0.5, store=True, metadata={"a": "b"}, unknown=3, stop=["\n", "END"])
    assert set(dropped) == {"seed", "presence_penalty", "store", "metadata", "unknown", "stop"}
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
def test_encode_request_tool_choice_is_translated(choice: Any, made: dict[str, Any]) -> None:
    assert encode(tools=[TOOL], tool_choice=choice)[0]["tool_choice"] == made
    assert "tool_choice" not in encode(tool_choice="auto")[0]


def test_encode_request_thinking_without_signature_is_dropped() -> None:
    messages = [USER, {"role": "assistant", "content": "x", "reasoning_content": "hm"}, USER]
    body, dropped = encode(messages=messages)[:2]
    assert body["messages"][1] == {"role": "assistant", "content": "x"}
    assert "messages[].reasoning_content" in dropped


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
def test_routing_info_invalid_field_error_names_the_field(fields: dict[str, Any], param: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        decode_routing_info(anthropic.dialect, request_body(**fields))
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
def test_decode_request_unsupported_block_raises_invalid_request(block: dict[str, Any], param: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        anthropic.dialect.decode_request(request_body(max_tokens=5, messages=[{"role": "user", "content": [block]}]))
    assert caught.value.param == param


def test_decode_request_server_tool_raises_invalid_request() -> None:
    with pytest.raises(InvalidRequest) as caught:
        anthropic.dialect.decode_request(
            request_body(max_tokens=5, tools=[{"type": "web_search_20250305", "name": "web"}])
        )
    assert caught.value.param == "tools[0].type"


def test_passthrough_same_dialect_keeps_the_bytes() -> None:
    raw = request_body(max_tokens=5, top_k=3, new_field=1, stream=True)
    assert pass_through_request(anthropic.dialect, raw, ModelProfile("m")).body is raw
    assert json.loads(pass_through_request(anthropic.dialect, raw, ModelProfile("x")).body)["model"] == "x"
    overrides = UpstreamOverrides(rejects=("top_k",))
    built = pass_through_request(anthropic.dialect, raw, ModelProfile("m", overrides=overrides))
    assert "top_k" not in json.loads(built.body)
    assert built.dropped_fields == ("top_k",)


def test_openai_upstream_rejecting_max_tokens_gets_max_completion_tokens() -> None:
    request = anthropic.dialect.decode_request(request_body(max_tokens=5))
    built = openai.dialect.encode_request(
        request, ModelProfile("o", overrides=UpstreamOverrides(rejects=("max_tokens",)))
    )
    assert json.loads(built.body)["max_completion_tokens"] == 5


def test_decode_request_with_thread_is_rejected_with_details_for_sdks() -> None:
    body = request_body(max_tokens=5, thread={"type": "continue", "previous_message_id": "msg_1"}, messages=[])
    assert decode_routing_info(anthropic.dialect, body).model == "m"
    with pytest.raises(InvalidRequest) as caught:
        anthropic.dialect.decode_request(body)
    assert caught.value.param == "thread"
    error = json.loads(encode_error_body(caught.value, "req_1"))["error"]
    assert error["details"] == {"error_code": "thread_unsupported_request", "unsupported": ["model"]}


def test_routing_info_without_messages_and_thread_is_rejected() -> None:
    with pytest.raises(InvalidRequest, match="at least 1") as caught:
        decode_routing_info(anthropic.dialect, request_body(max_tokens=5, messages=[], thread=None))
    assert caught.value.param == "messages"


def test_encode_request_empty_user_message_is_named_or_rejected() -> None:
    turns = [USER, {"role": "assistant", "content": "yo"}]
    empty = {"role": "user", "content": [{"type": "text", "text": ""}]}
    body, dropped = encode(messages=[*turns, empty, USER])
    assert [message["role"] for message in body["messages"]] == ["user", "assistant", "user"]
    assert dropped == ("messages[].content",)
    error = encode_error(messages=[*turns, empty, {"role": "system", "content": "be brief"}])
    assert error.param == "messages[2].content"
    assert encode(messages=turns)[0]["messages"][-1] == turns[-1]


def test_decode_request_output_format_is_the_older_name_of_output_config_format() -> None:
    schema = {"type": "object", "properties": {"city": {"type": "string"}}}
    body = request_body(max_tokens=5, output_format={"type": "json_schema", "schema": schema})
    built = openai.dialect.encode_request(anthropic.dialect.decode_request(body), ModelProfile("gpt"))
    assert json.loads(built.body)["response_format"]["json_schema"]["schema"] == schema
    assert built.dropped_fields == ()


def test_encode_request_compaction_of_anthropic_is_rejected() -> None:
    request = anthropic.dialect.decode_request(request_body(max_tokens=5, compaction={"type": "summarize"}))
    with pytest.raises(InvalidRequest) as caught:
        openai.dialect.encode_request(request, ModelProfile("gpt"))
    assert caught.value.param == "compaction"


@pytest.mark.parametrize(
    ("model", "accepted"),
    [
        ("claude-3-5-sonnet-20241022", {"temperature", "top_p", "top_k"}),
        ("claude-opus-4-20250514", {"temperature", "top_p", "top_k"}),
        ("claude-opus-4-1-20250805", {"temperature", "top_k"}),
        ("claude-sonnet-4-6", {"temperature", "top_k"}),
        ("anthropic/claude-4.5-haiku", {"temperature", "top_k"}),
        ("claude-opus-4-7", set()),
        ("claude-opus-4-10", set()),
        ("us.anthropic.claude-opus-4-8-v1:0", set()),
        ("claude-sonnet-5", set()),
        ("claude-opus-5-20260901", set()),
        ("claude-haiku-5-5", set()),
        ("anthropic/claude-5.5-sonnet", set()),
        ("claude-fable-5-1", set()),
        ("claude-mythos-preview", set()),
    ],
)
def test_encode_request_has_the_sampling_parameters_that_the_model_accepts(model: str, accepted: set[str]) -> None:
    sampling = {"temperature": 0.5, "top_p": 0.9, "top_k": 3}
    body, dropped = encode(upstream_model=model, **sampling)
    assert sampling.keys() & body.keys() == accepted
    assert set(dropped) == sampling.keys() - accepted
    assert encode(upstream_model=model)[1] == ()


@pytest.mark.parametrize(
    ("model", "efforts"),
    [
        ("gpt-4o", {None, "none", "high"}),
        ("gpt-5-chat-latest", {None, "none", "high"}),
        ("openai/gpt-oss-120b", {None, "none", "high"}),
        ("gpt-5.1", {None, "none"}),
        ("gpt-5.4-mini", {None, "none"}),
        ("openai/gpt-5.5", {"none"}),
        ("gpt-5-mini", set()),
        ("gpt-5.3-chat-latest", set()),
        ("gpt-5.2-pro", set()),
        ("o4-mini", set()),
        ("gpt-6-sol", set()),
    ],
)
def test_encode_request_to_openai_has_sampling_parameters_while_the_model_does_not_reason(
    model: str, efforts: set[str | None]
) -> None:
    for effort in (None, "none", "high"):
        config = {} if effort is None else {"output_config": {"effort": effort}}
        raw = request_body(max_tokens=5, temperature=0.5, top_p=0.9, **config)
        built = openai.dialect.encode_request(anthropic.dialect.decode_request(raw), ModelProfile(model))
        sent = {"temperature", "top_p"} & json.loads(built.body).keys()
        assert sent == ({"temperature", "top_p"} if effort in efforts else set()), effort
        assert {"temperature", "top_p"} - sent <= set(built.dropped_fields)


@pytest.mark.parametrize(
    ("model", "effort", "sent"),
    [
        *((name, "high", None) for name in ("claude-sonnet-4-20250514", "claude-opus-4-0", "claude-opus-4-1-20250805")),
        *((name, "high", None) for name in ("claude-haiku-4-5-20251001", "us.anthropic.claude-sonnet-4-5-v1:0")),
        *((name, "high", None) for name in ("anthropic/claude-4-sonnet", "anthropic/claude-4.5-haiku")),
        *((name, "high", "high") for name in ("claude-3-5-sonnet-20241022", "claude-3-haiku-20240307")),
        *((name, "high", "high") for name in ("claude-opus-4-5-20251101", "claude-sonnet-4-6", "claude-sonnet-5")),
        *(
            (name, "high", "high")
            for name in ("claude-haiku-5-5", "claude-opus-4-10", "claude-mythos-preview", "other")
        ),
        *((name, "xhigh", "high") for name in ("claude-opus-4-5", "claude-opus-4-6", "anthropic/claude-4.6-sonnet")),
        *((name, "xhigh", "xhigh") for name in ("claude-opus-4-7", "claude-sonnet-5-5", "claude-opus-5-20260901")),
        ("claude-opus-4-5", "max", "high"),
        ("claude-opus-4-6", "max", "max"),
    ],
)
def test_encode_request_has_the_effort_that_the_model_accepts(model: str, effort: str, sent: str | None) -> None:
    body, dropped = encode(upstream_model=model, reasoning_effort=effort)
    assert body.get("output_config", {}).get("effort") == sent
    assert dropped == (() if sent == effort else ("reasoning_effort",))


@pytest.mark.parametrize(
    ("model", "effort", "sent"),
    [
        *((name, "max", "high") for name in ("o4-mini", "gpt-5", "openai/gpt-5-mini", "gpt-5.1", "gpt-5.1-codex")),
        *((name, "xhigh", "high") for name in ("o3", "gpt-5-nano-2025-08-07", "gpt-5.1-2025-11-13")),
        *((name, "max", "xhigh") for name in ("gpt-5.2", "gpt-5.4-mini", "gpt-5.5", "gpt-5.1-codex-max")),
        *((name, "xhigh", "xhigh") for name in ("gpt-5.2", "gpt-5.5", "gpt-6-sol")),
        *((name, "max", "max") for name in ("gpt-5.6", "gpt-6.1-terra", "deepseek-reasoner")),
        ("gpt-5", "high", "high"),
    ],
)
def test_encode_request_to_openai_has_at_most_the_highest_effort_of_the_model(
    model: str, effort: str, sent: str
) -> None:
    raw = request_body(max_tokens=5, output_config={"effort": effort})
    built = openai.dialect.encode_request(anthropic.dialect.decode_request(raw), ModelProfile(model))
    assert json.loads(built.body)["reasoning_effort"] == sent
    assert built.dropped_fields == (() if sent == effort else ("output_config.effort",))
