"""Bodies that are the last one again but for one text: read as if there had been no last one."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from svc.dialects.anthropic import dialect as ANTHROPIC
from svc.dialects.base import Dialect, Head, Target
from svc.dialects.bodies import LONGEST, STRANGE, Bodies
from svc.dialects.openai import dialect as OPENAI
from svc.dialects.outline import LONG_BODY
from svc.errors import InvalidRequest

TARGET = Target("other")


def body(text: Any, **fields: Any) -> bytes:
    return json.dumps({"model": "m", "messages": [{"role": "user", "content": text}], **fields}).encode()


def told(dialect: Dialect, head: Head, raw: bytes) -> tuple[Any, ...]:
    """All that comes of a head."""
    built = dialect.pass_request(raw, head, TARGET)
    fields = (head.model, head.stream, head.include_usage, head.max_tokens, head.answers, head.outline)
    return (*fields, meant(built.body), built.dropped)


def meant(sent: bytes) -> str:
    """What the provider reads: a text with escapes may go on as it came, or be written anew. Fields stay in order."""
    return repr(json.loads(sent, object_pairs_hook=tuple))


def fresh(dialect: Dialect, raw: bytes) -> tuple[Any, ...] | str:
    try:
        return told(dialect, dialect.head(raw), raw)
    except InvalidRequest as error:
        return str(error)


def later(dialect: Dialect, bodies: Bodies, raw: bytes) -> tuple[Any, ...] | str:
    try:
        return told(dialect, bodies.head(dialect, raw), raw)
    except InvalidRequest as error:
        return str(error)


def known(first: bytes, second: bytes, dialect: Dialect = OPENAI) -> bool:
    """The second was not read; and both give what they give alone."""
    bodies = Bodies()
    assert later(dialect, bodies, first) == fresh(dialect, first)
    seen = bodies.head(dialect, first).seen
    assert later(dialect, bodies, second) == fresh(dialect, second)
    try:
        return seen is not None and bodies.head(dialect, second).seen is seen
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
    bodies = Bodies()
    raw = body("a", max_tokens=3, stream=True)
    assert later(OPENAI, bodies, raw) == fresh(OPENAI, raw)
    assert later(ANTHROPIC, bodies, raw) == fresh(ANTHROPIC, raw)
    assert bodies.head(ANTHROPIC, raw).include_usage
    assert not bodies.head(OPENAI, raw).include_usage


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
    assert json.loads(OPENAI.pass_request(second, OPENAI.head(second), TARGET).body)["model"] == "other"


def test_long_bodies_are_not_remembered_and_long_texts_are_outlined() -> None:
    assert not known(body("x" * LONGEST), body("y" * LONGEST))
    assert not known(body("hi"), body("x" * LONG_BODY))
    assert known(body("hi"), body("x" * (LONG_BODY - 500)))


def test_who_never_asks_the_same_is_not_compared_any_more() -> None:
    bodies = Bodies()
    for number in range(STRANGE):
        bodies.head(OPENAI, body("hi", seed=number))
    raw = body("hi", seed=STRANGE)
    bodies.head(OPENAI, raw)
    assert bodies.head(OPENAI, raw) is not None
    assert bodies._head is None


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
    for dialect in (OPENAI, ANTHROPIC):
        bodies = Bodies()
        for text in texts:
            messages = f'[{{"role":"user","content":"{text}"}}]'
            raw = f'{{"model":"m","max_tokens":7,"x":"{before}","messages":{messages}{after}}}'.encode()
            assert later(dialect, bodies, raw) == fresh(dialect, raw)
