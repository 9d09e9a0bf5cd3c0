"""Bills of a response that several backends contributed to."""

import pytest

from svc.gateway.accounting.bill import EMPTY_BILL, ZERO_BILL, Bill
from svc.wire.usage import TokenUsage


def test_bill_add_sums_tokens_and_cost() -> None:
    both = Bill(TokenUsage(3, 4, 1, 1, 2), 0.25).add(Bill(TokenUsage(10, 20, 5, 0, 7), 0.5, is_estimated=True))
    assert both.usage == TokenUsage(13, 24, 6, 1, 9)
    assert (both.cost_usd, both.is_estimated) == (0.75, True)


@pytest.mark.parametrize(("one", "two"), [(None, 0.5), (0.5, None), (None, None)])
def test_bill_add_unknown_cost_makes_sum_unknown(one: float | None, two: float | None) -> None:
    assert Bill(TokenUsage(1), one).add(Bill(TokenUsage(2), two)).cost_usd is None


def test_bill_add_empty_bill_returns_other_bill() -> None:
    known = Bill(TokenUsage(1, 2), 0.5)
    assert known.add(EMPTY_BILL) is known
    assert EMPTY_BILL.add(known) is known
    assert EMPTY_BILL.add(EMPTY_BILL).usage is None


def test_bill_add_estimated_part_makes_sum_estimated() -> None:
    assert Bill(TokenUsage(1), 0.5, is_estimated=True).add(Bill(TokenUsage(1), 0.5)).is_estimated
    assert not Bill(TokenUsage(1), 0.5).add(Bill(TokenUsage(1), 0.5)).is_estimated


def test_bill_add_rounds_to_nano_dollars() -> None:
    assert Bill(TokenUsage(1), 0.1).add(Bill(TokenUsage(1), 0.2)).cost_usd == 0.3


def test_bill_zero_has_no_cost_and_no_tokens() -> None:
    assert (ZERO_BILL.cost_usd, ZERO_BILL.usage) == (0.0, TokenUsage())
