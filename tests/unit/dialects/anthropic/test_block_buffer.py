"""Tool calls that an OpenAI upstream interleaves in its stream: sequential blocks for an Anthropic client."""

from __future__ import annotations

import gc
import itertools
import json
import time
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.codecs import create_stream_transform

from svc.dialects import anthropic, openai
from svc.dialects.anthropic.block_buffer import BLOCK_OVERHEAD_BYTES, MAX_BUFFERED_BLOCKS_BYTES, JsonEndDetector
from svc.dialects.base import Dialect
from svc.dialects.openai.normalize import MAX_TOOL_CALLS
from svc.dialects.openai.stream_decoder import MAX_PENDING_ARGUMENT_CHARS
from svc.dialects.stream_transform import StreamTransform
from svc.errors import ProviderFailed

DONE = b"data: [DONE]\n\n"


def chunk(delta: dict[str, Any], finish: str | None = None) -> bytes:
    choice = {"index": 0, "delta": delta, "finish_reason": finish}
    body = {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "m", "choices": [choice]}
    return b"data: " + json.dumps(body).encode() + b"\n\n"


def start(index: int, arguments: str = "") -> bytes:
    function = {"name": f"f{index}", "arguments": arguments}
    return chunk({"tool_calls": [{"index": index, "id": f"call_{index}", "type": "function", "function": function}]})


def arguments_chunk(index: int, text: str) -> bytes:
    return chunk({"tool_calls": [{"index": index, "function": {"arguments": text}}]})


def text_chunk(text: str) -> bytes:
    return chunk({"content": text})


FIRST = chunk({"role": "assistant", "content": ""})
LAST = chunk({}, "tool_calls") + DONE


def create_transform() -> StreamTransform:
    return create_stream_transform(openai.dialect, anthropic.dialect, include_usage=True)


def events_of(out: bytes) -> list[dict[str, Any]]:
    return [json.loads(event.partition("\ndata: ")[2]) for event in out.decode().split("\n\n") if event]


def blocks_of(out: bytes) -> list[tuple[str, str]]:
    """Return the name (or type) and the text of each block. Fails if blocks interleave."""
    made: list[tuple[str, str]] = []
    is_open = False
    for event in events_of(out):
        if event["type"] == "content_block_start":
            assert not is_open
            assert event["index"] == len(made)
            block = event["content_block"]
            made.append((block.get("name") or block["type"], ""))
            is_open = True
        elif event["type"] == "content_block_delta":
            assert is_open
            assert event["index"] == len(made) - 1
            delta = event["delta"]
            text = delta.get("partial_json") or delta.get("text") or delta.get("thinking") or ""
            made[-1] = (made[-1][0], made[-1][1] + text)
        elif event["type"] == "content_block_stop":
            assert is_open
            is_open = False
    assert not is_open
    return made


def test_block_buffer_interleaved_tool_calls_are_sent_in_order() -> None:
    raw = (
        FIRST
        + start(0)
        + start(1)
        + arguments_chunk(0, '{"a":')
        + arguments_chunk(1, '{"b":')
        + arguments_chunk(0, "1}")
        + arguments_chunk(1, "2}")
        + LAST
    )
    transform = create_transform()
    out = transform.feed(raw)
    assert blocks_of(out) == [("f0", '{"a":1}'), ("f1", '{"b":2}')]
    assert (transform.has_ended, transform.error, events_of(out)[-2]["delta"]["stop_reason"]) == (
        True,
        None,
        "tool_use",
    )


def test_block_buffer_arguments_of_open_call_are_not_buffered() -> None:
    transform = create_transform()
    transform.feed(FIRST + start(0) + start(1))
    assert transform.feed(arguments_chunk(1, '{"b":')) == b""
    assert b'"index":0' in transform.feed(arguments_chunk(0, '{"a":"}'))
    out = transform.feed(arguments_chunk(0, '"}'))
    assert [event["type"] for event in events_of(out)] == [
        *("content_block_delta", "content_block_stop", "content_block_start", "content_block_delta")
    ]
    assert b'"index":1' in transform.feed(arguments_chunk(1, "2}"))


def test_block_buffer_sequential_calls_are_not_buffered() -> None:
    transform = create_transform()
    transform.feed(FIRST + start(0) + arguments_chunk(0, '{"a":"\\'))
    assert transform.feed(arguments_chunk(0, '"}"}'))
    assert [event["type"] for event in events_of(transform.feed(start(1)))] == [
        "content_block_stop",
        "content_block_start",
    ]
    assert transform.feed(arguments_chunk(0, " \n")) == b""
    assert transform.feed(arguments_chunk(1, "{")) != b""
    assert transform.feed(arguments_chunk(0, "\n")) == b""


def test_block_buffer_text_within_call_is_sent_after_it() -> None:
    raw = (
        FIRST
        + text_chunk("a")
        + start(0)
        + arguments_chunk(0, "{")
        + text_chunk("b")
        + text_chunk("c")
        + start(1, "{}")
        + text_chunk("d")
        + arguments_chunk(0, "}")
    )
    assert blocks_of(create_transform().feed(raw + text_chunk("e") + LAST)) == [
        *(("text", "a"), ("f0", "{}"), ("text", "bc"), ("f1", "{}"), ("text", "de"))
    ]


def test_block_buffer_calls_without_complete_arguments_are_sent_at_end() -> None:
    raw = FIRST + start(0) + start(1) + arguments_chunk(1, '{"b":') + start(2) + chunk({}, "length") + DONE
    out = create_transform().feed(raw)
    assert blocks_of(out) == [("f0", ""), ("f1", '{"b":'), ("f2", "")]
    assert events_of(out)[-2]["delta"]["stop_reason"] == "max_tokens"


def test_block_buffer_arguments_after_end_of_call_sends_error() -> None:
    for other in (start(1, "{}"), start(1), start(1) + arguments_chunk(1, "{")):
        transform = create_transform()
        out = transform.feed(FIRST + start(0, "{}") + other + arguments_chunk(0, "1"))
        assert b"event: error" in out
        assert isinstance(transform.error, ProviderFailed)


@pytest.mark.parametrize("kind", ["text", "blocks"])
def test_block_buffer_above_size_limit_sends_error(kind: str) -> None:
    transform = create_transform()
    transform.feed(FIRST + start(0))
    fed = 0
    for index in itertools.count(1):
        out = transform.feed(
            start(index) if kind == "blocks" else start(1) if index == 1 else arguments_chunk(1, "x" * 10_000)
        )
        fed += BLOCK_OVERHEAD_BYTES if kind == "blocks" else 10_000
        if out:
            break
        assert fed <= MAX_BUFFERED_BLOCKS_BYTES + 20_000
    assert b"event: error" in out
    assert isinstance(transform.error, ProviderFailed)


def test_block_buffer_many_small_calls_are_sent_without_recursion() -> None:
    count = MAX_BUFFERED_BLOCKS_BYTES // BLOCK_OVERHEAD_BYTES // 2
    raw = FIRST + b"".join(start(index) for index in range(count))
    raw += b"".join(arguments_chunk(index, "{}") for index in reversed(range(count)))
    assert len(blocks_of(create_transform().feed(raw + LAST))) == count


@pytest.mark.parametrize("client", [openai.dialect, anthropic.dialect], ids=lambda dialect: dialect.name)
def test_stream_too_many_calls_or_unnamed_arguments_is_an_error(client: Dialect) -> None:
    transform = create_stream_transform(openai.dialect, client, include_usage=False)
    transform.feed(FIRST)
    for index in range(MAX_TOOL_CALLS + 2):
        transform.feed(start(index, "{}"))
    assert transform.error is not None
    assert "more tool calls" in transform.error.message
    transform = create_transform()
    transform.feed(FIRST)
    for _ in range(MAX_PENDING_ARGUMENT_CHARS // 10_000 + 2):
        transform.feed(arguments_chunk(0, "x" * 10_000))
    assert transform.error is not None
    assert "without a name" in transform.error.message


@pytest.mark.parametrize("client", [openai.dialect, anthropic.dialect], ids=lambda dialect: dialect.name)
def test_stream_event_with_too_many_calls_fails_in_linear_time(client: Dialect) -> None:
    calls = [{"id": f"c{number}", "function": {"name": "f", "arguments": "{}"}} for number in range(3 * MAX_TOOL_CALLS)]
    event = json.dumps({"id": "x", "choices": [{"index": 0, "delta": {"tool_calls": calls}}]})
    transform = create_stream_transform(openai.dialect, client, include_usage=False)
    transform.feed(FIRST)
    gc.collect()  # a collection in between would count
    began = time.thread_time()
    transform.feed(f"data: {event}\n\n".encode())
    assert time.thread_time() - began < 1.0
    assert transform.error is not None
    assert "more tool calls" in transform.error.message


leaves = st.one_of(st.text(max_size=8), st.integers(), st.lists(st.text(max_size=3), max_size=2))
values = st.dictionaries(st.text(max_size=4), leaves, max_size=3)


@given(data=st.data())
@settings(max_examples=200, deadline=None)
def test_block_buffer_any_interleaving_sends_complete_calls_in_order(data: st.DataObject) -> None:
    """The order of the starts is kept for every interleaving and every split of the bytes."""
    texts = [
        json.dumps(value, ensure_ascii=data.draw(st.booleans()))
        for value in data.draw(st.lists(values, min_size=1, max_size=4))
    ]
    left: list[list[bytes]] = []
    for index, text in enumerate(texts):
        cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=4)))
        parts = [text[begin:end] for begin, end in itertools.pairwise([0, *cuts, len(text)])]
        left.append([start(index), *[arguments_chunk(index, part) for part in parts]])
    raw, begun = FIRST, 0
    while any(left):
        index = data.draw(st.sampled_from([at for at, chunks in enumerate(left) if chunks and at <= begun]))
        begun = max(begun, index + 1)
        raw += left[index].pop(0)
    raw += LAST
    size = data.draw(st.integers(1, len(raw)))
    transform = create_transform()
    out = b"".join(transform.feed(raw[at : at + size]) for at in range(0, len(raw), size))
    assert transform.error is None
    assert blocks_of(out) == [(f"f{index}", text) for index, text in enumerate(texts)]


@given(value=values, data=st.data())
@settings(max_examples=200, deadline=None)
def test_json_end_detector_any_split_completes_at_last_character(value: Any, data: st.DataObject) -> None:
    text = json.dumps(value, ensure_ascii=data.draw(st.booleans()))
    cut = data.draw(st.integers(0, len(text) - 1))
    end = JsonEndDetector()
    end.feed(text[:cut])
    end.feed(text[cut:-1])
    assert not end.is_complete
    end.feed(text[-1])
    assert end.is_complete
