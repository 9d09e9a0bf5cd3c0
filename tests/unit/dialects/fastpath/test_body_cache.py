"""The body cache: a body that differs from the last one in one text decodes as it does without the cache."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from tests.codecs import pass_through_request

from svc.dialects import request_passthrough
from svc.dialects.base import ModelProfile, RequestBody
from svc.dialects.endpoint import Endpoint
from svc.dialects.fastpath.body_cache import MAX_BODY_MISMATCHES, MAX_CACHED_BODY_BYTES, BodyCache
from svc.dialects.json_skeleton import MIN_SKELETON_BODY_BYTES
from svc.dialects.json_spans import find_field_spans
from svc.dialects.openai import dialect as openai
from svc.dialects.routing_info import RoutingInfo
from svc.errors import InvalidRequest
from svc.gateway.endpoints.chat_completions import endpoint as OPENAI
from svc.gateway.endpoints.messages import endpoint as ANTHROPIC

TARGET = ModelProfile("other")


def body(text: Any, **fields: Any) -> bytes:
    return json.dumps({"model": "m", "messages": [{"role": "user", "content": text}], **fields}).encode()


def outcome(endpoint: Endpoint, info: RoutingInfo, read: RequestBody) -> tuple[Any, ...]:
    """Return everything that decoding and encoding a body produces."""
    codec = next(iter(endpoint.codecs.values()))
    built = codec.encode_request(read, info, TARGET, lambda: None)
    return info, read.skeleton, parsed_body(built.body), built.dropped_fields


def parsed_body(sent: bytes) -> str:
    """Return the parsed body in field order. Escapes may be kept or re-encoded."""
    return repr(json.loads(sent, object_pairs_hook=tuple))


def decode_uncached(endpoint: Endpoint, raw: bytes) -> tuple[Any, ...] | str:
    read = RequestBody(raw)
    try:
        return outcome(endpoint, endpoint.decode_routing_info(read), read)
    except InvalidRequest as error:
        return str(error)


def decode_cached(endpoint: Endpoint, bodies: BodyCache, raw: bytes) -> tuple[Any, ...] | str:
    read = RequestBody(raw)
    try:
        return outcome(endpoint, bodies.decode_routing_info(endpoint, read), read)
    except InvalidRequest as error:
        return str(error)


def pass_through(read: RequestBody, info: RoutingInfo) -> bytes:
    return request_passthrough.pass_through_request(read, info, ModelProfile("other"), ask_usage=True).body


def info_of(endpoint: Endpoint, bodies: BodyCache, raw: bytes) -> RoutingInfo:
    return bodies.decode_routing_info(endpoint, RequestBody(raw))


def is_hit(first: bytes, second: bytes, endpoint: Endpoint = OPENAI) -> bool:
    """Whether the second body is a cache hit. Both must decode as they do without the cache."""
    bodies = BodyCache()
    assert decode_cached(endpoint, bodies, first) == decode_uncached(endpoint, first)
    seen = info_of(endpoint, bodies, first)
    assert decode_cached(endpoint, bodies, second) == decode_uncached(endpoint, second)
    try:
        return info_of(endpoint, bodies, second) is seen
    except InvalidRequest:
        return False


@pytest.mark.parametrize(
    "text", ["", "other", 'with "quotes" and \\', "lines\nof\ttext", "é, 日本, 😀", '","model":"dear', "\x00", "model"]
)
def test_body_cache_other_message_text_is_a_hit(text: str) -> None:
    assert is_hit(body("hi"), body(text))
    assert is_hit(body(text), body("hi"))
    assert is_hit(body("hi", max_tokens=5, n=2), body(text, max_tokens=5, n=2))
    raw = json.dumps({"messages": [{"role": "user", "content": text}], "model": "m"}, ensure_ascii=False).encode()
    assert is_hit(raw.replace(b"user", b"system"), raw) is False
    assert is_hit(raw, raw)


def test_body_cache_text_parts_and_anthropic_body_are_hits() -> None:
    first, second = body([{"type": "text", "text": "a"}]), body([{"type": "text", "text": "b"}])
    assert is_hit(first, second)
    assert is_hit(body("a", max_tokens=3), body("b", max_tokens=3), ANTHROPIC)


def test_body_cache_same_body_in_two_dialects_is_decoded_for_each() -> None:
    bodies = BodyCache()
    raw = body("a", max_tokens=3, stream=True)
    assert decode_cached(OPENAI, bodies, raw) == decode_uncached(OPENAI, raw)
    assert decode_cached(ANTHROPIC, bodies, raw) == decode_uncached(ANTHROPIC, raw)
    assert bodies.decode_routing_info(ANTHROPIC, RequestBody(raw)).include_usage
    assert not bodies.decode_routing_info(OPENAI, RequestBody(raw)).include_usage


@pytest.mark.parametrize(
    "second",
    [
        body("hi", model="dear"),
        body("hi", max_tokens=9),
        body(None),
        body("hi").replace(b'"hi"', b'"hi", "model": "dear", "x": "hi"'),
        body("hi").replace(b'"hi"', b'"a" "b"'),
        body("hi").replace(b'"hi"', b'"a\\"'),
        body("hi").replace(b'"hi"', b'"a\nb"'),
        body("hi").replace(b'"hi"', b'"\xff"'),
        body("hi").replace(b'"hi"', b'"\\ud800"'),
        body("hi").replace(b'"hi"', b'"\\x"'),
        body("hi").replace(b'"hi"', b'"'),
        body("hi").replace(b'"hi"', b""),
        b"",
    ],
)
def test_body_cache_other_difference_is_a_miss(second: bytes) -> None:
    assert not is_hit(body("hi"), second)


def test_body_cache_content_lookalike_is_a_miss() -> None:
    name = b'{"model":"m","messages":[{"role":"assistant","content":null,"x\\"content":"a"}]}'
    assert not is_hit(name, name.replace(b'"a"', b'"b"'))
    value = b'{"model":"m","messages":[{"role":"user","content":[]}],"a":"content","b":"c"}'
    assert not is_hit(value, value)
    other = body("hi", x=1).replace(b'"x": 1', b'"text": {"a": 1}')
    assert not is_hit(other, other.replace(b'"hi"', b'"ho"'))


def test_body_cache_duplicate_names_are_still_reencoded() -> None:
    first = b'{"model":"m","model":"n","messages":[{"role":"user","content":"a"}]}'
    second = first.replace(b'"a"', b'"b"')
    assert is_hit(first, second)
    assert json.loads(pass_through_request(openai, second, TARGET).body)["model"] == "other"


def test_body_cache_hit_depends_on_body_size_limits() -> None:
    assert not is_hit(body("x" * MAX_CACHED_BODY_BYTES), body("y" * MAX_CACHED_BODY_BYTES))
    assert not is_hit(body("hi"), body("x" * MIN_SKELETON_BODY_BYTES))
    assert is_hit(body("hi"), body("x" * (MIN_SKELETON_BODY_BYTES - 500)))


def test_body_cache_after_too_many_mismatches_is_disabled() -> None:
    bodies = BodyCache()
    for number in range(MAX_BODY_MISMATCHES):
        bodies.decode_routing_info(OPENAI, RequestBody(body("hi", seed=number)))
    raw = body("hi", seed=MAX_BODY_MISMATCHES)
    bodies.decode_routing_info(OPENAI, RequestBody(raw))
    assert bodies.decode_routing_info(OPENAI, RequestBody(raw)) is not None
    assert bodies._body is None


FRAGMENTS = st.lists(
    st.sampled_from(
        ['"', "\\", '\\"', "\\\\", "\\n", "\\u0041", "\\ud83d", "\\ude00", "content", '"content"', '"content":"', ":",
         ",", "{", "}", "[", "]", " ", "a", "é", "\n", '"model":"x"', '"text":"t"', "null", '"n":2', '"stream":true']
    ),
    max_size=12,
).map("".join)  # fmt: skip


@given(before=FRAGMENTS, texts=st.lists(FRAGMENTS, min_size=2, max_size=5), after=FRAGMENTS)
@example(before="", texts=["a", 'b","n":2,"x":"c'], after="")
@example(before="", texts=["", "\\u0041"], after="")
def test_body_cache_any_sequence_decodes_like_an_empty_cache(before: str, texts: list[str], after: str) -> None:
    for endpoint in (OPENAI, ANTHROPIC):
        bodies = BodyCache()
        for text in texts:
            messages = f'[{{"role":"user","content":"{text}"}}]'
            raw = f'{{"model":"m","max_tokens":7,"x":"{before}","messages":{messages}{after}}}'.encode()
            assert decode_cached(endpoint, bodies, raw) == decode_uncached(endpoint, raw)


def test_body_cache_hit_with_longer_text_has_spans_of_its_own_body() -> None:
    first = b'{"n":1,"messages":[{"role":"user","content":"a"}],"model":"m","seed":7}'
    bodies, seen = BodyCache(), RequestBody(first)
    info = bodies.decode_routing_info(OPENAI, seen)
    assert pass_through(seen, info) == first.replace(b'"m"', b'"other"')
    for text in (b"", b"b", b"longer text"):
        raw = first.replace(b'"a"', b'"%b"' % text)
        read = RequestBody(raw)
        assert bodies.decode_routing_info(OPENAI, read) is info
        assert read.field_spans == find_field_spans(raw)
        assert pass_through(read, info) == raw.replace(b'"m"', b'"other"')
