"""Print one ledger entry: its fields, how its cost is computed, and its attempts."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from svc.cli import base
from svc.gateway.accounting.cost import load_builtin_prices
from svc.gateway.accounting.cost_formula import format_cost_formula
from svc.stores.database.base import LedgerEntry

USD_DECIMALS: Final = 9
"""The precision of costs in the ledger."""


def print_entry(row: dict[str, Any]) -> None:
    """Print an entry of the admin API. The names are those of the API, so that the reference explains them."""
    fields = dict(row)
    attempts = fields.pop("attempts_detail")
    formula = _cost_formula(row)
    width = max(map(len, fields))
    for name, value in fields.items():
        suffix = f"  = {formula}" if name == "cost_usd" and formula else ""
        print(f"{name:{width}}  {_format_value(name, value)}{suffix}")
    if attempts:
        print()
        _print_attempts(attempts)
    elif attempts is None:
        print("\nThe version that wrote this entry did not record attempts.")


def _print_attempts(attempts: list[dict[str, Any]]) -> None:
    names = list(attempts[0])
    table = [("ATTEMPT", *(name.upper() for name in names))]
    for number, attempt in enumerate(attempts, 1):
        table.append((str(number), *(_format_value(name, attempt.get(name)) for name in names)))
    base.print_table(table, right_aligned=[len(table[0]) - 1])


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


def _cost_formula(row: dict[str, Any]) -> str | None:
    """Return how the cost results from the built-in price of the model, or None if it does not."""
    entry = msgspec.convert(row, LedgerEntry)
    price = load_builtin_prices().get((entry.provider or "", entry.model or ""))
    return None if price is None else format_cost_formula(entry, price)
