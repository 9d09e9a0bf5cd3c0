"""Shows what was spent: entries, newest first, or sums.

Costs are in USD; where a price is not known there is none. An entry is here within two seconds of its answer.
With --gateway URL it is that of a gateway elsewhere, and SVC_API_KEY holds a key of the scope admin there.

Examples:
  svc usage
  svc usage --by key --since 7d
  svc usage --key "web shop"
  svc usage --limit 1000 | less
  svc usage --by tag:team --since 2027-01-01 --json
"""

from __future__ import annotations

import argparse
import sys
from typing import Any, Final

from svc.cli import _desk, base
from svc.cli._desk import Desk
from svc.cli._named import ID, find_id, plain
from svc.errors import NotFound, UsageError
from svc.keys.spending import MAX_ENTRIES

SHOWN: Final = 50
"""Rows on a terminal, unless more are asked for."""
CONFIGURED: Final = "env-"
"""How ids begin of keys that stand in SVC_API_KEYS, and in no database."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Filters and forms."""
    parser.add_argument("--by", metavar="WHAT", help="sums by key, model, provider, day or tag:NAME")
    parser.add_argument("--since", metavar="WHEN", help="for example 2027-01-31, 2027-01-31T10:00:00Z, 12h, 7d")
    parser.add_argument("--until", metavar="WHEN", help="to before then")
    parser.add_argument("--key", metavar="KEY", help="of this key alone: its name, its id, or how either begins")
    limits = f"rows at most (default: {SHOWN} on a terminal, else {MAX_ENTRIES})"
    parser.add_argument("--limit", metavar="N", help=limits)
    parser.add_argument("--json", action="store_true", help="for programs")
    _desk.add_gateway(parser)


def run(args: argparse.Namespace) -> int:
    """Asks the database; journals that a dead gateway left behind are taken in first."""
    names = ("by", "since", "until", "key", "limit")
    given = {name: value for name in names if (value := getattr(args, name)) is not None}
    bounded = args.limit is None and not args.json and sys.stdout.isatty()
    given.setdefault("limit", str(SHOWN + 1 if bounded else MAX_ENTRIES))
    with _desk.opened(args) as desk:
        if args.key is not None:
            given["key"] = _id_of(desk, args.key)
        rows = desk.usage(given)
    more = bounded and len(rows) > SHOWN
    rows = rows[:SHOWN] if more else rows
    if args.json:
        base.print_json(rows)
    elif args.by is None:
        _print_entries(rows)
    else:
        _print_sums(args.by, rows)
    if more:
        print(
            f"svc usage: these are the first {SHOWN} rows. For more: --limit N (at most {MAX_ENTRIES}), --since, "
            "--until, --key, or a pipe, such as: svc usage | less",
            file=sys.stderr,
        )
    return 0


def _id_of(desk: Desk, wanted: str) -> str:
    """The id of a key by its id, name or prefix. Raises NotFound for an unknown one, UsageError for several."""
    if wanted.startswith(CONFIGURED) and ID.fullmatch(wanted) and desk.usage({"by": "key", "key": wanted}):
        return wanted
    known = find_id(desk, wanted)
    found = [known] if known is not None else _configured(desk, wanted)
    if len(found) == 1:
        return found[0]
    if not found:
        more = "those of SVC_API_KEYS are known once they were used: svc usage --by key"
        raise NotFound(f"There is no key with the name or id {plain(wanted)!r} ({more}).", param="id")
    ids = f"{', '.join(found[:5])}{', …' if len(found) > 5 else ''}"
    raise UsageError(f"{len(found)} keys have the name {plain(wanted)!r}: give the id of one with --key ({ids}).")


def _configured(desk: Desk, name: str) -> list[str]:
    """The ids of keys of SVC_API_KEYS with that name: only the ledger knows them."""
    rows = desk.usage({"by": "key", "limit": str(MAX_ENTRIES)})
    return [row["key"] for row in rows if row["key"].startswith(CONFIGURED) and row["key_name"] == name]


def _print_entries(rows: list[dict[str, Any]]) -> None:
    table: list[tuple[str, ...]] = [("TIME", "KEY", "MODEL", "PROVIDER", "STATUS", "PROMPT", "COMPLETION", "USD", "MS")]
    for row in rows:
        tokens = [_number(row["prompt_tokens"]), _number(row["completion_tokens"])]
        names = [plain(row["key_name"]), row["model"] or "-", row["provider"] or "-", row["status"]]
        table.append((row["time"], *names, *tokens, _usd(row["cost_usd"]), f"{row['latency_ms']:.0f}"))
    base.print_table(table, right=(5, 6, 7, 8))


def _print_sums(by: str, rows: list[dict[str, Any]]) -> None:
    table: list[tuple[str, ...]] = [(by.upper(), "REQUESTS", "PROMPT", "COMPLETION", "USD")]
    for row in rows:
        name = row.get("key_name") or row[by] or "-"
        counts = [str(row[field]) for field in ("requests", "prompt_tokens", "completion_tokens")]
        table.append((plain(name), *counts, _usd(row["cost_usd"])))
    base.print_table(table, right=(1, 2, 3, 4))


def _number(value: int | None) -> str:
    return "-" if value is None else str(value)


def _usd(value: float | None) -> str:
    return "-" if value is None else f"{value:.6f}"
