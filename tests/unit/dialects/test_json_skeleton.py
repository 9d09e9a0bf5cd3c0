"""Long bodies without the insides of their long strings."""

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


def test_long_strings_are_emptied_and_all_else_stays() -> None:
    assert strip_long_strings(request(LONG, n=2)) == request("", n=2)


@pytest.mark.parametrize("end", ['say "yes"', "back\\", 'back\\\\"', '\\"', "\\\\\\"])
def test_escaped_quotes_and_backslashes_do_not_end_a_string(end: str) -> None:
    assert json.loads(strip_long_strings(request(LONG + end, stop=end))) == json.loads(request("", stop=end))


def test_a_short_body_stays_itself() -> None:
    short = request("x" * (MIN_SKELETON_BODY_BYTES - 500))
    assert strip_long_strings(short) is short


def test_body_full_of_short_strings_stays_itself() -> None:
    full = request("x", stop=["quoted"] * 10_000)
    assert strip_long_strings(full) is full


def test_escaped_quotes_of_a_long_string_are_left_out() -> None:
    assert strip_long_strings(request('"quoted" ' * 10_000)) == request("")


def test_a_body_that_breaks_off_in_a_string_stays_itself() -> None:
    cut = request(LONG)[:-40]
    assert strip_long_strings(cut) is cut


def test_endless_backslashes_of_a_long_string_are_left_out() -> None:
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
    ids=["parts", "parts with marks in their text", "numbers", "keys", "far too many", "lists", "objects"],
)
def test_body_of_too_many_values_is_refused_unread(dialect: Dialect, body: bytes) -> None:
    with pytest.raises(InvalidRequest, match="values"):
        decode_routing_info(dialect, body)


@pytest.mark.parametrize("dialect", [openai.dialect, anthropic.dialect])
def test_marks_in_strings_are_no_values(dialect: Dialect) -> None:
    texts = [{"type": "text", "text": 'a, b: c, \\ "d" ' * 20} for _ in range(3_000)]
    assert decode_routing_info(dialect, request(texts, max_tokens=5)).model == "m"
    assert decode_routing_info(dialect, request("a, b: c, " * 500_000, max_tokens=5)).model == "m"


@pytest.mark.parametrize("dialect", [openai.dialect, anthropic.dialect])
def test_body_of_too_many_escapes_is_refused_unread(dialect: Dialect) -> None:
    with pytest.raises(InvalidRequest, match="backslashes"):
        decode_routing_info(dialect, request('"' * (MAX_BODY_BACKSLASHES + 1)))
    assert decode_routing_info(dialect, request('"' * (MAX_BODY_BACKSLASHES // 2), max_tokens=5)).model == "m"


@pytest.mark.parametrize("dialect", [openai.dialect, anthropic.dialect])
@pytest.mark.parametrize("end", [b"", b"\\"])
def test_head_string_without_end_is_refused_in_linear_time(dialect: Dialect, end: bytes) -> None:
    body = b'{"model":"' + b'\\"' * 10_000 + b"," * (3 * MAX_BODY_VALUES // 2) + end
    began = time.process_time()
    with pytest.raises(InvalidRequest, match="not valid JSON"):
        decode_routing_info(dialect, body)
    assert time.process_time() - began < 1.0


@given(st.lists(st.text(max_size=40) | st.just("x" * (2 * MAX_SKELETON_STRING_BYTES)), max_size=8))
def test_what_is_left_means_the_same(texts: list[str]) -> None:
    body = json.dumps({"pad": LONG, "texts": texts}, ensure_ascii=False).encode()
    short = ["" if len(text) > MAX_SKELETON_STRING_BYTES else text for text in texts]
    assert json.loads(strip_long_strings(body)) == {"pad": "", "texts": short}


@pytest.mark.parametrize("dialect", [openai.dialect, anthropic.dialect])
def test_errors_name_places_in_the_body_that_was_sent(dialect: Dialect) -> None:
    with pytest.raises(InvalidRequest, match="not valid JSON"):
        decode_routing_info(dialect, request(LONG)[:-2] + b",}")
    with pytest.raises(InvalidRequest, match="not valid UTF-8"):
        decode_routing_info(dialect, request(LONG + "@").replace(b"@", b"\xff"))
