"""Byte spans of the top-level fields of a JSON body, and bodies with duplicate or escaped names."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from svc.dialects.json_spans import ByteSpan, decode_unambiguous_fields, find_field_spans

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=8,
)


def spans_of(raw: bytes) -> dict[str, ByteSpan] | None:
    """Return the span of each field, or None if the fields are ambiguous."""
    fields = decode_unambiguous_fields(raw)
    spans = find_field_spans(raw, fields) if fields else None
    assert spans is None or spans.keys() == fields.keys()
    return spans


SEPARATORS = [(",", ":"), (", ", ": ")]
"""Those without whitespace, and those of `json.dumps`."""


@given(
    st.dictionaries(st.from_regex(r"[a-z_]{1,6}", fullmatch=True), VALUES, min_size=1, max_size=6),
    st.sampled_from(SEPARATORS),
)
def test_field_spans_valid_body_cover_each_value(body: dict[str, object], separators: tuple[str, str]) -> None:
    raw = json.dumps(body, separators=separators, ensure_ascii=False).encode()
    spans = spans_of(raw)
    assert spans is not None
    assert {name: json.loads(raw[start:end]) for name, (start, end) in spans.items()} == body


@pytest.mark.parametrize(
    "raw",
    [
        b' {"a":1}',
        b'{"a":1}\n',
        b'{ "a": 1}',
        b'{"a": 1 }',
        b'{"a": 1,"b": 2}',
        b'{"a":1, "b":2}',
        b'{"a" : 1}',
        b'{\n  "a": 1,\n  "b": 2\n}',
        b"{}",
        b'{"' + b"a" * 1000 + b'": 1}',
        '{"ä": 1}'.encode(),
    ],
)
def test_field_spans_other_whitespace_or_name_returns_none(raw: bytes) -> None:
    json.loads(raw)
    assert spans_of(raw) is None


@pytest.mark.parametrize(
    "raw", [b'{"a": 1, "b": {"a": 2}, "a": 1}', b'{"a": 1, "a": 1}', b'{"\\u0061": 1}', b'{"a": 1,"":1,"":1}']
)
def test_field_spans_ambiguous_body_with_spaces_returns_none(raw: bytes) -> None:
    json.loads(raw)
    assert spans_of(raw) is None


@pytest.mark.parametrize(
    "raw",
    [
        b'{"a":1,"a":1}',
        b'{"a":1,"b":2,"a":1}',
        b'{"a":1,"\\u0061":2}',
        b'{"\\u0061":2}',
        b'{"a":[1],"b":{"a":1},"a":[1]}',
        b'{"a":",\\"a\\":","a":",\\"a\\":"}',
    ],
)
def test_field_spans_duplicate_or_escaped_name_returns_none(raw: bytes) -> None:
    assert spans_of(raw) is None


@pytest.mark.parametrize(
    "raw",
    [
        b'{"x":12,"x":1}',
        b'{"a":0,"x":12,"x":1,"b":0}',
        rb'{"x":{"y":1},"n":12,"x":{"y":1},"\"x\":{\"y":1,"n":1}',
        rb'{"x":{"y":1},"model":"m","max_tokens":10000,"x":{"y":1},"00,\"x\":{\"y":1,"max_tokens":1}',
        rb'{"x":{"y":1,"model":"a","messages":[]},"z":12,"x":{"y":1,"model":"a","messages":[]},'
        rb'"\"x\":{\"y":1,"model":"a","messages":[],"z":1}',
    ],
)
def test_field_spans_value_that_is_prefix_of_earlier_value_returns_none(raw: bytes) -> None:
    json.loads(raw)
    assert spans_of(raw) is None


@given(
    st.lists(st.tuples(st.sampled_from(["a", "b", 'c"', ""]), VALUES), min_size=1, max_size=6),
    st.sampled_from(SEPARATORS),
    st.sampled_from(SEPARATORS),
)
def test_field_spans_any_pairs_cover_each_value_or_are_ambiguous(
    pairs: list[tuple[str, object]], outer: tuple[str, str], inner: tuple[str, str]
) -> None:
    (comma, colon) = outer
    fields = [
        f"{json.dumps(name)}{colon}{json.dumps(value, ensure_ascii=False, separators=inner)}" for name, value in pairs
    ]
    raw = f"{{{comma.join(fields)}}}".encode()
    spans = spans_of(raw)
    names = [name for name, _ in pairs]
    if len(set(names)) < len(names) or 'c"' in names:
        assert spans is None
    else:
        assert spans is not None
        assert {name: json.loads(raw[start:end]) for name, (start, end) in spans.items()} == dict(pairs)
