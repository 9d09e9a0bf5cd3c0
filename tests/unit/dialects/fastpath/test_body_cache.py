"""Bodies that are the last one again but for one text: read as if there had been no last one."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from tests.codecs import pass_through_request

from svc.dialects.base import ModelProfile, PassthroughCheck, RequestBody
from svc.dialects.endpoint import Endpoint
from svc.dialects.fastpath.body_cache import MAX_BODY_MISMATCHES, MAX_CACHED_BODY_BYTES, BodyCache
from svc.dialects.json_skeleton import MIN_SKELETON_BODY_BYTES
from svc.dialects.openai import dialect as openai
from svc.dialects.routing_info import RoutingInfo
from svc.errors import InvalidRequest
from svc.gateway.endpoints.chat_completions import endpoint as OPENAI
from svc.gateway.endpoints.messages import endpoint as ANTHROPIC

TARGET = ModelProfile("other")


def body(text: Any, **fields: Any) -> bytes:
    return json.dumps({"model": "m", "messages": [{"role": "user", "content": text}], **fields}).encode()


def told(endpoint: Endpoint, info: RoutingInfo, read: RequestBody) -> tuple[Any, ...]:
    """All that comes of a body."""
    codec = next(iter(endpoint.codecs.values()))
    built = codec.encode_request(read, info, TARGET, lambda: None)
    return info, read.skeleton, meant(built.body), built.dropped_fields


def meant(sent: bytes) -> str:
    """What the provider reads: a text with escapes may go on as it came, or be written anew. Fields stay in order."""
    return repr(json.loads(sent, object_pairs_hook=tuple))


def fresh(endpoint: Endpoint, raw: bytes) -> tuple[Any, ...] | str:
    read = RequestBody(raw)
    try:
        return told(endpoint, endpoint.decode_routing_info(read), read)
    except InvalidRequest as error:
        return str(error)


def later(endpoint: Endpoint, bodies: BodyCache, raw: bytes) -> tuple[Any, ...] | str:
    read = RequestBody(raw)
    try:
        return told(endpoint, bodies.decode_routing_info(endpoint, read), read)
    except InvalidRequest as error:
        return str(error)


def check_of(endpoint: Endpoint, bodies: BodyCache, raw: bytes) -> PassthroughCheck | None:
    """What is known of a body before anyone looked."""
    read = RequestBody(raw)
    bodies.decode_routing_info(endpoint, read)
    return read.passthrough_check


def known(first: bytes, second: bytes, endpoint: Endpoint = OPENAI) -> bool:
    """The second was not read; and both give what they give alone."""
    bodies = BodyCache()
    assert later(endpoint, bodies, first) == fresh(endpoint, first)
    seen = check_of(endpoint, bodies, first)
    assert later(endpoint, bodies, second) == fresh(endpoint, second)
    try:
        return seen is not None and check_of(endpoint, bodies, second) is seen
    except InvalidRequest:
        return False


@pytest.mark.parametrize(
    "text", ["", "other", 'with "quotes" and \\', "lines\nof\ttext", "é, 日本, 😀", '","model":"dear', "\x00", "model"]
)
def test_another_text_is_not_read(text: str) -> None:
    assert known(body("hi"), body(text))
    assert known(body(text), body("hi"))
    assert known(body("hi", max_tokens=5, n=2), body(text, max_tokens=5, n=2))
    raw = json.dumps({"messages": [{"role": "user", "content": text}], "model": "m"}, ensure_ascii=False).encode()
    assert known(raw.replace(b"user", b"system"), raw) is False
    assert known(raw, raw)


def test_a_text_in_parts_and_the_other_dialect() -> None:
    first, second = body([{"type": "text", "text": "a"}]), body([{"type": "text", "text": "b"}])
    assert known(first, second)
    assert known(body("a", max_tokens=3), body("b", max_tokens=3), ANTHROPIC)


def test_one_body_in_two_dialects_is_read_in_each() -> None:
    bodies = BodyCache()
    raw = body("a", max_tokens=3, stream=True)
    assert later(OPENAI, bodies, raw) == fresh(OPENAI, raw)
    assert later(ANTHROPIC, bodies, raw) == fresh(ANTHROPIC, raw)
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
def test_all_else_is_read(second: bytes) -> None:
    assert not known(body("hi"), second)


def test_what_looks_like_a_text_is_none() -> None:
    name = b'{"model":"m","messages":[{"role":"assistant","content":null,"x\\"content":"a"}]}'
    assert not known(name, name.replace(b'"a"', b'"b"'))
    value = b'{"model":"m","messages":[{"role":"user","content":[]}],"a":"content","b":"c"}'
    assert not known(value, value)
    other = body("hi", x=1).replace(b'"x": 1', b'"text": {"a": 1}')
    assert not known(other, other.replace(b'"hi"', b'"ho"'))


def test_an_ambiguous_body_stays_one() -> None:
    first = b'{"model":"m","model":"n","messages":[{"role":"user","content":"a"}]}'
    second = first.replace(b'"a"', b'"b"')
    assert known(first, second)
    assert json.loads(pass_through_request(openai, second, TARGET).body)["model"] == "other"


def test_long_bodies_are_not_remembered_and_long_texts_are_outlined() -> None:
    assert not known(body("x" * MAX_CACHED_BODY_BYTES), body("y" * MAX_CACHED_BODY_BYTES))
    assert not known(body("hi"), body("x" * MIN_SKELETON_BODY_BYTES))
    assert known(body("hi"), body("x" * (MIN_SKELETON_BODY_BYTES - 500)))


def test_who_never_asks_the_same_is_not_compared_any_more() -> None:
    bodies = BodyCache()
    for number in range(MAX_BODY_MISMATCHES):
        bodies.decode_routing_info(OPENAI, RequestBody(body("hi", seed=number)))
    raw = body("hi", seed=MAX_BODY_MISMATCHES)
    bodies.decode_routing_info(OPENAI, RequestBody(raw))
    assert bodies.decode_routing_info(OPENAI, RequestBody(raw)) is not None
    assert bodies._body is None


PIECES = st.lists(
    st.sampled_from(
        ['"', "\\", '\\"', "\\\\", "\\n", "\\u0041", "\\ud83d", "\\ude00", "content", '"content"', '"content":"', ":",
         ",", "{", "}", "[", "]", " ", "a", "é", "\n", '"model":"x"', '"text":"t"', "null", '"n":2', '"stream":true']
    ),
    max_size=12,
).map("".join)  # fmt: skip


@given(before=PIECES, texts=st.lists(PIECES, min_size=2, max_size=5), after=PIECES)
@example(before="", texts=["a", 'b","n":2,"x":"c'], after="")
@example(before="", texts=["", "\\u0041"], after="")
def test_whatever_comes_is_read_as_if_it_were_the_first(before: str, texts: list[str], after: str) -> None:
    for endpoint in (OPENAI, ANTHROPIC):
        bodies = BodyCache()
        for text in texts:
            messages = f'[{{"role":"user","content":"{text}"}}]'
            raw = f'{{"model":"m","max_tokens":7,"x":"{before}","messages":{messages}{after}}}'.encode()
            assert later(endpoint, bodies, raw) == fresh(endpoint, raw)
