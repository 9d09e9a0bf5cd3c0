"""Print one ledger entry: its fields, how its cost is computed, and its attempts."""

from __future__ import annotations

import os
from typing import Any, Final

from svc import settings
from svc.cli._folders import find_home
from svc.cli._output import print_table
from svc.errors import SvcError
from svc.gateway.accounting.cost import find_configured_price, load_builtin_prices
from svc.gateway.accounting.cost_formula import add_cost_formula
from svc.gateway.accounting.price import Price
from svc.gateway.accounting.price_list import load_cached_prices

USD_DECIMALS: Final = 9
"""The precision of costs in the ledger."""


def print_entry(row: dict[str, Any]) -> None:
    """Print an entry of the admin API. The names are those of the API, so that the reference explains them."""
    fields = dict(row)
    attempts = fields.pop("attempts_detail")
    formula, terms = fields.pop("cost_formula", None), fields.pop("cost_terms", None)
    width = max(map(len, fields))
    for name, value in fields.items():
        suffix = f"  = {formula}" if name == "cost_usd" and formula else ""
        print(f"{name:{width}}  {_format_value(name, value)}{suffix}")
    if terms:
        print()
        _print_cost_terms(terms)
    if attempts:
        print()
        _print_attempts(attempts)
    elif attempts is None:
        print("\nThe version that wrote this entry did not record attempts.")


def _print_cost_terms(terms: list[dict[str, Any]]) -> None:
    table: list[tuple[str, ...]] = [("COST OF", "COUNT", "USD PER MILLION", "USD")]
    for term in terms:
        price = f"{term['usd_per_million']:.12g}"
        table.append((_printable(term["name"]), str(term["count"]), price, f"{term['usd']:.{USD_DECIMALS}f}"))
    print_table(table, right_aligned=range(1, len(table[0])))


def _print_attempts(attempts: list[dict[str, Any]]) -> None:
    names = list(attempts[0])
    table = [("ATTEMPT", *(name.upper() for name in names))]
    for number, attempt in enumerate(attempts, 1):
        table.append((str(number), *(_format_value(name, attempt.get(name)) for name in names)))
    print_table(table, right_aligned=[len(table[0]) - 2, len(table[0]) - 1])


def _format_value(name: str, value: Any) -> str:
    if value is None or value == {}:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, dict):
        return _printable(", ".join(f"{tag}={text}" for tag, text in value.items()))
    if isinstance(value, float):
        return f"{value:.{USD_DECIMALS}f}" if name.endswith("_usd") else f"{value:.1f}"
    return _printable(str(value))


def _printable(text: str) -> str:
    return "".join(letter if letter.isprintable() else "?" for letter in text)


def explain_cost(row: dict[str, Any]) -> None:
    """Add `cost_formula` and `cost_terms` to an entry of this machine's database, by its gateway's prices."""
    prices = load_builtin_prices() | load_cached_prices(find_home() / "cache") | _load_configured_prices()
    add_cost_formula(row, lambda provider, model: prices.get((provider, model)))


def _load_configured_prices() -> dict[tuple[str, str], Price]:
    try:
        providers = settings.load(os.environ).providers
    except SvcError:  # `svc doctor` explains it
        return {}
    return {
        (provider.name, model.id): price
        for provider in providers
        for model in provider.models or ()
        if (price := find_configured_price(model)) is not None
    }
