"""What is owed for an answer that several backends gave parts of."""

import pytest

from svc.gateway.bill import FREE, NOTHING, Bill
from svc.wire.usage import Usage


def test_bill_plus_adds_tokens_and_money() -> None:
    both = Bill(Usage(3, 4, 1, 1, 2), 0.25).plus(Bill(Usage(10, 20, 5, 0, 7), 0.5, guessed=True))
    assert both.usage == Usage(13, 24, 6, 1, 9)
    assert (both.usd, both.guessed) == (0.75, True)


@pytest.mark.parametrize(("one", "two"), [(None, 0.5), (0.5, None), (None, None)])
def test_bill_plus_one_unknown_price_makes_the_sum_unknown(one: float | None, two: float | None) -> None:
    assert Bill(Usage(1), one).plus(Bill(Usage(2), two)).usd is None


def test_bill_plus_nothing_known_keeps_the_other() -> None:
    known = Bill(Usage(1, 2), 0.5)
    assert known.plus(NOTHING) is known
    assert NOTHING.plus(known) is known
    assert NOTHING.plus(NOTHING).usage is None


def test_bill_plus_is_guessed_when_either_part_is() -> None:
    assert Bill(Usage(1), 0.5, guessed=True).plus(Bill(Usage(1), 0.5)).guessed
    assert not Bill(Usage(1), 0.5).plus(Bill(Usage(1), 0.5)).guessed


def test_bill_plus_rounds_to_nano_dollars() -> None:
    assert Bill(Usage(1), 0.1).plus(Bill(Usage(1), 0.2)).usd == 0.3


def test_bill_free_costs_nothing_and_has_no_tokens() -> None:
    assert (FREE.usd, FREE.usage) == (0.0, Usage())
