"""The formula of a cost is shown only where it results in that cost."""

from __future__ import annotations

import msgspec
import pytest

from svc.gateway.accounting.cost_formula import CostTerm, explain_entry_cost, format_cost_formula
from svc.gateway.accounting.price import Price
from svc.stores.database.base import LedgerEntry

PRICE = Price(3.0, 15.0, cached=0.3, written=3.75, tiers=((1000, Price(6.0, 30.0)),))


def entry_of(cost_usd: float | None, *tokens: int | None) -> LedgerEntry:
    names = ("prompt_tokens", "completion_tokens", "cached_tokens", "cache_write_tokens")
    counts = dict(zip(names, tokens, strict=False))
    return LedgerEntry(
        time="2026-03-04T10:20:30.456Z",
        request_id="r",
        key_id="k",
        key_name="n",
        endpoint="/v1/messages",
        attempts=1,
        status="ok",
        http_status=200,
        cost_usd=cost_usd,
        latency_ms=1.0,
        **counts,  # type: ignore[arg-type]
    )


@pytest.mark.parametrize(
    ("entry", "formula"),
    [
        (entry_of(0.000105, 10, 5), "(10 x 3 + 5 x 15) / 1000000"),
        (entry_of(0.000165, 125, 3, 100, 20), "(5 x 3 + 100 x 0.3 + 20 x 3.75 + 3 x 15) / 1000000"),
        (entry_of(0.01203, 2000, 1, 500), "(1500 x 6 + 500 x 6 + 1 x 30) / 1000000"),
        (entry_of(0.000106, 10, 5), None),
        (entry_of(None, None, None), None),
        (entry_of(0.0, 0, 0), None),
    ],
    ids=["plain", "cache", "tier", "another price", "unknown", "free"],
)
def test_cost_formula_has_each_count_times_its_price_or_is_none(entry: LedgerEntry, formula: str | None) -> None:
    assert format_cost_formula(explain_entry_cost(entry, PRICE)) == formula
    if formula is not None:
        assert entry.cost_usd == pytest.approx(eval(formula.replace("x", "*")))


def test_cost_terms_name_each_factor() -> None:
    terms = explain_entry_cost(entry_of(0.000165, 125, 3, 100, 20), PRICE)
    assert terms == [
        CostTerm("input tokens", 5, 3.0, 0.000015),
        CostTerm("cached input tokens", 100, 0.3, 0.00003),
        CostTerm("cache write tokens", 20, 3.75, 0.000075),
        CostTerm("output tokens", 3, 15.0, 0.000045),
    ]
    assert sum(term.usd for term in terms) == pytest.approx(0.000165)
    assert explain_entry_cost(entry_of(0.000106, 10, 5), PRICE) is None


def test_cost_terms_of_spoken_characters() -> None:
    entry = msgspec.structs.replace(entry_of(0.00006, 4), endpoint="/v1/audio/speech")
    assert explain_entry_cost(entry, Price(15.0, 0.0)) == [CostTerm("characters", 4, 15.0, 0.00006)]
