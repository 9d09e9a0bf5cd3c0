"""Byte spans of the top-level fields of a JSON body, and bodies with duplicate or escaped names."""

from __future__ import annotations

import json
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from svc.dialects.json_spans import ByteSpan, decode_unambiguous_fields, find_field_span

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=8,
)


def spans_of(raw: bytes) -> dict[str, ByteSpan] | None:
    """Return the span of each field, or None if the fields are ambiguous."""
    fields = decode_unambiguous_fields(raw)
    return {name: find_field_span(raw, fields, name) for name in fields} if fields else None


@given(
    st.dictionaries(st.from_regex(r"[a-z_]{1,6}", fullmatch=True), VALUES, min_size=1, max_size=6),
    st.sampled_from("\n\t "),
)
def test_field_spans_valid_body_cover_each_value(body: dict[str, object], space: str) -> None:
    raw = (space + json.dumps(body, separators=(f"{space},", f"{space}:{space}"), ensure_ascii=False) + space).encode()
    spans = spans_of(raw)
    assert spans is not None
    assert {name: json.loads(raw[start:end]) for name, (start, end) in spans.items()} == body


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
    st.lists(st.tuples(st.sampled_from(["a", "b", 'c"', ""]), VALUES), min_size=1, max_size=6), st.sampled_from("\n\t ")
)
def test_field_spans_any_pairs_cover_each_value_or_are_ambiguous(pairs: list[tuple[str, object]], space: str) -> None:
    fields = [f"{json.dumps(name)}{space}:{json.dumps(value, ensure_ascii=False)}" for name, value in pairs]
    raw = f"{space}{{{f'{space},'.join(fields)}}}".encode()
    spans = spans_of(raw)
    names = [name for name, _ in pairs]
    if len(set(names)) < len(names) or 'c"' in names:
        assert spans is None
    else:
        assert spans is not None
        assert {name: json.loads(raw[start:end]) for name, (start, end) in spans.items()} == dict(pairs)


@pytest.mark.parametrize("space", [b" ", b"\n", b"\r\n\t "])
def test_field_spans_long_whitespace_costs_one_search(space: bytes) -> None:
    gap = space * (8_000_000 // len(space))
    raw = gap + b'{"model"' + gap + b":" + gap + b'"m"' + gap + b"}" + gap
    began = time.process_time()
    assert spans_of(raw) == {"model": (len(gap) * 3 + len(b'{"model":'), len(gap) * 3 + len(b'{"model":"m"'))}
    assert time.process_time() - began < 2.0
