"""Long bodies without the insides of their long strings."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from svc.dialects import anthropic, openai
from svc.dialects.base import Dialect
from svc.dialects.outline import LONG_BODY, LONG_STRING, outline
from svc.errors import InvalidRequest

LONG = "a long text, " * 5000


def request(content: str, **more: object) -> bytes:
    return json.dumps({"messages": [{"role": "user", "content": content}], "model": "m", **more}).encode()


def test_long_strings_are_emptied_and_all_else_stays() -> None:
    assert outline(request(LONG, n=2)) == request("", n=2)


@pytest.mark.parametrize("end", ['say "yes"', "back\\", 'back\\\\"', '\\"', "\\\\\\"])
def test_escaped_quotes_and_backslashes_do_not_end_a_string(end: str) -> None:
    assert json.loads(outline(request(LONG + end, stop=end))) == json.loads(request("", stop=end))


def test_a_short_body_stays_itself() -> None:
    short = request("x" * (LONG_BODY - 500))
    assert outline(short) is short


def test_a_body_full_of_quotes_is_not_worth_it() -> None:
    full = request('"quoted" ' * 10_000)
    assert outline(full) is full


def test_a_body_that_breaks_off_in_a_string_stays_itself() -> None:
    cut = request(LONG)[:-40]
    assert outline(cut) is cut


def test_endless_backslashes_are_not_walked() -> None:
    many = request("\\" * 100_000)
    assert outline(many) is many


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
