"""JSON skeletons: long bodies with the contents of their long strings removed."""

import json
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.codecs import decode_routing_info

from svc.dialects import anthropic, openai
from svc.dialects.base import Dialect
from svc.dialects.json_skeleton import (
    MAX_BODY_BACKSLASHES,
    MAX_BODY_VALUES,
    MAX_SKELETON_STRING_BYTES,
    MIN_SKELETON_BODY_BYTES,
    strip_long_strings,
)
from svc.errors import InvalidRequest

LONG = "a long text, " * 5000


def request(content: object, **more: object) -> bytes:
    return json.dumps({"messages": [{"role": "user", "content": content}], "model": "m", **more}).encode()


def test_skeleton_long_string_is_emptied_and_rest_is_unchanged() -> None:
    assert strip_long_strings(request(LONG, n=2)) == request("", n=2)


@pytest.mark.parametrize("end", ['say "yes"', "back\\", 'back\\\\"', '\\"', "\\\\\\"])
def test_skeleton_escaped_quote_or_backslash_does_not_end_string(end: str) -> None:
    assert json.loads(strip_long_strings(request(LONG + end, stop=end))) == json.loads(request("", stop=end))


def test_skeleton_short_body_returns_same_object() -> None:
    short = request("x" * (MIN_SKELETON_BODY_BYTES - 500))
    assert strip_long_strings(short) is short


def test_skeleton_body_of_short_strings_returns_same_object() -> None:
    full = request("x", stop=["quoted"] * 10_000)
    assert strip_long_strings(full) is full


def test_skeleton_escaped_quotes_in_long_string_are_removed() -> None:
    assert strip_long_strings(request('"quoted text" and more words beside it ' * 5_000)) == request("")


def test_skeleton_body_with_many_escaped_quotes_returns_same_object() -> None:
    full = request('"" ' * 10_000)
    assert strip_long_strings(full) is full


def test_skeleton_long_string_before_many_quotes_is_emptied() -> None:
    stop = ['"a"'] * 20_000
    assert strip_long_strings(request(LONG, stop=stop)) == request("", stop=stop)


def test_skeleton_unterminated_string_returns_same_object() -> None:
    cut = request(LONG)[:-40]
    assert strip_long_strings(cut) is cut


def test_skeleton_backslashes_in_long_string_are_removed() -> None:
    assert strip_long_strings(request("\\" * 100_000)) == request("")


@pytest.mark.parametrize("dialect", [openai.dialect, anthropic.dialect])
@pytest.mark.parametrize(
    "body",
    [
        request([{"type": "text", "text": "a"}] * (MAX_BODY_VALUES // 2)),
        request([{"type": "text", "text": 'say: "a, b"'}] * (MAX_BODY_VALUES // 2)),
        request("Hi", unknown=[0] * (2 * MAX_BODY_VALUES)),
        request("Hi", unknown={f"key {n}": None for n in range(MAX_BODY_VALUES)}),
        request("Hi", unknown=[[]] * (20 * MAX_BODY_VALUES)),
        request("Hi", unknown=[[[[[[[[[[]]]]]]]]]] * (MAX_BODY_VALUES // 5)),
        request("Hi", unknown=[{"a": {"b": {"c": {}}}}] * (MAX_BODY_VALUES // 5)),
    ],
    ids=["parts", "parts with punctuation in their text", "numbers", "keys", "far too many", "lists", "objects"],
)
def test_routing_info_too_many_values_raises_invalid_request(dialect: Dialect, body: bytes) -> None:
    with pytest.raises(InvalidRequest, match="values"):
        decode_routing_info(dialect, body)


@pytest.mark.parametrize("dialect", [openai.dialect, anthropic.dialect])
def test_routing_info_punctuation_in_strings_is_not_counted_as_values(dialect: Dialect) -> None:
    texts = [{"type": "text", "text": 'a, b: c, \\ "d" ' * 20} for _ in range(3_000)]
    assert decode_routing_info(dialect, request(texts, max_tokens=5)).model == "m"
    assert decode_routing_info(dialect, request("a, b: c, " * 500_000, max_tokens=5)).model == "m"


@pytest.mark.parametrize("dialect", [openai.dialect, anthropic.dialect])
def test_routing_info_too_many_backslashes_raises_invalid_request(dialect: Dialect) -> None:
    with pytest.raises(InvalidRequest, match="backslashes"):
        decode_routing_info(dialect, request('"' * (MAX_BODY_BACKSLASHES + 1)))
    assert decode_routing_info(dialect, request('"' * (MAX_BODY_BACKSLASHES // 2), max_tokens=5)).model == "m"


@pytest.mark.parametrize("dialect", [openai.dialect, anthropic.dialect])
@pytest.mark.parametrize("end", [b"", b"\\"])
def test_routing_info_unterminated_string_is_rejected_in_linear_time(dialect: Dialect, end: bytes) -> None:
    body = b'{"model":"' + b'\\"' * 10_000 + b"," * (3 * MAX_BODY_VALUES // 2) + end
    began = time.process_time()
    with pytest.raises(InvalidRequest, match="not valid JSON"):
        decode_routing_info(dialect, body)
    assert time.process_time() - began < 1.0


@given(st.lists(st.text(max_size=40) | st.just("x" * (2 * MAX_SKELETON_STRING_BYTES)), max_size=8))
def test_skeleton_random_texts_decodes_to_same_values(texts: list[str]) -> None:
    body = json.dumps({"pad": LONG, "texts": texts}, ensure_ascii=False).encode()
    short = ["" if len(text) > MAX_SKELETON_STRING_BYTES else text for text in texts]
    assert json.loads(strip_long_strings(body)) == {"pad": "", "texts": short}


@pytest.mark.parametrize("dialect", [openai.dialect, anthropic.dialect])
def test_routing_info_malformed_long_body_names_the_parse_error(dialect: Dialect) -> None:
    with pytest.raises(InvalidRequest, match="not valid JSON"):
        decode_routing_info(dialect, request(LONG)[:-2] + b",}")
    with pytest.raises(InvalidRequest, match="not valid UTF-8"):
        decode_routing_info(dialect, request(LONG + "@").replace(b"@", b"\xff"))
