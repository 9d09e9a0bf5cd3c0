"""Token cost: cache reads, cache writes and price tiers."""

import pytest

from svc.gateway.accounting.cost import compute_token_cost
from svc.gateway.accounting.price import Price
from svc.wire.usage import TokenUsage

FULL = Price(2.0, 8.0, cached=0.5, written=2.5)


@pytest.mark.parametrize(
    ("price", "usage", "usd"),
    [
        (Price(2.0, 8.0), TokenUsage(1_000_000, 0), 2.0),
        (Price(2.0, 8.0), TokenUsage(0, 1_000_000), 8.0),
        (Price(2.0, 8.0), TokenUsage(1000, 500), 0.006),
        (FULL, TokenUsage(1000, 0, cached_tokens=400), 600 * 2e-6 + 400 * 0.5e-6),
        (FULL, TokenUsage(1000, 0, cache_write_tokens=400), 600 * 2e-6 + 400 * 2.5e-6),
        (FULL, TokenUsage(1000, 100, cached_tokens=300, cache_write_tokens=200), 500 * 2e-6 + 150e-6 + 500e-6 + 800e-6),
        (Price(2.0, 8.0), TokenUsage(1000, 0, cached_tokens=400), 0.002),
        (Price(2.0, 8.0), TokenUsage(1000, 0, cache_write_tokens=400), 0.002),
        (Price(2.0, 8.0, cached=0.0, written=0.0), TokenUsage(1000, 0, cached_tokens=600, cache_write_tokens=400), 0.0),
        (FULL, TokenUsage(100, 0, cached_tokens=400), 400 * 0.5e-6),
        (Price(0.0, 0.0), TokenUsage(10**9, 10**9), 0.0),
        (Price(0.001, 0.0), TokenUsage(1, 0), 1e-9),
        (Price(0.0004, 0.0), TokenUsage(1, 0), 0.0),
    ],
)
def test_cost_each_token_kind_uses_its_price(price: Price, usage: TokenUsage, usd: float) -> None:
    assert compute_token_cost(price, usage) == pytest.approx(usd, abs=5e-10)


def test_cost_long_prompt_uses_tier_price_for_all_tokens() -> None:
    tiers = ((100, Price(20.0, 80.0, cached=5.0, written=25.0)), (200, Price(40.0, 160.0, cached=10.0)))
    price = Price(2.0, 8.0, cached=0.5, written=2.5, tiers=tiers)
    assert compute_token_cost(price, TokenUsage(100, 10)) == pytest.approx((100 * 2 + 80) * 1e-6)
    assert compute_token_cost(price, TokenUsage(101, 10)) == pytest.approx((101 * 20 + 800) * 1e-6)
    assert compute_token_cost(price, TokenUsage(150, 0, 50, 50)) == pytest.approx((50 * 20 + 50 * 5 + 50 * 25) * 1e-6)
    assert compute_token_cost(price, TokenUsage(201, 10, 100)) == pytest.approx((101 * 40 + 100 * 10 + 1600) * 1e-6)


def test_cost_reasoning_tokens_are_billed_as_completion() -> None:
    assert compute_token_cost(FULL, TokenUsage(0, 1000, reasoning_tokens=900)) == compute_token_cost(
        FULL, TokenUsage(0, 1000)
    )
