"""The weight of text: its escapes and samples, and the C module beside the function that replaces it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from svc.dialects import text_weight
from svc.dialects.text_weight import BYTE_WEIGHTS, WEIGHT_UNITS_PER_TOKEN, WeighText, take_samples, weigh_text

compiled_only = pytest.mark.skipif(
    weigh_text is text_weight._weigh_text, reason="the C module of the hot path is not compiled"
)
PARTS = (
    *(b"text", b"2026", "Größe".encode(), "слово".encode(), "令牌".encode(), "नमस्ते".encode(), "🚀".encode()),
    *(rb"\"", rb"\\", rb"\n", rb"\u00e9", rb"\u0436", rb"\u0915", rb"\u6c34", rb"\ud83d\ude80"),
    *(b"\\", b"\\u", b"u", b"\\u12", b'"', b"\x00", b"\xff"),
)
"""Parts of JSON, and of what is left of it at the end of a sample."""
texts = st.lists(st.sampled_from(PARTS), max_size=60).map(b"".join)


def test_text_weight_c_module_is_used_where_it_is_compiled() -> None:
    is_compiled = any(Path(text_weight.__file__).parent.glob("_text_weight.*.so"))
    assert is_compiled == (weigh_text is not text_weight._weigh_text)


@compiled_only
@given(text=texts, repeats=st.integers(1, 30), count=st.integers(1, 16), size=st.integers(7, 100))
@example(text=b"", repeats=1, count=8, size=64)
@example(text=rb"\u0436", repeats=30, count=2, size=7)
@example(text=b"\\", repeats=30, count=2, size=10)
def test_text_weight_c_module_agrees_with_python(text: bytes, repeats: int, count: int, size: int) -> None:
    text *= repeats
    assert weigh_text(text, BYTE_WEIGHTS, count, size) == text_weight._weigh_text(text, BYTE_WEIGHTS, count, size)


@pytest.mark.parametrize(
    ("text", "tokens"),
    [
        ("", 0),
        ("four" * 7, 7),
        ("12" * 7, 7),
        ("\u0436" * 28, 10),
        ("\u0915" * 16, 10),
        ("\u6c34" * 11, 10),
        ("\U0001f680" * 5, 10),
    ],
)
def test_text_weight_letters_weigh_as_much_as_their_escapes(text: str, tokens: float) -> None:
    assert weigh_text(text.encode(), BYTE_WEIGHTS, 8, 64) == pytest.approx(tokens * WEIGHT_UNITS_PER_TOKEN, rel=0.01)
    if len(text.encode("utf-16-le")) == 2 * len(text):  # one escape for each
        escaped = json.dumps(text)[1:-1].encode()
        assert weigh_text(escaped, BYTE_WEIGHTS, 8, 64) == pytest.approx(tokens * WEIGHT_UNITS_PER_TOKEN, rel=0.01)


def test_text_weight_escaped_quote_adds_half_a_token() -> None:
    half = WEIGHT_UNITS_PER_TOKEN // 2
    assert weigh_text(rb"\"", BYTE_WEIGHTS, 8, 64) == half + half
    assert weigh_text(rb"\\\"", BYTE_WEIGHTS, 8, 64) == 2 * half + half
    assert weigh_text(rb"\\", BYTE_WEIGHTS, 8, 64) == half
    assert weigh_text(b'\\\\"', BYTE_WEIGHTS, 8, 64) == 3 * half // 2, "the quote ends the string"


def test_text_weight_of_a_long_text_is_that_of_its_samples() -> None:
    text = b"digits" * 10_000 + b"0123456789" * 6000
    assert weigh_text(text, BYTE_WEIGHTS, 8, 64) == pytest.approx((60_000 / 4 + 60_000 / 2) * WEIGHT_UNITS_PER_TOKEN)


def test_text_samples_do_not_divide_unicode_escapes() -> None:
    text = rb"\u0436" * 1000
    for size in range(7, 20):
        sample = take_samples(text, 8, size)
        assert sample == rb"\u0436" * (len(sample) // 6)
        assert 0 < len(sample) <= 8 * (size + 5)


@pytest.mark.parametrize("weigh", [weigh_text, text_weight._weigh_text])
@pytest.mark.parametrize(("count", "size"), [(0, 64), (-1, -64), (8, 6), (1, 4091), (16, 512), (64, 64)])
def test_text_weight_rejects_other_samples(weigh: WeighText, count: int, size: int) -> None:
    with pytest.raises(ValueError, match="sample"):
        weigh(b"text", BYTE_WEIGHTS, count, size)


@pytest.mark.parametrize("weigh", [weigh_text, text_weight._weigh_text])
@pytest.mark.parametrize(("count", "size"), [(1, 4090), (315, 7), (4, 518), (1, 7)])
def test_text_weight_accepts_samples_up_to_the_maximum(weigh: WeighText, count: int, size: int) -> None:
    assert weigh(rb"\u0436" * 5000, BYTE_WEIGHTS, count, size) == pytest.approx(
        5000 / 2.8 * WEIGHT_UNITS_PER_TOKEN, rel=0.01
    )


@compiled_only
@pytest.mark.parametrize(
    "arguments",
    [
        ("text", BYTE_WEIGHTS, 8, 64),
        (b"text", BYTE_WEIGHTS[1:], 8, 64),
        (b"text", BYTE_WEIGHTS, 2**62, 2**62),
        (b"text", BYTE_WEIGHTS, 2**70, 64),
        (b"text", BYTE_WEIGHTS, 8.0, 64),
        (b"text", BYTE_WEIGHTS, 8),
    ],
)
def test_text_weight_c_module_rejects_other_arguments(arguments: tuple[Any, ...]) -> None:
    with pytest.raises((TypeError, ValueError, OverflowError)):
        weigh_text(*arguments)
