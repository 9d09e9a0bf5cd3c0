"""The C module that checks UTF-8 and scans bodies, beside Python's decoder and the functions that replace it."""

from __future__ import annotations

import json
import re
from typing import Any

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from svc.dialects.anthropic import routing_info as anthropic
from svc.dialects.base import RequestBody
from svc.dialects.json_scan import check_utf8, is_string, is_utf8, scan_object
from svc.dialects.json_skeleton import MIN_SKELETON_BODY_BYTES
from svc.dialects.json_spans import read_fields
from svc.dialects.openai import routing_info as openai
from svc.errors import InvalidRequest

MAX_BYTES, MAX_NESTED_BYTES = 100, 20
DEPTH_OF_NESTED = 3
UTF8_EDGES = ("\x7f", "\x80", "\u07ff", "\u0800", "\ud7ff", "\ue000", "\uffff", "\U00010000", "\U0010ffff")
INVALID_UTF8 = (
    *(
        "80",
        "bf",
        "c080",
        "c1bf",
        "c3c3a9",
        "e09fbf",
        "eda080",
        "edbfbf",
        "f08fbfbf",
        "f4908080",
        "f5808080",
        "ff",
        "fe",
    ),
    *("fe", "f888808080", "e4bda0a0", "f09f988080", "e4bd61", "f09f9861", "c3", "e4bd", "f09f"),
)

compiled_only = pytest.mark.skipif(scan_object is None, reason="the hot path is not compiled")
texts = st.text(max_size=40) | st.sampled_from((19, 20, 21, 99, 100, 101)).map(lambda size: "é" + "t" * (size - 2))
values = st.recursive(
    st.none() | st.booleans() | st.integers() | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=10,
)
names = st.sampled_from(("model", "messages", "stream", "stream_options", "ключ", "x", ""))
spaces = st.sampled_from(("", " ", "\n\t", "\r  "))


@st.composite
def bodies(draw: st.DrawFn) -> tuple[dict[str, Any], bytes]:
    """Draw an object and its JSON, with spaces and with or without escapes outside names."""
    value = draw(st.dictionaries(names, values, max_size=5))
    space, is_escaped = draw(spaces), draw(st.booleans())
    members = [
        json.dumps(name, ensure_ascii=False) + space + ":" + space + json.dumps(field, ensure_ascii=is_escaped)
        for name, field in value.items()
    ]
    text = space + "{" + space + f"{space},{space}".join(members) + space + "}" + space
    return value, text.encode("utf-8", "surrogatepass")


def empty_long_strings(value: Any, raw_size: Any, depth: int = 0) -> Any:
    if isinstance(value, str):
        limit = MAX_NESTED_BYTES if depth >= DEPTH_OF_NESTED else MAX_BYTES
        return "" if raw_size(value) > limit else value
    if isinstance(value, list):
        return [empty_long_strings(item, raw_size, depth + 1) for item in value]
    if isinstance(value, dict):
        return {
            "" if raw_size(name) > MAX_BYTES else name: empty_long_strings(item, raw_size, depth + 1)
            for name, item in value.items()
        }
    return value


@pytest.mark.parametrize("before", range(34))
def test_is_utf8_letters_at_each_place_in_a_block_are_valid_only_if_complete(before: int) -> None:
    for letter in UTF8_EDGES:
        encoded = letter.encode()
        for after in (b"", b"a", "é".encode(), b"a" * 20):
            assert is_utf8(b"a" * before + encoded + after)
            for size in range(1, len(encoded)):
                assert not is_utf8(b"a" * before + encoded[:size] + after)
                assert not is_utf8(b"a" * before + encoded[size:] + after)


@pytest.mark.parametrize("invalid", INVALID_UTF8)
def test_is_utf8_invalid_bytes_are_found_at_each_place(invalid: str) -> None:
    for before in range(34):
        for after in (b"", b"a" * 16):
            raw = b"a" * before + bytes.fromhex(invalid) + after
            assert not is_utf8(raw)
            with pytest.raises(UnicodeDecodeError):
                check_utf8(raw)


@given(st.binary(max_size=80) | st.text(max_size=40).map(lambda text: text.encode()[1:]))
def test_is_utf8_agrees_with_python(raw: bytes) -> None:
    try:
        raw.decode()
        is_valid = True
    except UnicodeDecodeError:
        is_valid = False
    assert is_utf8(raw) == is_valid


@pytest.mark.parametrize("value", ["", "text", 1, -1, None, True, [], ["text"], {}])
def test_is_string_tells_strings_from_other_values(value: object) -> None:
    assert is_string(msgspec.Raw(msgspec.json.encode(value))) == isinstance(value, str)


@compiled_only
@given(bodies())
def test_scan_valid_body_finds_names_and_model_and_empties_long_strings(body: tuple[dict[str, Any], bytes]) -> None:
    assert scan_object is not None
    value, raw = body
    scan = scan_object(raw, MAX_BYTES, MAX_NESTED_BYTES)
    assert scan is not None
    skeleton, found, start, end = scan
    assert found == value.keys()
    assert json.loads(raw[start:end]) == value["model"] if "model" in value else end == 0
    spelled = {json.loads(string): len(string) - 2 for string in re.findall(rb'"(?:[^"\\]|\\.)*"', raw)}
    assert json.loads(skeleton) == empty_long_strings(value, spelled.__getitem__)
    assert skeleton is raw or len(skeleton) < len(raw)

    span = read_fields(raw, raw)
    assert span == (found, start, end)


@compiled_only
@given(bodies(), st.integers(0), st.binary(max_size=2), st.integers(0, 3))
@example(({}, b'{"model":"' + b"m" * 30 + b'"}'), 12, b'"', 0)
def test_scan_damaged_body_is_valid_only_if_its_skeleton_is(
    body: tuple[dict[str, Any], bytes], place: int, inserted: bytes, removed: int
) -> None:
    assert scan_object is not None
    raw = body[1]
    place %= len(raw) + 1
    raw = raw[:place] + inserted + raw[place + removed :]
    scan = scan_object(raw, MAX_BYTES, MAX_NESTED_BYTES)
    assert (scan is not None) == is_utf8(raw)
    if scan is None:
        return
    skeleton, found, start, end = scan
    assert is_json(skeleton) == is_json(raw)
    try:
        expected = read_fields(raw, raw)
    except InvalidRequest:
        return
    assert expected == (found, start, end) or not found


def is_json(raw: bytes) -> bool:
    try:
        msgspec.json.decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return False
    return True


@compiled_only
@pytest.mark.parametrize(
    "raw",
    [
        b'{"model":"a","model":"b"}',
        b'{"model":"a","x":{"model":1},"model":"b"}',
        b'{"mod\\u0065l":"a"}',
        b'{"a":1,"\\"":2}',
        b"{" + b",".join(b'"f%d":1' % number for number in range(300)) + b"}",
    ],
    ids=["repeated", "repeated after nested", "escaped letter", "escaped quote", "many"],
)
def test_scan_ambiguous_names_finds_none(raw: bytes) -> None:
    assert scan_object is not None
    scan = scan_object(raw, MAX_BYTES, MAX_NESTED_BYTES)
    assert scan is not None
    assert scan[:2] == (raw, set())


@compiled_only
@pytest.mark.parametrize(
    "escape", [rb"\x", rb"\u12x", rb"\ud800", rb"\udc00", rb"\ud800\ud800", rb"\ud83d\n", b"\n", b"\x00"]
)
def test_scan_string_with_invalid_escape_is_kept(escape: bytes) -> None:
    assert scan_object is not None
    for text in (b"a" * 30 + escape, escape + b"a" * 30, b"a" * 15 + escape + b"a" * 15):
        raw = b'{"messages":[{"content":"%b"},{"content":"%b"}]}' % (text, b"b" * 30)
        scan = scan_object(raw, MAX_BYTES, MAX_NESTED_BYTES)
        assert scan is not None
        assert scan[0] == b'{"messages":[{"content":"%b"},{"content":""}]}' % text


def test_chat_compared_name_in_escapes_is_checked() -> None:
    name = "".join(f"\\u{ord(letter):04x}" for letter in "json_schema")
    raw = b'{"model":"m","max_tokens":1,"messages":[{"role":"user","content":"a"}],'
    raw += b'"output_config":{"format":{"type":"%b"}}}' % name.encode()
    with pytest.raises(InvalidRequest, match="schema"):
        anthropic.decode_routing_info(RequestBody(raw))


@compiled_only
@pytest.mark.parametrize("size", [10, MIN_SKELETON_BODY_BYTES])
@pytest.mark.parametrize("invalid", [rb"\ud83d end", rb"\x", b"\n"])
def test_chat_invalid_text_of_any_length_is_rejected(invalid: bytes, size: int) -> None:
    raw = b'{"model":"m","messages":[{"role":"user","content":"%b%b"}]}' % (b"a" * size, invalid)
    with pytest.raises(InvalidRequest, match="not valid JSON"):
        openai.decode_routing_info(RequestBody(raw))


@compiled_only
def test_scan_body_with_too_many_strings_ends_early() -> None:
    assert scan_object is not None
    raw = b'{"messages":[%b"",{"content":"%b"}]}' % (b'"",' * (1 << 18), b"a" * 200)
    assert scan_object(raw, MAX_BYTES, MAX_NESTED_BYTES) == (raw, set(), 0, 0)
    with pytest.raises(InvalidRequest, match="values"):
        openai.decode_routing_info(RequestBody(raw))
