"""OpenAI's custom tools: unchanged in passthrough, translated to a call with the argument `input` for Anthropic."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.codecs import create_stream_transform, pass_through_request, pass_through_response

from svc.dialects import anthropic, openai
from svc.dialects.base import ModelProfile
from svc.dialects.stream_transform import StreamTransform
from svc.errors import InvalidRequest, ProviderFailed
from svc.wire.chat import UpstreamOverrides

CUSTOM = {"id": "call_1", "type": "custom", "custom": {"name": "patch", "input": 'print("hi")\n'}}
FUNCTION = {"id": "call_2", "type": "function", "function": {"name": "f", "arguments": "{}"}}
HOSTED = {"id": "call_3", "type": "vendor_search", "vendor_search": {"query": "x"}}
TOOL = {"type": "custom", "custom": {"name": "patch", "format": {"type": "grammar", "grammar": {"syntax": "lark"}}}}
USER = {"role": "user", "content": "hi"}
DONE = b"data: [DONE]\n\n"


def response(*calls: dict[str, Any], **fields: Any) -> bytes:
    message = {"role": "assistant", "content": None, "tool_calls": calls}
    choice = {"index": 0, "message": message, "finish_reason": "tool_calls"}
    body = {"id": "a", "object": "chat.completion", "created": 1, "model": "m", "choices": [choice]}
    return json.dumps({**body, **fields}).encode()


def chunk(delta: dict[str, Any], finish: str | None = None, *, chunk_id: str = "c") -> bytes:
    choice = {"index": 0, "delta": delta, "finish_reason": finish}
    chunk_body = {"id": chunk_id, "object": "chat.completion.chunk", "created": 1, "model": "m", "choices": [choice]}
    return b"data: " + json.dumps(chunk_body, separators=(",", ":")).encode() + b"\n\n"


def calls(*tool_calls: dict[str, Any], chunk_id: str = "c") -> bytes:
    return chunk({"tool_calls": list(tool_calls)}, chunk_id=chunk_id)


def stream(texts: list[str], chunk_id: str = "c") -> bytes:
    begin = {"index": 0, "id": "call_1", "type": "custom", "custom": {"name": "patch", "input": ""}}
    return b"".join(
        [
            chunk({"role": "assistant", "content": None}, chunk_id=chunk_id),
            calls(begin, chunk_id=chunk_id),
            *[calls({"index": 0, "custom": {"input": text}}, chunk_id=chunk_id) for text in texts],
            chunk({}, "tool_calls", chunk_id=chunk_id),
            DONE,
        ]
    )


def feed_split(transform: StreamTransform, raw: bytes, size: int) -> bytes:
    return b"".join(transform.feed(raw[at : at + size]) for at in range(0, len(raw), size)) + transform.end()


def tool_calls_of(out: bytes) -> list[dict[str, Any]]:
    events = [json.loads(event[6:]) for event in out.split(b"\n\n") if event.startswith(b"data: {")]
    return [call for event in events for call in event["choices"][0]["delta"].get("tool_calls", [])]


@pytest.mark.parametrize("made", [[CUSTOM], [FUNCTION, CUSTOM], [HOSTED], [CUSTOM, HOSTED]])
def test_response_custom_call_same_dialect_is_unchanged(made: list[dict[str, Any]]) -> None:
    raw = response(*made)
    passed = pass_through_response(openai.dialect, raw)
    assert json.loads(passed.body) == json.loads(raw)
    assert passed.finish_reason == "tool_calls"
    if HOSTED not in made:
        assert passed.body is raw


def test_response_repair_keeps_custom_call() -> None:
    made = json.loads(
        pass_through_response(openai.dialect, response(CUSTOM, object="x", usage={"prompt_tokens": 1})).body
    )
    assert made["choices"][0]["message"]["tool_calls"] == [CUSTOM]
    for missing in ("type", "id"):
        incomplete = {name: value for name, value in CUSTOM.items() if name != missing}
        [call] = json.loads(pass_through_response(openai.dialect, response(incomplete)).body)["choices"][0]["message"][
            "tool_calls"
        ]
        assert {**call, "id": "call_1"} == CUSTOM
        assert call["id"].startswith("call_")


@pytest.mark.parametrize("call", [{"type": "custom"}, {"type": "custom", "custom": {"input": "x"}}, {}, "x"])
def test_response_call_without_name_raises_provider_failed(call: Any) -> None:
    with pytest.raises(ProviderFailed):
        pass_through_response(openai.dialect, response(call))


@given(texts=st.lists(st.text(max_size=9), max_size=6), size=st.integers(1, 400))
@settings(max_examples=60, deadline=None)
def test_stream_custom_call_same_dialect_is_unchanged(texts: list[str], size: int) -> None:
    target = ModelProfile("m")
    transform = create_stream_transform(openai.dialect, openai.dialect, include_usage=False, profile=target)
    raw = stream(texts)
    assert feed_split(transform, raw, size) == raw
    assert (transform.has_ended, transform.error, transform.finish_reason) == (True, None, "tool_calls")


def test_stream_custom_input_chunks_create_a_template() -> None:
    transform = create_stream_transform(openai.dialect, openai.dialect, include_usage=False)
    transform.feed(chunk({"role": "assistant", "content": None}))
    transform.feed(calls({"index": 0, "id": "call_1", "type": "custom", "custom": {"name": "patch", "input": ""}}))
    assert transform.passthrough_template is None
    transform.feed(calls({"index": 0, "custom": {"input": "one"}}))
    assert transform.passthrough_template is not None
    assert transform.feed(chunk({}, "tool_calls") + DONE).endswith(DONE)


def test_stream_repeated_custom_call_fields_are_dropped() -> None:
    call = {"index": 0, "id": "call_1", "type": "custom", "custom": {"name": "patch", "input": "a"}}
    raw = chunk({"role": "assistant"}) + calls(call) + calls(call) + chunk({}, "tool_calls") + DONE
    out = create_stream_transform(openai.dialect, openai.dialect, include_usage=False).feed(raw)
    assert tool_calls_of(out) == [call, {"index": 0, "custom": {"input": "a"}}]


def test_stream_custom_call_without_index_and_type_is_repaired() -> None:
    call = {"id": "call_1", "custom": {"name": "patch", "input": "a"}, "function": None}
    raw = chunk({"role": "assistant"}) + calls(call) + calls({"custom": {"input": "b"}}) + chunk({}, "tool_calls")
    transform = create_stream_transform(openai.dialect, openai.dialect, include_usage=False)
    assert tool_calls_of(transform.feed(raw) + transform.end()) == [
        {"index": 0, "id": "call_1", "type": "custom", "custom": {"name": "patch", "input": "a"}},
        {"index": 0, "custom": {"input": "b"}},
    ]


def test_stream_call_of_unknown_type_is_unchanged() -> None:
    raw = chunk({"role": "assistant"}) + calls({"index": 0, **HOSTED}) + chunk({}, "tool_calls") + DONE
    out = create_stream_transform(openai.dialect, openai.dialect, include_usage=False).feed(raw)
    assert tool_calls_of(out) == [{"index": 0, **HOSTED}]


def test_response_to_anthropic_custom_call_text_becomes_input() -> None:
    made = json.loads(anthropic.dialect.encode_response(openai.dialect.decode_response(response(CUSTOM, FUNCTION))))
    assert [block["input"] for block in made["content"]] == [{"input": 'print("hi")\n'}, {}]
    assert [block["name"] for block in made["content"]] == ["patch", "f"]
    with pytest.raises(ProviderFailed, match="vendor_search"):
        openai.dialect.decode_response(response(HOSTED))


@given(texts=st.lists(st.text(max_size=9), max_size=6), size=st.integers(1, 400))
@settings(max_examples=60, deadline=None)
def test_stream_to_anthropic_custom_call_text_becomes_input(texts: list[str], size: int) -> None:
    transform = create_stream_transform(openai.dialect, anthropic.dialect, include_usage=True)
    out = feed_split(transform, stream(texts), size).decode()
    events = [json.loads(event.partition("data: ")[2]) for event in out.split("\n\n") if event]
    arguments = "".join(event["delta"]["partial_json"] for event in events if event["type"] == "content_block_delta")
    assert json.loads(arguments) == {"input": "".join(texts)}
    assert events[1]["content_block"]["name"] == "patch"
    assert events[-2]["delta"]["stop_reason"] == "tool_use"


def request(**fields: Any) -> bytes:
    return json.dumps({"model": "m", "messages": [USER], **fields}).encode()


CALLED = [USER, {"role": "assistant", "content": None, "tool_calls": [CUSTOM]}, {"role": "tool", "content": "x"}]
CHOSEN = {"type": "custom", "custom": {"name": "patch"}}
ALLOWED = {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": [CHOSEN]}}


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"tools": [TOOL]}, "tools[0].type"),
        ({"tool_choice": CHOSEN}, "tool_choice.type"),
        ({"tool_choice": ALLOWED}, "tool_choice.allowed_tools.tools[0].type"),
        ({"messages": CALLED}, "messages[1].tool_calls[0].type"),
        ({"tools": [{"type": "function"}]}, "tools[0].function"),
    ],
)
def test_request_custom_tools_pass_through_but_translation_raises_invalid_request(
    fields: dict[str, Any], param: str
) -> None:
    raw, with_seed = request(**fields), request(**fields, seed=1)
    assert pass_through_request(openai.dialect, raw, ModelProfile("m")).body is raw
    target = ModelProfile("m", overrides=UpstreamOverrides(rejects=("seed",)))
    rebuilt = pass_through_request(openai.dialect, with_seed, target)
    assert json.loads(rebuilt.body) == json.loads(raw)
    with pytest.raises(InvalidRequest) as caught:
        openai.dialect.decode_request(raw)
    assert caught.value.param == param
