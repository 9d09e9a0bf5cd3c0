"""Long bodies without the insides of their long strings."""

import json
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from svc.dialects import anthropic, openai
from svc.dialects.base import Dialect
from svc.dialects.outline import LONG_BODY, LONG_STRING, MAX_ESCAPES, MAX_VALUES, outline
from svc.errors import InvalidRequest

LONG = "a long text, " * 5000


def request(content: object, **more: object) -> bytes:
    return json.dumps({"messages": [{"role": "user", "content": content}], "model": "m", **more}).encode()


def test_long_strings_are_emptied_and_all_else_stays() -> None:
    assert outline(request(LONG, n=2)) == request("", n=2)


@pytest.mark.parametrize("end", ['say "yes"', "back\\", 'back\\\\"', '\\"', "\\\\\\"])
def test_escaped_quotes_and_backslashes_do_not_end_a_string(end: str) -> None:
    assert json.loads(outline(request(LONG + end, stop=end))) == json.loads(request("", stop=end))


def test_a_short_body_stays_itself() -> None:
    short = request("x" * (LONG_BODY - 500))
    assert outline(short) is short


def test_body_full_of_short_strings_stays_itself() -> None:
    full = request("x", stop=["quoted"] * 10_000)
    assert outline(full) is full


def test_escaped_quotes_of_a_long_string_are_left_out() -> None:
    assert outline(request('"quoted" ' * 10_000)) == request("")


def test_a_body_that_breaks_off_in_a_string_stays_itself() -> None:
    cut = request(LONG)[:-40]
    assert outline(cut) is cut


def test_endless_backslashes_of_a_long_string_are_left_out() -> None:
    assert outline(request("\\" * 100_000)) == request("")


@pytest.mark.parametrize("dialect", [openai.dialect, anthropic.dialect])
@pytest.mark.parametrize(
    "body",
    [
        request([{"type": "text", "text": "a"}] * (MAX_VALUES // 2)),
        request([{"type": "text", "text": 'say: "a, b"'}] * (MAX_VALUES // 2)),
        request("Hi", unknown=[0] * (2 * MAX_VALUES)),
        request("Hi", unknown={f"key {n}": None for n in range(MAX_VALUES)}),
        request("Hi", unknown=[[]] * (20 * MAX_VALUES)),
        request("Hi", unknown=[[[[[[[[[[]]]]]]]]]] * (MAX_VALUES // 5)),
        request("Hi", unknown=[{"a": {"b": {"c": {}}}}] * (MAX_VALUES // 5)),
    ],
    ids=["parts", "parts with marks in their text", "numbers", "keys", "far too many", "lists", "objects"],
)
def test_body_of_too_many_values_is_refused_unread(dialect: Dialect, body: bytes) -> None:
    with pytest.raises(InvalidRequest, match="values"):
        dialect.head(body)


@pytest.mark.parametrize("dialect", [openai.dialect, anthropic.dialect])
def test_marks_in_strings_are_no_values(dialect: Dialect) -> None:
    texts = [{"type": "text", "text": 'a, b: c, \\ "d" ' * 20} for _ in range(3_000)]
    assert dialect.head(request(texts, max_tokens=5)).model == "m"
    assert dialect.head(request("a, b: c, " * 500_000, max_tokens=5)).model == "m"


@pytest.mark.parametrize("dialect", [openai.dialect, anthropic.dialect])
def test_body_of_too_many_escapes_is_refused_unread(dialect: Dialect) -> None:
    with pytest.raises(InvalidRequest, match="backslashes"):
        dialect.head(request('"' * (MAX_ESCAPES + 1)))
    assert dialect.head(request('"' * (MAX_ESCAPES // 2), max_tokens=5)).model == "m"


@pytest.mark.parametrize("dialect", [openai.dialect, anthropic.dialect])
@pytest.mark.parametrize("end", [b"", b"\\"])
def test_head_string_without_end_is_refused_in_linear_time(dialect: Dialect, end: bytes) -> None:
    body = b'{"model":"' + b'\\"' * 10_000 + b"," * (3 * MAX_VALUES // 2) + end
    began = time.process_time()
    with pytest.raises(InvalidRequest, match="not valid JSON"):
        dialect.head(body)
    assert time.process_time() - began < 1.0


@given(st.lists(st.text(max_size=40) | st.just("x" * (2 * LONG_STRING)), max_size=8))
def test_what_is_left_means_the_same(texts: list[str]) -> None:
    body = json.dumps({"pad": LONG, "texts": texts}, ensure_ascii=False).encode()
    short = ["" if len(text) > LONG_STRING else text for text in texts]
    assert json.loads(outline(body)) == {"pad": "", "texts": short}


@pytest.mark.parametrize("dialect", [openai.dialect, anthropic.dialect])
def test_errors_name_places_in_the_body_that_was_sent(dialect: Dialect) -> None:
    with pytest.raises(InvalidRequest, match="not valid JSON"):
        dialect.head(request(LONG)[:-2] + b",}")
    with pytest.raises(InvalidRequest, match="not valid UTF-8"):
        dialect.head(request(LONG + "@").replace(b"@", b"\xff"))
