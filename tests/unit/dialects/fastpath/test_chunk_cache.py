"""The chunk template cache: the client's output and the recorded usage equal those of parsed chunks."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.codecs import create_stream_passthrough

from svc.dialects.base import ModelProfile
from svc.dialects.openai import dialect
from svc.errors import SvcError

GOLDEN = Path(__file__).parents[3] / "golden" / "streams"
USAGE = {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5}
DONE = b"data: [DONE]\n\n"


def chunk(choices: list[dict[str, Any]], chunk_id: str = "c1", created: int = 5, **fields: Any) -> bytes:
    chunk_body = {
        "id": chunk_id,
        "object": "chat.completion.chunk",
        "created": created,
        "model": "m",
        "choices": choices,
    }
    return b"data: " + json.dumps({**chunk_body, **fields}, separators=(",", ":")).encode() + b"\n\n"


def choice(delta: dict[str, Any], finish: str | None = None) -> list[dict[str, Any]]:
    return [{"index": 0, "delta": delta, "finish_reason": finish}]


def stream(chunk_id: str = "c1", created: int = 5, *, usage: dict[str, int] | None = USAGE) -> list[bytes]:
    named: dict[str, Any] = {"chunk_id": chunk_id, "created": created, "usage": None}
    return [
        chunk(choice({"role": "assistant", "content": ""}), **named),
        *[chunk(choice({"content": f" word {number}"}), **named) for number in range(3)],
        chunk(choice({}, "stop"), **named),
        *([chunk([], **{**named, "usage": usage})] if usage else []),
        DONE,
    ]


def run(target: ModelProfile, events: list[bytes], *, usage: bool = False) -> tuple[bytes, object]:
    """Return the client's bytes and the state of the transform."""
    transform = create_stream_passthrough(dialect, include_usage=usage, profile=target)
    out = b""
    try:
        for event in events:
            out += transform.feed(event) if not transform.has_ended else b""
        out += transform.end()
    except SvcError as error:
        return out, (type(error), error.message)
    error_message = transform.error.message if transform.error is not None else None
    out = re.sub(rb'(chatcmpl|call)-?_?[0-9a-f]{32}|"created":(?!5|6|17[0-4])\d{10}', b"ours", out)
    return out, (
        transform.has_started,
        transform.has_ended,
        transform.finish_reason,
        transform.usage,
        transform.model,
        error_message,
    )


def target_after(events: list[bytes], *, usage: bool = False) -> ModelProfile:
    target = ModelProfile("m")
    run(target, events, usage=usage)
    return target


def test_chunk_cache_second_stream_has_template_after_first_chunk() -> None:
    target = target_after(stream())
    events = stream("another-id", 1234567890)
    transform = create_stream_passthrough(dialect, include_usage=False, profile=target)
    assert transform.passthrough_template is None
    assert transform.feed(events[0]) is events[0]
    assert transform.passthrough_template is not None  # text chunks can bypass the transform
    assert transform.feed(events[1]) is events[1]
    assert run(target, events) == run(ModelProfile("m"), events)


def test_chunk_cache_after_one_stream_has_all_chunk_templates() -> None:
    cache = target_after(stream()).chunk_caches[False]
    opening, text, last, counted = (stream()[at] for at in (0, 1, 4, 5))
    prefix = cache.match_prefix(opening[:-2])
    assert cache.text_parts is not None
    assert prefix + b" word 0".join(cache.text_parts) == text
    assert (prefix + cache.finish_suffix, cache.finish_reason) == (last[:-2], "stop")
    assert counted.startswith(prefix + cache.usage_lead + b'{"prompt_tokens":3,')


def test_chunk_cache_other_model_is_not_matched() -> None:
    target = target_after(stream())
    other = [event.replace(b'"model":"m"', b'"model":"other"') for event in stream("c2")]
    assert run(target, other) == run(ModelProfile("m"), other)
    assert run(target, stream("c3")) == run(ModelProfile("m"), stream("c3"))
    assert target.chunk_caches[False].model == "m"


@pytest.mark.parametrize("usage", [True, False])
@pytest.mark.parametrize(
    ("before", "after"),
    [
        (b'"id":"c2"', b'"id":"c\\u0032"'),
        (b'"id":"c2"', b'"id":"c\x012"'),
        (b'"id":"c2"', b'"id":"\xff"'),
        (b'"id":"c2"', b'"id":""'),
        (b'"id":"c2"', b'"id":"c2","id":"c3"'),
        (b'"id":"c2"', b'"id":7'),
        (b'"created":6', b'"created":06'),
        (b'"created":6', b'"created":-6'),
        (b'"created":6', b'"created":6.5'),
        (b'"created":6', b'"created":'),
        (b'"created":6', b'"created":99999999999999999999'),
        (b'"created":6', b'"created":"6"'),
        (b"data: {", b"data:  {"),
        (b'"stop"', b'"length"'),
        (b'"total_tokens":5', b'"total_tokens":6'),
        (b'"total_tokens":5', b'"total_tokens":5,"more":"\xff"'),
        (b'"total_tokens":5}', b'"total_tokens":5},"x_groq":{"usage":{"prompt_tokens":9}}'),
    ],
)
def test_chunk_cache_slightly_different_chunk_is_parsed(before: bytes, after: bytes, usage: bool) -> None:
    events = [event.replace(before, after) for event in stream("c2", 6)]
    assert events != stream("c2", 6)
    assert run(target_after(stream(), usage=usage), events, usage=usage) == run(ModelProfile("m"), events, usage=usage)
    first = [events[0], *stream("c2", 6)[1:]]
    assert run(target_after(stream(), usage=usage), first, usage=usage) == run(ModelProfile("m"), first, usage=usage)


REPEATED = [chunk(choice({"role": "assistant", "content": "repaired"}), "c2", time, usage=None) for time in (0, 6)]
SHUFFLED = stream("c2", 6) + stream("c3", 6) + stream("c2", 0) + REPEATED


@given(order=st.lists(st.sampled_from(SHUFFLED), max_size=9), first=st.sampled_from(SHUFFLED), usage=st.booleans())
@settings(max_examples=400, deadline=None)
def test_chunk_cache_any_order_of_chunks_gives_uncached_output(order: list[bytes], first: bytes, usage: bool) -> None:
    events = [first, *order]
    assert run(target_after(stream(), usage=usage), events, usage=usage) == run(ModelProfile("m"), events, usage=usage)


def test_chunk_cache_text_within_prefix_is_not_a_template() -> None:
    """The first of two `choices` stands before `created` and is not the one in effect."""
    inner = b'"choices":[{"index":0,"delta":{"role":"assistant","content":""},"finish_reason":null}]'
    text = b'"choices":[{"index":0,"delta":{"content":"%b"},"finish_reason":null}]'
    begin, end = b'data: {"id":"c1","object":"chat.completion.chunk",', b',"created":5,"model":"m"%b}\n\n'
    target = target_after([begin + inner + end % (b"," + inner), begin + text % b"one" + end % b""])
    cache = target.chunk_caches.get(False)
    assert cache is None or cache.text_parts is None


def test_chunk_cache_changed_text_field_is_learned_again() -> None:
    thinking = [event.replace(b'"content":" ', b'"reasoning_content":" ') for event in stream()]
    target = target_after(thinking)
    before = target.chunk_caches[False].text_parts
    run(target, stream("c2", 6))
    assert target.chunk_caches[False].text_parts != before
    transform = create_stream_passthrough(dialect, include_usage=False, profile=target)
    events = stream("c3", 7)
    transform.feed(events[0])
    assert transform.feed(events[1]) is events[1]


GOLDEN_STREAMS = sorted(path for path in GOLDEN.glob("*.openai.sse") if ".to-" not in path.name)


def compact(raw: bytes) -> bytes:
    """Return the same events with compact JSON."""
    lines = [
        b"data: " + json.dumps(json.loads(line[6:]), separators=(",", ":")).encode()
        if line.startswith(b"data: {") and line.endswith(b"}")
        else line
        for line in raw.split(b"\n")
    ]
    return b"\n".join(lines)


@pytest.mark.parametrize("path", GOLDEN_STREAMS, ids=lambda path: path.stem)
@given(data=st.data())
@settings(max_examples=60, deadline=None)
def test_chunk_cache_damaged_stream_gives_uncached_output(path: Path, data: st.DataObject) -> None:
    raw = path.read_bytes()
    if data.draw(st.booleans()):
        raw = compact(raw)  # OpenAI sends compact JSON, and only such chunks are cached
    usage = data.draw(st.booleans())
    valid = [event + b"\n\n" for event in raw.split(b"\n\n") if event]
    damaged = bytearray(raw)
    for _ in range(data.draw(st.integers(0, 2))):
        at = data.draw(st.integers(0, len(damaged) - 1))
        part = data.draw(st.sampled_from([b"", b'"', b"0", b"\\", b"}", b"x", b"\xff", b"\n\n", b',"id":"y"']))
        damaged[at : at + data.draw(st.integers(0, 2))] = part
    events = [event + b"\n\n" for event in bytes(damaged).split(b"\n\n") if event]
    assert run(target_after(valid, usage=usage), events, usage=usage) == run(ModelProfile("m"), events, usage=usage)
