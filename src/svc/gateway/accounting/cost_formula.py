"""Explains the cost of a request: token counts times prices. `cost` computes costs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from svc.gateway.accounting.cost import compute_token_cost, cost_terms
from svc.gateway.accounting.price import Price
from svc.stores.database.base import LedgerEntry
from svc.wire.usage import TokenUsage


def entry_usage(entry: LedgerEntry) -> TokenUsage:
    """Return the token counts of an entry. Unknown counts are 0."""
    return TokenUsage(**{name: getattr(entry, name) or 0 for name in TokenUsage.count_names})


def format_cost_formula(entry: LedgerEntry, price: Price) -> str | None:
    """Return for example `(10 x 0.15 + 5 x 0.6) / 1000000`, or None if the price does not result in the cost.

    The price can have changed since, and the cost of a resumed request has parts of several models.
    """
    usage = entry_usage(entry)
    if compute_token_cost(price, usage) != entry.cost_usd:
        return None
    products = [f"{tokens} x {usd:.12g}" for tokens, usd in cost_terms(price, usage)]
    return f"({' + '.join(products)}) / 1000000" if products else None


def add_cost_formula(row: dict[str, Any], find_price: Callable[[str, str], Price | None]) -> None:
    """Add `cost_formula` to an entry of the API. `find_price` returns the price of a provider and a model."""
    entry = msgspec.convert(row, LedgerEntry)
    price = find_price(entry.provider or "", entry.model or "")
    row["cost_formula"] = None if price is None or entry.from_cache else format_cost_formula(entry, price)
