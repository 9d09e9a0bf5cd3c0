"""Properties of the dialects for any split, damage and round trip."""

from __future__ import annotations

import copy
import itertools
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
from svc.dialects.stream_transform import StreamTransform
from svc.errors import InvalidRequest, SvcError
from svc.wire.chat import UpstreamOverrides
from svc.wire.sse import EventSplitter
from tests.codecs import (
    create_stream_passthrough,
    create_stream_transform,
    decode_routing_info,
    pass_through_request,
    pass_through_response,
)

GOLDEN = Path(__file__).parent.parent / "golden"
DIALECTS: dict[str, Dialect] = {"openai": openai.dialect, "anthropic": anthropic.dialect}
OVERRIDES = UpstreamOverrides(
    rejects=("logprobs", "n", "messages[].name"), renames={"seed": "random_seed"}, min_temperature=1e-8
)
PROFILES = (ModelProfile("asked"), ModelProfile("taken", overrides=OVERRIDES))

leaf = st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=8))
anything: st.SearchStrategy[Any] = st.recursive(
    leaf,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)


def inputs(kind: str, suffix: str) -> list[Path]:
    found = sorted(path for path in (GOLDEN / kind).glob(f"*.{suffix}") if ".to-" not in path.name)
    found = [path for path in found if path.stem.rpartition(".")[2] in DIALECTS]
    assert found
    return found


def dialect_of(path: Path) -> Dialect:
    return DIALECTS[path.stem.rpartition(".")[2]]


def split_at(data: bytes, cuts: list[int]) -> list[bytes]:
    edges = sorted({0, len(data), *(cut % (len(data) + 1) for cut in cuts)})
    return [data[start:end] for start, end in itertools.pairwise(edges)]


def collect_output(transform: StreamTransform, parts: list[bytes]) -> str:
    """Return all output for the client, without creation times and generated ids."""
    out = b""
    try:
        for part in parts:
            if transform.has_ended:
                break
            out += transform.feed(part)
    except SvcError as error:
        assert not transform.has_started
        assert out == b""
        return f"raised {type(error).__name__}: {error.message}"
    out += transform.end()
    return re.sub(r'"created":\d+|(chatcmpl|call|msg)_?-?[0-9a-f]{32}', "-", out.decode())


def mutated(draw: st.DrawFn, value: Any) -> Any:
    """Return the value with one part replaced, removed or duplicated."""
    value = copy.deepcopy(value)
    node, parent, key = value, None, None
    while isinstance(node, (dict, list)) and node and draw(st.integers(0, 5)):
        parent = node
        key = draw(st.sampled_from(sorted(node) if isinstance(node, dict) else range(len(node))))
        node = node[key]
    if parent is None:
        return draw(anything)
    action = draw(st.sampled_from(("replace", "replace", "remove", "double")))
    if action == "remove":
        del parent[key]
    elif action == "double" and isinstance(parent, list):
        parent.append(copy.deepcopy(node))
    else:
        parent[key] = draw(anything)
    return value


def assert_no_end_after_error(outputs: str) -> None:
    """Assert that no end mark accompanies an error."""
    assert not ('data: {"error":' in outputs and "data: [DONE]" in outputs)
    assert not ("event: error" in outputs and "event: message_stop" in outputs)


@pytest.mark.parametrize("path", inputs("streams", "sse"), ids=lambda path: path.stem)
@pytest.mark.parametrize("target", DIALECTS)
@given(data=st.data())
@settings(max_examples=25, deadline=None)
def test_stream_transform_any_split_gives_same_output(path: Path, target: str, data: st.DataObject) -> None:
    raw = path.read_bytes()
    if data.draw(st.booleans()):
        raw = raw.replace(b"\n", b"\r\n")
    upstream, client = dialect_of(path), DIALECTS[target]
    usage = data.draw(st.booleans())
    cuts = data.draw(st.lists(st.integers(0, len(raw)), max_size=40))
    whole = collect_output(create_stream_transform(upstream, client, include_usage=usage), [raw])
    assert collect_output(create_stream_transform(upstream, client, include_usage=usage), split_at(raw, cuts)) == whole
    single = [raw[place : place + 1] for place in range(len(raw))]
    assert collect_output(create_stream_transform(upstream, client, include_usage=usage), single) == whole


@given(data=st.data())
@settings(max_examples=300, deadline=None)
def test_stream_transform_damaged_stream_ends_with_error_or_end_mark(data: st.DataObject) -> None:
    path = data.draw(st.sampled_from(inputs("streams", "sse")))
    events = [event for event in path.read_bytes().split(b"\n\n") if event]
    place = data.draw(st.integers(0, len(events) - 1))
    name, _, payload = events[place].rpartition(b"data: ")
    try:
        changed = json.dumps(mutated(data.draw, json.loads(payload)), ensure_ascii=data.draw(st.booleans()))
        events[place] = name + b"data: " + changed.encode(errors="replace")
    except ValueError:
        events[place] = data.draw(st.binary(max_size=40))
    raw = b"".join(event + b"\n\n" for event in events)
    cuts = data.draw(st.lists(st.integers(0, len(raw)), max_size=5))
    for target in DIALECTS.values():
        whole = collect_output(create_stream_transform(dialect_of(path), target, include_usage=True), [raw])
        assert (
            collect_output(create_stream_transform(dialect_of(path), target, include_usage=True), split_at(raw, cuts))
            == whole
        )
        assert_no_end_after_error(whole)


@given(data=st.data())
@settings(max_examples=400, deadline=None)
def test_dialect_damaged_request_is_encoded_or_raises_invalid_request(data: st.DataObject) -> None:
    path = data.draw(st.sampled_from(inputs("requests", "json")))
    raw = json.dumps(mutated(data.draw, json.loads(path.read_bytes()))).encode()
    client = dialect_of(path)
    for profile in PROFILES:
        for act in (
            lambda profile=profile: pass_through_request(client, raw, profile),
            lambda profile=profile: openai.dialect.encode_request(client.decode_request(raw), profile),
            lambda profile=profile: anthropic.dialect.encode_request(client.decode_request(raw), profile),
        ):
            try:
                built = act()
            except InvalidRequest:
                continue
            assert json.loads(built.body)["model"] == profile.model


@given(data=st.data())
@settings(max_examples=300, deadline=None)
def test_dialect_damaged_response_is_repaired_or_rejected(data: st.DataObject) -> None:
    path = data.draw(st.sampled_from(inputs("responses", "json")))
    raw = json.dumps(mutated(data.draw, json.loads(path.read_bytes()))).encode()
    upstream = dialect_of(path)
    try:
        passed = pass_through_response(upstream, raw)
        outputs = [target.encode_response(upstream.decode_response(raw)) for target in DIALECTS.values()]
    except SvcError:
        return
    assert passed.finish_reason in ("stop", "length", "tool_calls", "content_filter")
    for body in outputs:
        json.loads(body)
    if upstream.name == "openai":
        choice = json.loads(passed.body)["choices"][0]
        assert choice["message"]["role"] == "assistant"
        shown = choice["finish_reason"]
        assert (passed.finish_reason == "tool_calls") if shown == "function_call" else (shown == passed.finish_reason)


@given(raw=st.binary(max_size=200) | st.text(max_size=50).map(lambda text: text.encode(errors="replace")))
@settings(max_examples=300, deadline=None)
def test_dialect_arbitrary_bytes_raise_project_errors(raw: bytes) -> None:
    for dialect in DIALECTS.values():
        for act in (partial(decode_routing_info, dialect), dialect.decode_request):
            with pytest.raises(InvalidRequest):
                act(raw)
        for read in (partial(pass_through_response, dialect), dialect.decode_response):
            with pytest.raises(SvcError):
                read(raw)
        message = dialect.decode_error_message(raw)
        assert message is None or message
        for target in DIALECTS.values():
            assert_no_end_after_error(
                collect_output(
                    create_stream_transform(dialect, target, include_usage=True), [b"data: " + raw + b"\n\n", raw]
                )
            )


texts = st.lists(st.text(min_size=1, max_size=12), max_size=8)


@given(
    words=texts, reasoning=texts, compact=st.booleans(), ascii_only=st.booleans(), usage=st.booleans(), data=st.data()
)
@settings(max_examples=150, deadline=None)
def test_stream_transform_valid_stream_keeps_content(
    words: list[str], reasoning: list[str], compact: bool, ascii_only: bool, usage: bool, data: st.DataObject
) -> None:
    deltas: list[dict[str, Any]] = [{"role": "assistant", "content": ""}]
    deltas += [{"reasoning_content": text} for text in reasoning] + [{"content": text} for text in words]
    chunks: list[dict[str, Any]] = [_chunk(delta, None, usage) for delta in deltas]
    chunks.append(_chunk({}, "stop", usage))
    separators = (",", ":") if compact else None
    events = [json.dumps(chunk, ensure_ascii=ascii_only, separators=separators) for chunk in chunks]
    raw = b"".join(f"data: {event}\n\n".encode() for event in [*events, "[DONE]"])
    transform = create_stream_passthrough(openai.dialect, include_usage=usage)
    cuts = data.draw(st.lists(st.integers(0, len(raw)), max_size=9))
    out = b"".join(transform.feed(part) for part in split_at(raw, cuts))
    outputs = [event.removeprefix(b"data: ") for event in out.split(b"\n\n") if event]
    assert outputs.pop() == b"[DONE]"
    assert [json.loads(event) for event in outputs] == chunks
    translated = create_stream_transform(openai.dialect, anthropic.dialect, include_usage=True)
    anthropic_events = translated.feed(raw).decode()
    assert collect_deltas(anthropic_events, "text_delta", "text") == "".join(words)
    assert collect_deltas(anthropic_events, "thinking_delta", "thinking") == "".join(reasoning)
    back = create_stream_transform(anthropic.dialect, openai.dialect, include_usage=False)
    restored = [json.loads(event[6:]) for event in back.feed(anthropic_events.encode()).split(b"\n\n")[:-2]]
    assert "".join(chunk["choices"][0]["delta"].get("content", "") for chunk in restored) == "".join(words)


def _chunk(delta: dict[str, Any], finish: str | None, usage: bool) -> dict[str, Any]:
    choice = {"index": 0, "delta": delta, "finish_reason": finish}
    chunk = {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "m", "choices": [choice]}
    return {**chunk, "usage": None} if usage else chunk


def collect_deltas(stream: str, kind: str, name: str) -> str:
    events = [json.loads(event.partition("\ndata: ")[2]) for event in stream.split("\n\n") if event]
    deltas = [event["delta"] for event in events if event["type"] == "content_block_delta"]
    return "".join(delta[name] for delta in deltas if delta["type"] == kind)


@given(data=st.data())
@settings(max_examples=200, deadline=None)
def test_dialect_decode_encode_round_trip_is_stable(data: st.DataObject) -> None:
    path = data.draw(st.sampled_from(inputs("requests", "json")))
    client = dialect_of(path)
    raw = json.dumps(mutated(data.draw, json.loads(path.read_bytes()))).encode()
    try:
        first = client.decode_request(raw)
        built = client.encode_request(first, ModelProfile(first.model, overrides=UpstreamOverrides(stream_usage=False)))
    except InvalidRequest:
        return
    restored = client.encode_request(
        client.decode_request(built.body), ModelProfile(first.model, overrides=UpstreamOverrides(stream_usage=False))
    )
    assert json.loads(restored.body) == json.loads(built.body)


@given(
    data=st.lists(st.sampled_from([b"a", b"data: x", b"\n", b"\r", b"\r\n", b"\n\n"]), max_size=30),
    cuts=st.lists(st.integers()),
)
@settings(max_examples=300, deadline=None)
def test_event_splitter_any_split_gives_same_events(data: list[bytes], cuts: list[int]) -> None:
    raw = b"".join(data)
    whole, parted = EventSplitter(), EventSplitter()
    expected = b"".join([*(event + b"|" for event in whole.feed(raw)), whole.flush()])
    outputs = [event + b"|" for part in split_at(raw, cuts) for event in parted.feed(part)]
    assert b"".join([*outputs, parted.flush()]).replace(b"\n", b"") == expected.replace(b"\n", b"")
