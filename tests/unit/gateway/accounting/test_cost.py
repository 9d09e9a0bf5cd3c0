"""Token cost: cache reads, cache writes and price tiers."""

from decimal import ROUND_HALF_UP, Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from svc.gateway.accounting.cost import compute_token_cost, cost_terms
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


SPECIAL = Price(2.0, 8.0, 0.5, 2.5, (), 4.0, 32.0, 0.4, 64.0, 5.0, None, 40.0)


@pytest.mark.parametrize(
    ("usage", "terms"),
    [
        (
            TokenUsage(100, 0, 0, 60, cache_write_1h_tokens=20),
            [("input", 40, 2.0), ("cache write", 40, 2.5), ("1-hour cache write", 20, 4.0)],
        ),
        (
            TokenUsage(100, 0, 0, 60, cache_write_1h_tokens=90),
            [("input", 40, 2.0), ("1-hour cache write", 60, 4.0)],
        ),
        (TokenUsage(100, 0, prompt_audio_tokens=30), [("input", 70, 2.0), ("audio input", 30, 32.0)]),
        (
            TokenUsage(100, 0, 50, prompt_audio_tokens=30),
            [("input", 20, 2.0), ("cached input", 50, 0.5), ("audio input", 30, 32.0)],
        ),
        (
            TokenUsage(100, 0, 90, prompt_audio_tokens=30),
            [("cached input", 70, 0.5), ("audio input", 10, 32.0), ("cached audio input", 20, 0.4)],
        ),
        (
            TokenUsage(100, 0, 95, 0, 0, 0, 30, 10),
            [
                ("cached input", 60, 0.5),
                ("cached audio input", 30, 0.4),
                ("image input", 5, 5.0),
                ("cached image input", 5, 0.5),
            ],
        ),
        (
            TokenUsage(0, 100, completion_audio_tokens=30, completion_image_tokens=20),
            [("audio output", 30, 64.0), ("image output", 20, 40.0), ("output", 50, 8.0)],
        ),
    ],
    ids=["hour", "hour alone", "audio", "cached text", "cached audio", "cached audio and images", "completion"],
)
def test_cost_terms_of_special_tokens(usage: TokenUsage, terms: list[tuple[str, int, float]]) -> None:
    assert cost_terms(SPECIAL, usage) == terms
    assert compute_token_cost(SPECIAL, usage) == pytest.approx(sum(count * usd for _, count, usd in terms) / 1e6)


def test_cost_special_tokens_without_a_price_are_text() -> None:
    usage = TokenUsage(100, 50, 20, 10, 0, 5, 30, 20, 10, 10)
    assert cost_terms(Price(2.0, 8.0), usage) == [
        ("input", 70, 2.0),
        ("cached input", 20, 2.0),
        ("cache write", 5, 2.0),
        ("1-hour cache write", 5, 2.0),
        ("output", 50, 8.0),
    ]
    assert compute_token_cost(Price(2.0, 8.0), usage) == 0.0006


PRICES = st.integers(0, 10**8).map(lambda micros: micros / 10**6)
OPTIONAL_PRICES = st.none() | PRICES
COUNTS = st.integers(0, 10**6) | st.integers(0, 20)


@given(
    st.builds(Price, PRICES, PRICES, OPTIONAL_PRICES, OPTIONAL_PRICES, st.just(()), *[OPTIONAL_PRICES] * 8),
    st.builds(TokenUsage, *[COUNTS] * len(TokenUsage.count_names)),
)
def test_cost_is_exact_to_the_last_decimal(price: Price, usage: TokenUsage) -> None:
    for counted in (usage, TokenUsage(*usage.as_tuple()[:5])):
        total = sum((Decimal(repr(usd)) * tokens for _, tokens, usd in cost_terms(price, counted)), Decimal())
        exact = (total / 1_000_000).quantize(Decimal("1e-9"), ROUND_HALF_UP)
        assert f"{compute_token_cost(price, counted):.9f}" == f"{exact:.9f}"


@given(st.integers(0, 1000), st.integers(0, 1000), st.integers(0, 1000), st.integers(0, 1000), st.integers(0, 1000))
def test_cost_terms_count_each_token_once(text: int, cached: int, written: int, audio: int, completion: int) -> None:
    usage = TokenUsage(
        text + cached + written + audio, completion, cached, written, 0, written // 2, audio, 0, completion
    )
    assert sum(tokens for _, tokens, _ in cost_terms(SPECIAL, usage)) == usage.prompt_tokens + completion


@pytest.mark.parametrize(
    ("usd", "tokens", "cost"),
    [(0.2875, 1, "0.000000288"), (0.0375, 1, "0.000000038"), (0.0005, 1, "0.000000001"), (1.0005, 1, "0.000001001")],
)
def test_cost_half_a_nano_usd_is_rounded_up(usd: float, tokens: int, cost: str) -> None:
    assert f"{compute_token_cost(Price(usd, 0.0), TokenUsage(tokens)):.9f}" == cost
