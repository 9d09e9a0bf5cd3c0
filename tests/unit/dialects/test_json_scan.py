"""The C module that checks UTF-8 and scans bodies, beside Python's decoder and the functions that replace it."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
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
from svc.dialects.routing_info import RoutingInfo
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

DAMAGE = (b'"', b"{}", b"[1]", b"1", b"e", b".", b"-", b"null", b"\\u00e9", b"\\", b"]", b"}", b",", b":", b"\xc3")
VALID_ESCAPES = (
    rb"\"",
    rb"\\",
    rb"\/",
    rb"\b",
    rb"\f",
    rb"\n",
    rb"\r",
    rb"\t",
    rb"\u00e9",
    rb"\ud83d\uDE00",
    rb"\\\"",
    rb"\\u",
)
INVALID_ESCAPES = (
    *(
        rb"\x",
        rb"\u12x",
        rb"\ud800",
        rb"\udc00",
        rb"\ud800\ud800",
        rb"\ud83d\n",
        rb"\ud83d\\udc00",
        b"\n",
        b"\x00",
        rb"\U0041",
    ),
    *(b"\\\xc3\xa9", b"\\\n", rb"\ud83d\ude00\ude00", rb"\ud83du\ude00"),
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


def scan_all(raw: bytes) -> tuple[bytes, set[str], int, int] | None:
    """Scan a body, of which all fields are kept."""
    assert scan_object is not None
    return scan_object(raw, None, (), (), MAX_BYTES, MAX_NESTED_BYTES)


def scan_chat(raw: bytes) -> bytes | None:
    """Return the skeleton of a chat with its model and messages."""
    assert scan_object is not None
    scan = scan_object(raw, (b"model", b"messages"), (b"user", b"tool"), (b"text",), len(raw), len(raw))
    return None if scan is None else scan[0]


@compiled_only
@given(bodies())
def test_scan_valid_body_finds_names_and_model_and_empties_long_strings(body: tuple[dict[str, Any], bytes]) -> None:
    value, raw = body
    scan = scan_all(raw)
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
@given(bodies())
def test_scan_with_kept_fields_leaves_out_others(body: tuple[dict[str, Any], bytes]) -> None:
    assert scan_object is not None
    value, raw = body
    for kept in ((), ("model",), ("stream", "x", "model")):
        scan = scan_object(raw, tuple(name.encode() for name in kept), (), (), len(raw), len(raw))
        assert scan is not None
        assert json.loads(scan[0]) == {name: field for name, field in value.items() if name in kept}
        assert scan[1] == value.keys()


@compiled_only
@given(bodies(), st.integers(0), st.binary(max_size=2) | st.sampled_from(DAMAGE), st.integers(0, 3))
@example(({}, b'{"model":"' + b"m" * 30 + b'"}'), 12, b'"', 0)
def test_scan_damaged_body_is_none_unless_it_is_unambiguous_json(
    body: tuple[dict[str, Any], bytes], place: int, inserted: bytes, removed: int
) -> None:
    raw = body[1]
    place %= len(raw) + 1
    raw = raw[:place] + inserted + raw[place + removed :]
    scan = scan_all(raw)
    is_body = is_utf8(raw) and is_object(raw)
    names, start, end = read_fields(raw, raw) if is_body else (set(), 0, 0)
    if is_body and (names or raw.translate(None, b" \n\r\t") == b"{}"):
        assert scan is not None
        assert scan[1:] == (names, start, end)
        assert is_object(scan[0])
    else:
        assert scan is None


def is_object(raw: bytes) -> bool:
    """Return whether msgspec accepts a body, of which it skips all values: a number may be too large to decode."""
    try:
        msgspec.json.decode(raw, type=dict[str, msgspec.Raw])
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
        b'{"a":' + b"[" * 200 + b"]" * 200 + b"}",
        b'{"a":[%b0]}' % (b"0," * (1 << 17)),
        b"[]",
        b"",
    ],
    ids=[
        "repeated",
        "repeated after nested",
        "escaped letter",
        "escaped quote",
        "many",
        "deep",
        "values",
        "array",
        "none",
    ],
)
def test_scan_unusual_body_is_none(raw: bytes) -> None:
    assert scan_all(raw) is None


@compiled_only
@pytest.mark.parametrize("number", ["0", "-0", "10.5e-3", "1E+2", "123456789012345678901234567890", "0.0"])
@pytest.mark.parametrize("invalid", ["01", "1.", ".5", "-", "1e", "+1", "1e+", "0x1", "NaN", "tru", "nulll", "1 1"])
def test_scan_numbers_and_words_are_those_of_json(number: str, invalid: str) -> None:
    assert scan_all(f'{{"a":[{number}],"b":{number}}}'.encode()) is not None
    assert scan_all(f'{{"a":[{invalid}]}}'.encode()) is None
    assert scan_all(f'{{"b":{invalid}}}'.encode()) is None


@compiled_only
@pytest.mark.parametrize("before", range(70))
def test_scan_escapes_at_each_place_in_a_step(before: int) -> None:
    for escape in VALID_ESCAPES:
        for after in (b"", b"a", b"a" * 70):
            raw = b'{"a":"%b%b%b"}' % (b"b" * before, escape, after)
            assert scan_all(raw) is not None, raw
            assert scan_all(raw.replace(b"}", b"")) is None
    for escape in INVALID_ESCAPES:
        for after in (b"", b"a", b"a" * 70):
            raw = b'{"a":"%b%b%b"}' % (b"b" * before, escape, after)
            assert scan_all(raw) is None, raw


@compiled_only
@given(st.text(alphabet='\\"nu0d8c9 \n', max_size=200))
def test_scan_backslashes_are_those_of_msgspec(text: str) -> None:
    raw = b'{"a":"%b"}' % text.encode()
    assert (scan_all(raw) is not None) == (is_object(raw) and len(read_fields(raw, raw)[0]) == 1)


@compiled_only
@pytest.mark.parametrize(
    ("message", "is_plain"),
    [
        (b'{"role":"user","content":"a"}', True),
        (b'{ "content" : "" , "name":"n", "role" : "tool", "x": [{"role":1}]}', True),
        (b'{"role":"user","content":[{"type":"text","text":"a"},{"text":null,"type":"text"},{"type":"text"}]}', True),
        (b'{"role":"user","content":[]}', True),
        (b'{"role":"other","content":"a"}', False),
        (b'{"role":"us\\u0065r","content":"a"}', False),
        (b'{"role":"user","role":"user","content":"a"}', False),
        (b'{"role":"user","content":"a","content":"b"}', False),
        (b'{"role":"user","content":"a","\\u0072ole":"x"}', False),
        (b'{"role":"user","content":null}', False),
        (b'{"role":"user","content":{}}', False),
        (b'{"role":"user"}', False),
        (b'{"content":"a"}', False),
        (b'{"role":null,"content":"a"}', False),
        (b'{"role":"user","content":[{"type":"image_url"}]}', False),
        (b'{"role":"user","content":[{"type":"text","text":1}]}', False),
        (b'{"role":"user","content":[{"type":"text","text":[]}]}', False),
        (b'{"role":"user","content":[{"type":"text","type":"text"}]}', False),
        (b'{"role":"user","content":["a"]}', False),
        (b'{"role":"user","content":[{"type":"text"},{"type":"image_url"},{"type":"text"}]}', False),
        (b'"user"', False),
        (b"[]", False),
    ],
)
def test_scan_chat_leaves_out_plain_messages_after_the_first(message: bytes, is_plain: bool) -> None:
    first = b'{"role":"system","content":"first"}'
    raw = b'{"messages": [%b, %b ,%b], "x": 1}' % (first, message, message)
    kept = [first] if is_plain else [first, message, message]
    assert scan_chat(raw) == b'{"messages": [%b]}' % b",".join(kept)
    assert scan_chat(b'{"messages":[%b]}' % message) == b'{"messages":[%b]}' % message
    for end in range(len(raw)):
        assert scan_chat(raw[:end]) is None


@st.composite
def chats(draw: st.DrawFn) -> bytes:
    """Draw a chat without the last brace, with and without errors."""
    roles = st.sampled_from(('"user"', '"assistant"', '"tool"', '"function"', '"robot"', '"us\\u0065r"', "null"))
    texts = st.sampled_from(('"a"', '"ü\\n"', '""', "null", "1", "{}", '"' + "t" * 120 + '"'))
    types = st.sampled_from(('"text"', '"refusal"', '"image_url"', '"tool_result"', '"' + "t" * 120 + '"', "1"))
    members = st.lists(st.tuples(st.just("type"), types) | st.tuples(st.sampled_from(("text", "content")), texts))
    parts = st.lists(members.map(write_object), max_size=3).map(write_array)
    fields = st.tuples(st.just("role"), roles) | st.tuples(st.sampled_from(("content", "c\\u006fntent")), texts | parts)
    messages = st.lists(st.lists(fields, max_size=4).map(write_object) | texts, max_size=4).map(write_array)
    other = st.tuples(st.sampled_from(("stream", "n", "max_tokens", "system")), st.sampled_from(("1", "true", "null")))
    others = draw(st.lists(other, max_size=3, unique_by=lambda pair: pair[0]))
    members_drawn = draw(
        st.permutations([("model", '"m"'), ("max_tokens", "5"), ("messages", draw(messages)), *others])
    )
    return write_object(dict(members_drawn).items())[:-1].encode()


def write_object(members: Iterable[tuple[str, str]]) -> str:
    return "{" + ", ".join(f'"{name}": {value}' for name, value in members) + "}"


def write_array(values: Iterable[str]) -> str:
    return "[" + ",".join(values) + "]"


@compiled_only
@given(chats())
@pytest.mark.parametrize("dialect", [openai, anthropic])
def test_chat_decoded_from_its_skeleton_is_that_of_all_messages(dialect: Any, chat: bytes) -> None:
    escaped_name = b', "\\u0061": 1}'  # such a body is not scanned
    assert decode_chat(dialect, chat + b"}") == decode_chat(dialect, chat + escaped_name)


def decode_chat(dialect: Any, raw: bytes) -> tuple[object, ...]:
    """Return what is read of a chat, or its error."""
    body = RequestBody(raw)
    try:
        info: RoutingInfo = dialect.decode_routing_info(body)
    except InvalidRequest as error:
        return error.message, error.param
    return info.model, info.stream, info.max_tokens, info.choice_count, body.has_only_text


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
def test_long_body_with_too_many_strings_is_rejected() -> None:
    raw = b'{"messages":[%b"",{"content":"%b"}]}' % (b'"",' * (1 << 18), b"a" * 200)
    with pytest.raises(InvalidRequest, match="values"):
        openai.decode_routing_info(RequestBody(raw))
