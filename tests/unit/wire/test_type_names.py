"""svc.wire.type_names and svc.wire.usage: the words of error messages."""

from __future__ import annotations

import pytest

from svc.wire.type_names import with_json_types
from svc.wire.usage import format_usd


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        ("Expected `array`, got `str`", "Expected array, got string"),
        ("Expected `float | null`, got `bool`", "Expected number or null, got boolean"),
        ("Expected `int` <= 9 - at `$.a`", "Expected integer <= 9 - at `$.a`"),
        ("Object contains unknown field `str`", "Object contains unknown field `str`"),
    ],
)
def test_with_json_types_renames_only_types(message: str, expected: str) -> None:
    assert with_json_types(message) == expected


@pytest.mark.parametrize(
    ("amount", "text"), [(50, "50"), (0.5, "0.5"), (1e-7, "0.0000001"), (1e6, "1000000"), (0.0, "0")]
)
def test_format_usd_has_no_exponent(amount: float, text: str) -> None:
    assert format_usd(amount) == text
