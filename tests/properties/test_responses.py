"""A generated model output is equal as a full body and as a stream for a Responses client, for any order of chunks."""

from __future__ import annotations

import json
import re
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from svc.dialects import anthropic, openai
from svc.dialects.base import Dialect, ModelProfile
from svc.errors import InvalidRequest, SvcError
from tests.codecs import create_responses_stream, encode_responses_request, responses_codec
from tests.openresponses import read_events
from tests.properties.test_dialects import GOLDEN, collect_output, mutated, split_at
from tests.properties.test_tool_calls import ModelOutput, feed_in_chunks, model_outputs

PROFILE = ModelProfile("m")
TOOLS = [
    {"type": "custom", "name": "f0"},
    {"type": "namespace", "name": "n", "tools": [{"type": "function", "name": "x"}]},
]
REQUEST = {"model": "m", "input": "Hi", "tools": TOOLS, "include": ["reasoning.encrypted_content"]}
RAW_REQUEST = json.dumps(REQUEST).encode()
UPSTREAMS: dict[str, Dialect | None] = {"openai": openai.dialect, "anthropic": anthropic.dialect, "responses": None}
VARIABLE = re.compile(r'"(created_at|completed_at)":\d+|(resp|msg|rs|fc|ctc|call|chatcmpl)[_-][0-9a-f]{32}')


def recorded(kind: str, suffix: str) -> list[Path]:
    return sorted(path for path in (GOLDEN / kind).glob(f"*.{suffix}") if ".to-" not in path.name)


def upstream_of(path: Path) -> Dialect | None:
    return UPSTREAMS[path.stem.rpartition(".")[2]]


def without_ids(items: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{name: value for name, value in item.items() if name != "id"} for item in items]


@given(output=model_outputs(), size=st.integers(1, 500))
@settings(max_examples=100, deadline=None)
def test_stream_and_full_response_have_same_items(output: ModelOutput, size: int) -> None:
    whole = json.loads(responses_codec(openai.dialect, RAW_REQUEST, PROFILE).decode_response(output.whole()).body)
    transform = create_responses_stream(openai.dialect, RAW_REQUEST)
    events = read_events(feed_in_chunks(transform, b"".join(output.stream(usage=True)), size))
    response = events[-1]["response"]
    assert without_ids(response["output"]) == without_ids(whole["output"])
    assert [response[name] for name in ("status", "usage")] == [whole[name] for name in ("status", "usage")]
    done = {event["output_index"]: event["item"] for event in events if event["type"] == "response.output_item.done"}
    assert [done[index] for index in range(len(done))] == response["output"]
    for index, item in enumerate(response["output"]):
        deltas = "".join(event["delta"] for event in events if "delta" in event and event["output_index"] == index)
        assert deltas == text_of(item)


def text_of(item: dict[str, Any]) -> str:
    parts = item.get("content") or item.get("summary") or []
    return "".join(part["text"] for part in parts) + item.get("arguments", "") + item.get("input", "")


@pytest.mark.parametrize("path", recorded("streams", "sse"), ids=lambda path: path.stem)
@given(data=st.data())
@settings(max_examples=15, deadline=None)
def test_stream_any_split_gives_same_output(path: Path, data: st.DataObject) -> None:
    raw = path.read_bytes()
    create = partial(create_responses_stream, upstream_of(path), RAW_REQUEST)
    cuts = data.draw(st.lists(st.integers(0, len(raw)), max_size=9))
    whole, parted = (VARIABLE.sub("-", collect_output(create(), parts)) for parts in ([raw], split_at(raw, cuts)))
    assert whole == parted


@given(data=st.data())
@settings(max_examples=150, deadline=None)
def test_damaged_request_is_encoded_or_raises_invalid_request(data: st.DataObject) -> None:
    path = data.draw(st.sampled_from([path for path in recorded("requests", "json") if upstream_of(path) is None]))
    raw = json.dumps(mutated(data.draw, json.loads(path.read_bytes()))).encode()
    named = []
    for upstream in UPSTREAMS.values():
        try:
            built = encode_responses_request(upstream, raw, PROFILE)
        except InvalidRequest as error:
            named.append(error.param or "")
            continue
        json.loads(built.body)
    assert not [name for name in named if name.startswith(("messages", "response_format", "max_tokens"))]


@given(data=st.data())
@settings(max_examples=200, deadline=None)
def test_damaged_stream_ends_once_or_raises_before_start(data: st.DataObject) -> None:
    path = data.draw(st.sampled_from(recorded("streams", "sse")))
    events = path.read_bytes().split(b"\n\n")
    position = data.draw(st.integers(0, len(events) - 1))
    name, separator, payload = events[position].partition(b"data: ")
    try:
        damaged = json.dumps(mutated(data.draw, json.loads(payload))).encode()
    except ValueError:
        damaged = data.draw(st.binary(max_size=20))
    events[position] = name + separator + damaged
    transform = create_responses_stream(upstream_of(path), RAW_REQUEST)
    try:
        out = transform.feed(b"\n\n".join(events)) + transform.end()
    except SvcError:
        assert not transform.has_started
        return
    if transform.has_started:
        ends = re.findall(rb"^event: response\.(completed|incomplete|failed)$", out, re.MULTILINE)
        assert len(ends) <= 1 if upstream_of(path) is None else len(ends) == 1
        assert (transform.error is None) == (ends[-1:] != [b"failed"])
