"""The C module that checks UTF-8 and scans bodies, beside Python's decoder and the functions that replace it."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable
from typing import Any

import msgspec
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from svc.dialects import json_skeleton
from svc.dialects.anthropic import routing_info as anthropic
from svc.dialects.base import RequestBody
from svc.dialects.json_scan import check_utf8, find_closing_quote, is_string, is_utf8, scan_object
from svc.dialects.json_skeleton import MAX_BODY_VALUES, MIN_SKELETON_BODY_BYTES, has_excess_values
from svc.dialects.json_spans import read_fields
from svc.dialects.openai import routing_info as openai
from svc.dialects.routing_info import RoutingInfo
from svc.errors import InvalidRequest

MAX_BYTES, MAX_NESTED_BYTES = 100, 20
DEPTH_OF_NESTED = 3
MAX_LEVELS = 1024
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
def test_scan_damaged_body_is_none_unless_it_is_json(
    body: tuple[dict[str, Any], bytes], place: int, inserted: bytes, removed: int
) -> None:
    raw = damage(body[1], place, inserted, removed)
    scan = scan_all(raw)
    if not is_object(raw):
        assert scan is None
        assert scan_chat(raw) is None
        return
    assert scan is not None
    assert is_object(scan[0])
    names, start, end = read_fields(raw, raw)
    assert scan[1] == names
    is_unambiguous = bool(names) or raw.translate(None, b" \n\r\t") == b"{}"
    assert not is_unambiguous or scan[2:] == (start, end)
    assert (scan_chat(raw) is not None) == is_unambiguous


@compiled_only
@given(st.integers(0), st.binary(max_size=2) | st.sampled_from(DAMAGE), st.integers(0, 3))
def test_scan_damaged_messages_are_none_unless_they_are_json(place: int, inserted: bytes, removed: int) -> None:
    message = b'{"role":"user","content":[{"type":"text","text":"a"},{"text":null,"type":"text"}]}'
    raw = damage(
        b'{"messages":[%b, {"content":"b","x":[],"role":"tool"},%b]}' % (message, message), place, inserted, removed
    )
    reduced = scan_chat(raw)
    if is_object(raw) and read_fields(raw, raw)[0]:
        assert reduced is not None
        assert is_object(reduced)
    else:
        assert reduced is None


def damage(raw: bytes, place: int, inserted: bytes, removed: int) -> bytes:
    place %= len(raw) + 1
    return raw[:place] + inserted + raw[place + removed :]


@compiled_only
@pytest.mark.parametrize(
    "messages",
    [
        *(
            b'[{"role":"user",}]',
            b'[{"role":"user"},]',
            b'[{"role":"user"}{"role":"user"}]',
            b"[,]",
            b"[{,}]",
            b"[1 2]",
        ),
        *(b'[{"content":[{"type":"text"},]}]', b'[{"content":[{"type":"text"}}]', b'[{"content":[{}{}]}]', b"[", b"[{"),
    ],
)
def test_scan_malformed_messages_are_none(messages: bytes) -> None:
    assert scan_chat(b'{"messages":%b}' % messages) is None


def is_object(raw: bytes) -> bool:
    """Return whether msgspec accepts a body, of which it skips all values: a number may be too large to decode."""
    try:
        msgspec.json.decode(raw, type=dict[str, msgspec.Raw])
    except (msgspec.DecodeError, UnicodeDecodeError):
        return False
    return is_utf8(raw)


@compiled_only
@pytest.mark.parametrize(
    "raw",
    [
        b'{"model":"a","model":"b"}',
        b'{"model":"a","x":{"model":1},"model":"b"}',
        b'{"mod\\u0065l":"a"}',
        b'{"a":1,"\\"":2}',
        b"{" + b",".join(b'"f%d":1' % number for number in range(257)) + b"}",
    ],
    ids=["repeated", "repeated after nested", "escaped letter", "escaped quote", "many"],
)
def test_scan_ambiguous_names_are_empty(raw: bytes) -> None:
    scan = scan_all(raw)
    assert scan is not None
    assert scan[:2] == (raw, set())
    assert scan_chat(raw) is None


@compiled_only
@pytest.mark.parametrize("raw", [b"[]", b"", b" ", b"{}{}", b"{} x", b'"a"', b"\xef\xbb\xbf{}"])
def test_scan_other_value_than_an_object_is_none(raw: bytes) -> None:
    assert scan_all(raw) is None


@compiled_only
def test_scan_body_with_most_fields_and_levels_is_read() -> None:
    assert scan_object is not None
    fields = b"{" + b",".join(b'"f%d":1' % number for number in range(256)) + b"}"
    assert len((scan_all(fields) or [b"", set()])[1]) == 256
    levels = MAX_LEVELS - 1
    assert scan_all(b'{"a":' + b"[" * levels + b"]" * levels + b"}") is not None
    with pytest.raises(RecursionError):
        scan_all(b'{"a":' + b"[" * (levels + 1) + b"]" * (levels + 1) + b"}")


@compiled_only
@pytest.mark.parametrize(("element", "count"), [(b"0,", 1), (b"[[0]],", 3), (b'{"":0},', 3)])
@pytest.mark.parametrize(
    ("template", "other_count"), [(b'{"a":[%b]}', 2), (b'{"messages":[{"role":"user","content":[%b]}]}', 7)]
)
def test_scan_counts_values_as_from_source(template: bytes, other_count: int, element: bytes, count: int) -> None:
    assert scan_object is not None
    space = MAX_BODY_VALUES - other_count
    elements = element * (space // count) + b"0," * (space % count)
    for added, is_excess in ((b"", False), (b"0,", True)):
        raw = template % (elements + added)[:-1]
        assert has_excess_values(raw) == is_excess
        for kept_names in (None, (b"messages",)):
            try:
                scan = scan_object(raw, kept_names, (b"user",), (b"text",), len(raw), len(raw))
            except ValueError:
                assert is_excess
            else:
                assert scan is not None
                assert not is_excess


@compiled_only
@pytest.mark.parametrize("size", [MIN_SKELETON_BODY_BYTES - 1, MIN_SKELETON_BODY_BYTES, MIN_SKELETON_BODY_BYTES + 1])
def test_scan_body_at_the_limit_of_short_bodies_is_whole(size: int) -> None:
    empty = b'{"model":"m","messages":[{"role":"user","content":[]},{"role":"tool","content":"%b"}]}'
    raw = empty % (b"t" * (size - len(empty) + 2))
    assert len(raw) == size
    assert scan_chat(raw) == b'{"model":"m","messages":[{"role":"user","content":[]}]}'
    assert scan_all(raw) == (empty % b"", {"model", "messages"}, 9, 12)
    body = RequestBody(raw)
    openai.decode_routing_info(body)
    assert body.skeleton == (raw if size < MIN_SKELETON_BODY_BYTES else empty % b"")


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


@given(st.text(alphabet='\\"nu0é', max_size=200))
def test_find_closing_quote_agrees_with_the_search_from_source(text: str) -> None:
    raw = json.dumps(text, ensure_ascii=False).encode() + b" "
    assert find_closing_quote(raw, 1) == json_skeleton.find_closing_quote(raw, 1) == len(raw) - 2
    assert find_closing_quote(raw, len(raw)) == find_closing_quote(b"", 0) == -1
    assert find_closing_quote(raw[:-2], 1) == -1


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


OTHER_FIELDS = (
    *(("max_tokens", "5"), ("max_tokens", "5"), ("max_tokens", "0"), ("stream", "true"), ("stream", "1"), ("n", "2")),
    *(("tools", '[{"name":"t"}]'), ("system", '[{"type":"text","text":"a"}]'), ("metadata", "{}"), ("top_p", "null")),
)
PLAIN_MESSAGES = (
    '{"role": "user", "content": "a"}',
    '{"content":"ü\\n","name":"n","role":"assistant"}',
    '{"role":"user","content":[{"type":"text","text":"a"},{"type":"text","text":"b","cache_control":{"type":"ephemeral"}}]}',
)
OTHER_MESSAGES = (
    '{"role":"assistant","content":null,"tool_calls":[]}',
    '{"role":"user","content":[{"type":"image_url","image_url":{"url":"u"}}]}',
    '{"role":"user","content":[{"type":"tool_result","content":[{"type":"text","text":"a"}]}]}',
    '{"role":"user","content":[{"type":"tool_result","content":[{"type":"image"}]}]}',
    '{"role":"user","content":[{"type":"text","text":null},{"type":"refusal"}]}',
    '{"role":"us\\u0065r","content":"a"}',
    '{"role":"user","c\\u006fntent":"a"}',
    '{"role":"user","content":"a","content":1}',
    '{"role":"user","content":1,"content":"a"}',
    '{"role":"robot","role":"user","content":"a"}',
    '{"role":"user","role":"robot","content":"a"}',
    '{"role":"user","content":"a","c\\u006fntent":1}',
    '{"role":"user","content":[{"type":"text","text":1}]}',
    '{"role":"user","content":[{"type":"text","text":"a","t\\u0065xt":1}]}',
    '{"role":"user","content":[{"text":"a"}]}',
    '{"role":"user","content":["a"]}',
    '{"role":"user","content":{}}',
    '{"role":"user","content":1}',
    '{"role":"user"}',
    '{"role":"robot","content":"a"}',
    '{"content":"a"}',
    "null",
)


@st.composite
def chats(draw: st.DrawFn) -> bytes:
    """Draw a chat without the last brace, whose messages are plain, except for one at most."""
    messages = draw(st.lists(st.sampled_from(PLAIN_MESSAGES), max_size=5))
    messages += draw(st.lists(st.sampled_from(OTHER_MESSAGES), max_size=1))
    messages += draw(st.lists(st.sampled_from(PLAIN_MESSAGES), max_size=2))
    others = draw(st.lists(st.sampled_from(OTHER_FIELDS), max_size=3, unique_by=lambda pair: pair[0]))
    members = draw(st.permutations([("model", '"m"'), ("messages", write_array(messages)), *others]))
    return write_object(members)[:-1].encode()


def write_object(members: Iterable[tuple[str, str]]) -> str:
    return "{" + ", ".join(f'"{name}": {value}' for name, value in members) + "}"


def write_array(values: Iterable[str]) -> str:
    return "[" + ",".join(values) + "]"


@compiled_only
@settings(max_examples=300)
@given(chats())
@pytest.mark.parametrize("dialect", [openai, anthropic])
def test_chat_decoded_from_its_reduced_body_is_that_of_all_messages(dialect: Any, chat: bytes) -> None:
    escaped_name = b', "\\u0061": 1}'  # such a body is not reduced
    assert decode_chat(dialect, chat + b"}") == decode_chat(dialect, chat + escaped_name)


@pytest.mark.parametrize("size", [1, MIN_SKELETON_BODY_BYTES])
@pytest.mark.parametrize("place", range(4))
@pytest.mark.parametrize(
    "decode", [openai.decode_routing_info, anthropic.decode_routing_info, anthropic.decode_count_routing_info]
)
def test_chat_invalid_content_has_the_index_of_its_message(
    decode: Callable[[RequestBody], RoutingInfo], place: int, size: int
) -> None:
    messages = ['{"role":"user","content":"%s"}' % ("a" * size)] * 4
    for message, field in (('"content":1', ""), ('"content":[{"type":"text","text":[]}]', "[0].text")):
        messages[place] = f'{{"role":"user",{message}}}'
        with pytest.raises(InvalidRequest) as caught:
            decode(RequestBody(write_chat(messages)))
        assert caught.value.param == f"messages[{place}].content{field}"


@pytest.mark.parametrize("size", [1, MIN_SKELETON_BODY_BYTES])
@pytest.mark.parametrize("place", range(4))
@pytest.mark.parametrize("dialect", [openai, anthropic])
def test_chat_image_in_any_message_is_not_only_text(dialect: Any, place: int, size: int) -> None:
    messages = ['{"role":"user","content":"%s"}' % ("a" * size)] * 4
    assert decode_chat(dialect, write_chat(messages))[-1] is True
    messages[place] = '{"role":"user","content":[{"type":"image"}]}'
    assert decode_chat(dialect, write_chat(messages))[-1] is False


def write_chat(messages: Iterable[str]) -> bytes:
    return f'{{"model":"m","max_tokens":1,"messages":{write_array(messages)}}}'.encode()


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
@pytest.mark.parametrize(
    ("end", "message"),
    [
        (b',"\\u0061":1}', ""),
        (b',"model":"n"}', ""),
        (b"", "not valid JSON"),
        (b',"x":"\xff"}', "not valid UTF-8"),
        (b',"x":[%b0]}' % (b"0," * MAX_BODY_VALUES), "values"),
        (b',"x":' + b"[" * MAX_LEVELS, "nested"),
    ],
    ids=["escaped name", "repeated name", "truncated", "invalid", "many values", "deep"],
)
def test_long_body_that_is_ambiguous_or_invalid_has_no_names(end: bytes, message: str) -> None:
    raw = b'{"model":"m","messages":[{"role":"user","content":"%b"}]%b' % (b'\\",' * 20_000, end)
    body = RequestBody(raw)
    if message:
        with pytest.raises(InvalidRequest, match=message):
            openai.decode_routing_info(body)
    else:
        assert openai.decode_routing_info(body).model in ("m", "n")
        assert len(body.skeleton) < 200
    assert not body.field_names
