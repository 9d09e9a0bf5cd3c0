"""The text of custom tool calls, decoded from arguments in chunks."""

from __future__ import annotations

import itertools
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from svc.dialects.responses.custom_input import MAX_PREFIX_CHARS, CustomInputDecoder, decode_custom_input


def feed(chunks: list[str]) -> str:
    decoder = CustomInputDecoder()
    return "".join([decoder.feed(chunk) for chunk in chunks]) + decoder.end()


@given(text=st.text(), ascii_only=st.booleans(), cuts=st.lists(st.integers(0, 60)), is_truncated=st.booleans())
def test_custom_input_any_split_gives_same_text(
    text: str, ascii_only: bool, cuts: list[int], is_truncated: bool
) -> None:
    arguments = json.dumps({"input": text}, ensure_ascii=ascii_only)
    if is_truncated:
        arguments = arguments[: len(arguments) // 2]
    edges = sorted({0, len(arguments), *(min(cut, len(arguments)) for cut in cuts)})
    chunks = [arguments[start:end] for start, end in itertools.pairwise(edges)]
    assert feed(chunks) == feed(list(arguments)) == decode_custom_input(arguments)
    if not is_truncated:
        assert decode_custom_input(arguments) == text


def test_custom_input_is_returned_as_it_arrives() -> None:
    decoder = CustomInputDecoder()
    chunks = ['{"in', 'put": ', '"a\\', "nb \\ud83e", '\\udd99"', "}"]
    assert [decoder.feed(chunk) for chunk in chunks] == ["", "", "a", "\nb ", "🦙", ""]
    assert decoder.end() == ""


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (' { "input" : "a" } ', "a"),
        ('{"input":"a","input":"b"}', "a"),
        ('{"other":1,"input":"a"}', "a"),
        ('{"input":"line\nbreak and \\d"}', "line\nbreak and \\d"),
        (r'{"input":"\ud83dx\udc00"}', "\ufffdx\ufffd"),
        (r'{"input":"\ud83d\ud83e\udd99"}', "\ufffd🦙"),
        (r'{"input":"\u12"}', r"\u12"),
        ('{"input":"cut', "cut"),
        ('{"input":"cut\\', "cut"),
        ('{"inp', ""),
        ("", ""),
        ("*** Begin Patch", "*** Begin Patch"),
        ('{"input":5}', '{"input":5}'),
        ("{}", "{}"),
        (" " * (MAX_PREFIX_CHARS + 1) + '{"input":"a"}', "a"),
    ],
)
def test_custom_input_unusual_arguments_give_text(arguments: str, text: str) -> None:
    assert decode_custom_input(arguments) == feed(list(arguments)) == text
