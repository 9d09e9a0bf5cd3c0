"""OpenAI's custom tools: unchanged within the dialect; in the other one a call's text is the argument `input`."""

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


def answer(*calls: dict[str, Any], **fields: Any) -> bytes:
    message = {"role": "assistant", "content": None, "tool_calls": calls}
    choice = {"index": 0, "message": message, "finish_reason": "tool_calls"}
    body = {"id": "a", "object": "chat.completion", "created": 1, "model": "m", "choices": [choice]}
    return json.dumps({**body, **fields}).encode()


def chunk(delta: dict[str, Any], finish: str | None = None, *, chunk_id: str = "c") -> bytes:
    choice = {"index": 0, "delta": delta, "finish_reason": finish}
    frame = {"id": chunk_id, "object": "chat.completion.chunk", "created": 1, "model": "m", "choices": [choice]}
    return b"data: " + json.dumps(frame, separators=(",", ":")).encode() + b"\n\n"


def calls(*pieces: dict[str, Any], chunk_id: str = "c") -> bytes:
    return chunk({"tool_calls": list(pieces)}, chunk_id=chunk_id)


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


def fed(pipe: StreamTransform, raw: bytes, size: int) -> bytes:
    return b"".join(pipe.feed(raw[at : at + size]) for at in range(0, len(raw), size)) + pipe.end()


def pieces_of(out: bytes) -> list[dict[str, Any]]:
    events = [json.loads(event[6:]) for event in out.split(b"\n\n") if event.startswith(b"data: {")]
    return [piece for event in events for piece in event["choices"][0]["delta"].get("tool_calls", [])]


@pytest.mark.parametrize("made", [[CUSTOM], [FUNCTION, CUSTOM], [HOSTED], [CUSTOM, HOSTED]])
def test_answer_with_custom_call_same_dialect_is_unchanged(made: list[dict[str, Any]]) -> None:
    raw = answer(*made)
    passed = pass_through_response(openai.dialect, raw)
    assert json.loads(passed.body) == json.loads(raw)
    assert passed.finish_reason == "tool_calls"
    if HOSTED not in made:
        assert passed.body is raw


def test_answer_that_needs_repair_keeps_its_custom_call() -> None:
    made = json.loads(
        pass_through_response(openai.dialect, answer(CUSTOM, object="x", usage={"prompt_tokens": 1})).body
    )
    assert made["choices"][0]["message"]["tool_calls"] == [CUSTOM]
    for missing in ("type", "id"):
        poor = {name: value for name, value in CUSTOM.items() if name != missing}
        [call] = json.loads(pass_through_response(openai.dialect, answer(poor)).body)["choices"][0]["message"][
            "tool_calls"
        ]
        assert {**call, "id": "call_1"} == CUSTOM
        assert call["id"].startswith("call_")


@pytest.mark.parametrize("call", [{"type": "custom"}, {"type": "custom", "custom": {"input": "x"}}, {}, "x"])
def test_answer_with_a_call_without_a_name_is_the_providers_failure(call: Any) -> None:
    with pytest.raises(ProviderFailed):
        pass_through_response(openai.dialect, answer(call))


@pytest.mark.parametrize("learned", [True, False])
@given(texts=st.lists(st.text(max_size=9), max_size=6), size=st.integers(1, 400))
@settings(max_examples=60, deadline=None)
def test_stream_with_custom_call_same_dialect_is_unchanged(learned: bool, texts: list[str], size: int) -> None:
    target = ModelProfile("m")
    if learned:
        earlier = create_stream_transform(openai.dialect, openai.dialect, include_usage=False, profile=target)
        assert earlier.feed(stream(["one", "two"], "b")) == stream(["one", "two"], "b")
        assert target.chunk_caches
    pipe = create_stream_transform(openai.dialect, openai.dialect, include_usage=False, profile=target)
    raw = stream(texts)
    assert fed(pipe, raw, size) == raw
    assert (pipe.has_ended, pipe.error, pipe.finish_reason) == (True, None, "tool_calls")


def test_stream_chunks_of_custom_input_make_a_template() -> None:
    pipe = create_stream_transform(openai.dialect, openai.dialect, include_usage=False)
    pipe.feed(chunk({"role": "assistant", "content": None}))
    pipe.feed(calls({"index": 0, "id": "call_1", "type": "custom", "custom": {"name": "patch", "input": ""}}))
    assert pipe.passthrough_template is None
    pipe.feed(calls({"index": 0, "custom": {"input": "one"}}))
    assert pipe.passthrough_template is not None
    assert pipe.feed(chunk({}, "tool_calls") + DONE).endswith(DONE)


def test_stream_repeats_of_a_custom_call_are_left_out() -> None:
    piece = {"index": 0, "id": "call_1", "type": "custom", "custom": {"name": "patch", "input": "a"}}
    raw = chunk({"role": "assistant"}) + calls(piece) + calls(piece) + chunk({}, "tool_calls") + DONE
    out = create_stream_transform(openai.dialect, openai.dialect, include_usage=False).feed(raw)
    assert pieces_of(out) == [piece, {"index": 0, "custom": {"input": "a"}}]


def test_stream_custom_call_without_index_and_type_is_mended_as_one() -> None:
    piece = {"id": "call_1", "custom": {"name": "patch", "input": "a"}, "function": None}
    raw = chunk({"role": "assistant"}) + calls(piece) + calls({"custom": {"input": "b"}}) + chunk({}, "tool_calls")
    pipe = create_stream_transform(openai.dialect, openai.dialect, include_usage=False)
    assert pieces_of(pipe.feed(raw) + pipe.end()) == [
        {"index": 0, "id": "call_1", "type": "custom", "custom": {"name": "patch", "input": "a"}},
        {"index": 0, "custom": {"input": "b"}},
    ]


def test_stream_call_of_another_type_keeps_its_type() -> None:
    raw = chunk({"role": "assistant"}) + calls({"index": 0, **HOSTED}) + chunk({}, "tool_calls") + DONE
    out = create_stream_transform(openai.dialect, openai.dialect, include_usage=False).feed(raw)
    assert pieces_of(out) == [{"index": 0, **HOSTED}]


def test_answer_across_dialects_has_the_text_as_input() -> None:
    made = json.loads(anthropic.dialect.encode_response(openai.dialect.decode_response(answer(CUSTOM, FUNCTION))))
    assert [block["input"] for block in made["content"]] == [{"input": 'print("hi")\n'}, {}]
    assert [block["name"] for block in made["content"]] == ["patch", "f"]
    with pytest.raises(ProviderFailed, match="vendor_search"):
        openai.dialect.decode_response(answer(HOSTED))


@given(texts=st.lists(st.text(max_size=9), max_size=6), size=st.integers(1, 400))
@settings(max_examples=60, deadline=None)
def test_stream_across_dialects_has_the_text_as_input(texts: list[str], size: int) -> None:
    pipe = create_stream_transform(openai.dialect, anthropic.dialect, include_usage=True)
    out = fed(pipe, stream(texts), size).decode()
    events = [json.loads(event.partition("data: ")[2]) for event in out.split("\n\n") if event]
    said = "".join(event["delta"]["partial_json"] for event in events if event["type"] == "content_block_delta")
    assert json.loads(said) == {"input": "".join(texts)}
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
        ({"tool_choice": ALLOWED}, "tool_choice.type"),
        ({"messages": CALLED}, "messages[1].tool_calls[0].type"),
        ({"tools": [{"type": "function"}]}, "tools[0].function"),
    ],
)
def test_request_with_custom_tools_passes_in_its_dialect_and_is_refused_by_name_in_the_other(
    fields: dict[str, Any], param: str
) -> None:
    raw, hinted = request(**fields), request(**fields, seed=1)
    assert pass_through_request(openai.dialect, raw, ModelProfile("m")).body is raw
    target = ModelProfile("m", overrides=UpstreamOverrides(rejects=("seed",)))
    rebuilt = pass_through_request(openai.dialect, hinted, target)
    assert json.loads(rebuilt.body) == json.loads(raw)
    with pytest.raises(InvalidRequest) as caught:
        openai.dialect.decode_request(raw)
    assert caught.value.param == param
