"""A response with thinking, text and tool calls is equal as a full body and as a stream, for any order of chunks."""

from __future__ import annotations

import itertools
import json
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from svc.dialects import anthropic, openai
from svc.dialects.base import ModelProfile
from svc.dialects.stream_transform import StreamTransform
from svc.dialects.truncated_json import decode_complete_members
from svc.wire.usage import TokenUsage
from tests.codecs import create_stream_transform, pass_through_response

DONE = b"data: [DONE]\n\n"
TEXT_FIELDS = {"function": "arguments", "custom": "input"}

words = st.text(max_size=8)
leaves = st.one_of(st.none(), st.booleans(), st.integers(-9, 9), words)
arguments = st.dictionaries(words, leaves | st.lists(leaves, max_size=2), max_size=3)
Call = dict[str, Any]


@st.composite
def tool_calls(draw: st.DrawFn, *, truncated: bool) -> list[Call]:
    message: list[Call] = []
    for index in range(draw(st.integers(1 if truncated else 0, 4))):
        kind = draw(st.sampled_from(sorted(TEXT_FIELDS)))
        text = draw(words) if kind == "custom" else json.dumps(draw(arguments), ensure_ascii=draw(st.booleans()))
        message.append({"id": f"call_{index}", "type": kind, kind: {"name": f"f{index}", TEXT_FIELDS[kind]: text}})
    if truncated:
        payload = message[-1][message[-1]["type"]]
        field = TEXT_FIELDS[message[-1]["type"]]
        payload[field] = payload[field][: draw(st.integers(0, len(payload[field])))]
    return message


class ModelOutput:
    """A generated model output, as a full response and as chunks."""

    def __init__(self, draw: st.DrawFn) -> None:
        self.finish = draw(st.sampled_from(("stop", "tool_calls", "length")))
        self.thinking, self.text = draw(words), draw(words)
        self.calls = draw(tool_calls(truncated=self.finish == "length"))
        prompt, completion, beyond = (draw(st.integers(0, 50)) for _ in range(3))
        self.usage = {"prompt_tokens": prompt, "completion_tokens": completion}
        self.usage["total_tokens"] = prompt + completion + beyond
        self.billed = TokenUsage(prompt, completion + beyond)
        self._deltas = list(self._chunked(draw))

    def _chunked(self, draw: st.DrawFn) -> list[dict[str, Any]]:
        deltas: list[dict[str, Any]] = [{"role": "assistant", "content": ""}]
        deltas += [{"reasoning_content": part} for part in parts_of(draw, self.thinking)]
        deltas += [{"content": part} for part in parts_of(draw, self.text)]
        remaining = [self._chunks_of(draw, index, call) for index, call in enumerate(self.calls)]
        started = 0
        while any(remaining):
            index = draw(st.sampled_from([at for at, chunks in enumerate(remaining) if chunks and at <= started]))
            started = max(started, index + 1)
            deltas.append({"tool_calls": [remaining[index].pop(0)]})
        return deltas

    def _chunks_of(self, draw: st.DrawFn, index: int, call: Call) -> list[Call]:
        kind = call["type"]
        field = TEXT_FIELDS[kind]
        start = {"index": index, **call, kind: {**call[kind], field: ""}}
        return [start, *({"index": index, kind: {field: part}} for part in parts_of(draw, call[kind][field]))]

    def whole(self) -> bytes:
        message = {"role": "assistant", "content": self.text, "reasoning_content": self.thinking}
        message |= {"tool_calls": self.calls} if self.calls else {}
        choice = {"index": 0, "message": message, "finish_reason": self.finish}
        frame = {"id": "c", "object": "chat.completion", "created": 1, "model": "m"}
        return json.dumps({**frame, "choices": [choice], "usage": self.usage}).encode()

    def stream(self, *, usage: bool, chunk_id: str = "c") -> list[bytes]:
        frame = {"id": chunk_id, "object": "chat.completion.chunk", "created": 1, "model": "m"}
        more = {"usage": None} if usage else {}
        ends = [(delta, None) for delta in self._deltas] + [({}, self.finish)]
        chunks = [
            {**frame, "choices": [{"index": 0, "delta": delta, "finish_reason": end}], **more} for delta, end in ends
        ]
        chunks.append({**frame, "choices": [], "usage": self.usage})
        return [b"data: " + json.dumps(one, separators=(",", ":")).encode() + b"\n\n" for one in chunks] + [DONE]


def parts_of(draw: st.DrawFn, text: str) -> list[str]:
    cuts = sorted(draw(st.lists(st.integers(0, len(text)), max_size=3)))
    return [text[begin:end] for begin, end in itertools.pairwise([0, *cuts, len(text)]) if begin < end]


@st.composite
def model_outputs(draw: st.DrawFn) -> ModelOutput:
    return ModelOutput(draw)


def feed_in_chunks(transform: StreamTransform, raw: bytes, size: int) -> bytes:
    return b"".join(transform.feed(raw[at : at + size]) for at in range(0, len(raw), size)) + transform.end()


FIELDS = {"text_delta": "text", "thinking_delta": "thinking", "input_json_delta": "partial_json"}


def message_of(out: bytes) -> dict[str, Any]:
    """Assemble the events as an Anthropic client does. Interleaved content blocks fail."""
    content: list[dict[str, Any]] = []
    is_open = False
    message: dict[str, Any] = {}
    for event in (json.loads(event.partition("\ndata: ")[2]) for event in out.decode().split("\n\n") if event):
        match event["type"]:
            case "content_block_start":
                assert (is_open, event["index"]) == (False, len(content))
                content.append({**event["content_block"], "collected": ""})
                is_open = True
            case "content_block_delta":
                assert (is_open, event["index"]) == (True, len(content) - 1)
                if event["delta"]["type"] == "signature_delta":
                    content[-1]["signature"] += event["delta"]["signature"]
                    continue
                content[-1]["collected"] += event["delta"][FIELDS[event["delta"]["type"]]]
            case "content_block_stop":
                assert is_open
                is_open = False
            case "message_delta":
                message = {"stop_reason": event["delta"]["stop_reason"], "usage": event["usage"]}
    assert not is_open
    return {**message, "content": [_block(block) for block in content]}


def _block(block: dict[str, Any]) -> dict[str, Any]:
    text = block.pop("collected")
    field = {"tool_use": "input"}.get(block["type"], block["type"])
    return {**block, field: decode_complete_members(text) if field == "input" else text}


@given(output=model_outputs(), size=st.integers(1, 500))
@settings(max_examples=150, deadline=None)
def test_anthropic_stream_and_full_response_give_same_message(output: ModelOutput, size: int) -> None:
    whole = openai.dialect.decode_response(output.whole())
    expected = json.loads(anthropic.dialect.encode_response(whole))
    transform = create_stream_transform(openai.dialect, anthropic.dialect, include_usage=True)
    message = message_of(feed_in_chunks(transform, b"".join(output.stream(usage=True)), size))
    assert transform.error is None
    assert message == {name: expected[name] for name in ("stop_reason", "usage", "content")}
    assert (transform.usage, transform.finish_reason) == (whole.usage, whole.finish) == (output.billed, output.finish)


@given(output=model_outputs(), usage=st.booleans(), size=st.integers(1, 500))
@settings(max_examples=150, deadline=None)
def test_openai_stream_and_full_response_pass_through_unchanged(output: ModelOutput, usage: bool, size: int) -> None:
    profile = ModelProfile("m")
    transform = create_stream_transform(openai.dialect, openai.dialect, include_usage=usage, profile=profile)
    events = output.stream(usage=usage)
    out = feed_in_chunks(transform, b"".join(events), size)
    assert out == b"".join(events if usage else [*events[:-2], DONE])
    raw = output.whole()
    passed = pass_through_response(openai.dialect, raw)
    assert passed.body is raw
    assert (transform.error, transform.usage, transform.finish_reason) == (None, passed.usage, passed.finish_reason)
    assert (passed.usage, passed.finish_reason) == (output.billed, output.finish)
