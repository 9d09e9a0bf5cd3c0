"""Explains the cost of a request: token counts times prices. `cost` computes costs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import msgspec

from svc.gateway.accounting.cost import compute_token_cost, cost_terms
from svc.gateway.accounting.price import Price
from svc.stores.database.base import LedgerEntry
from svc.wire.usage import TokenUsage

_SPEECH_PATH: Final = "/v1/audio/speech"
_USD_DIGITS: Final = 12


class CostTerm(msgspec.Struct, frozen=True):
    """A part of the cost of a request: a number of tokens times their price."""

    name: str
    """The kind of tokens, such as `cached input tokens`, or `characters` for a voice that is billed by them.

    `requests` if a request has a price of its own.
    """
    count: int
    """The number of these tokens, characters or requests."""
    usd_per_million: float
    """The price of one million in USD."""
    usd: float
    """Their cost in USD. `cost_usd`, the sum, is rounded to nine decimal places. This part is not."""


def entry_usage(entry: LedgerEntry) -> TokenUsage:
    """Return the token counts of an entry. Unknown counts are 0."""
    return TokenUsage(**{name: getattr(entry, name) or 0 for name in TokenUsage.count_names})


def explain_entry_cost(entry: LedgerEntry, price: Price) -> list[CostTerm] | None:
    """Return the terms of a cost, or None if they do not result in it.

    The price can have changed since, and the cost of a resumed request has parts of several models.
    """
    usage = entry_usage(entry)
    if compute_token_cost(price, usage) != entry.cost_usd:
        return None
    has_characters = entry.endpoint == _SPEECH_PATH and not usage.completion_tokens  # else it is billed by tokens
    return [
        CostTerm(_name_term(name, has_characters=has_characters), count, usd, round(count * usd / 1e6, _USD_DIGITS))
        for name, count, usd in cost_terms(price, usage)
    ]


def _name_term(name: str, *, has_characters: bool) -> str:
    if name == "requests":
        return name
    return "characters" if has_characters else f"{name} tokens"


def format_cost_formula(terms: list[CostTerm] | None) -> str | None:
    """Return for example `(10 x 0.15 + 5 x 0.6) / 1000000`, or None if there are no terms."""
    products = [f"{term.count} x {term.usd_per_million:.12g}" for term in terms or ()]
    return f"({' + '.join(products)}) / 1000000" if products else None


def add_cost_formula(row: dict[str, Any], find_price: Callable[[str, str], Price | None]) -> None:
    """Add `cost_formula` and `cost_terms` to an entry of the API.

    `find_price` returns the price of a provider and a model.
    """
    entry = msgspec.convert(row, LedgerEntry)
    price = find_price(entry.provider or "", entry.model or "")
    terms = None if price is None or entry.from_cache else explain_entry_cost(entry, price)
    row["cost_formula"] = format_cost_formula(terms)
    row["cost_terms"] = msgspec.to_builtins(terms)
