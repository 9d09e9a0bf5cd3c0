"""Show usage and cost: ledger entries, newest first, totals, or one request with its attempts.

Costs are in USD, and empty where a price is unknown. With totals, a line on standard error says how many requests the
costs do not include. An entry appears within two seconds of its response, or seven after a start. With --gateway URL,
the command queries a remote gateway. SVC_API_KEY must be a key with the scope admin.

Examples:
  svc usage
  svc usage --by key --since 7d
  svc usage --key "web shop"
  svc usage --limit 1000 | less
  svc usage --by tag:team --since 2027-01-01 --json
  svc usage --request req_cc5ac4d813c6dab80000001a
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping
from typing import Any, Final

from svc.cli import _admin_client, _ledger_entry
from svc.cli._admin_client import AdminClient
from svc.cli._key_lookup import KEY_ID, find_key_id, printable_label
from svc.cli._output import print_json, print_table
from svc.errors import CommandFailed, NotFound, UsageError
from svc.keys.usage_query import MAX_USAGE_ROWS
from svc.stores.database.segment import TOTAL_FIELDS

TERMINAL_USAGE_ROWS: Final = 50
"""Default row limit on a terminal."""
_AMOUNT_TITLES: Final = ["USD" if name == "cost_usd" else name.removesuffix("_tokens").upper() for name in TOTAL_FIELDS]
CONFIGURED_KEY_PREFIX: Final = "env-"
"""Prefix of the ids of keys that come from SVC_API_KEYS. The database does not contain them."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the filter and output options."""
    parser.add_argument("--by", metavar="WHAT", help="totals by key, model, provider, day or tag:NAME")
    parser.add_argument("--since", metavar="WHEN", help="for example 2027-01-31, 2027-01-31T10:00:00Z, 12h, 7d")
    parser.add_argument("--until", metavar="WHEN", help="end of the period, exclusive; same formats")
    parser.add_argument("--key", metavar="KEY", help="only this key: its name, its id, or a prefix of either")
    limits = f"maximum number of rows (default: {TERMINAL_USAGE_ROWS} on a terminal, else {MAX_USAGE_ROWS})"
    parser.add_argument("--limit", metavar="N", help=limits)
    parser.add_argument("--request", metavar="ID", help="one request with each attempt, by its x-request-id")
    parser.add_argument("--json", action="store_true", help="print JSON")
    _admin_client.add_gateway_option(parser)


def run(args: argparse.Namespace) -> int:
    """Query the ledger. Journals of a crashed gateway are ingested first."""
    names = ("by", "since", "until", "key", "limit", "request")
    parameters = {name: value for name in names if (value := getattr(args, name)) is not None}
    if args.request is not None:
        return _show_request(args, parameters)
    is_truncatable = args.limit is None and not args.json and sys.stdout.isatty()
    parameters.setdefault("limit", str(TERMINAL_USAGE_ROWS + 1 if is_truncatable else MAX_USAGE_ROWS))
    with _admin_client.open_admin_client(args) as admin:
        if args.key is not None:
            parameters["key"] = _find_key_id(admin, args.key)
        rows = admin.query_usage(parameters)
    has_more = is_truncatable and len(rows) > TERMINAL_USAGE_ROWS
    rows = rows[:TERMINAL_USAGE_ROWS] if has_more else rows
    if args.json:
        print_json(rows)
    elif args.by is None:
        _print_entries(rows)
    else:
        _print_sums(args.by, rows)
        _report_unpriced_requests(rows)
    if has_more:
        print(
            f"svc usage: these are the first {TERMINAL_USAGE_ROWS} rows. "
            f"For more: --limit N (at most {MAX_USAGE_ROWS}), --since, "
            "--until, --key, or a pipe, such as: svc usage | less",
            file=sys.stderr,
        )
    return 0


def _show_request(args: argparse.Namespace, parameters: dict[str, str]) -> int:
    """Show one request. Raises CommandFailed if it has no entry."""
    with _admin_client.open_admin_client(args) as admin:
        rows = admin.query_usage(parameters)
    if not rows:
        raise CommandFailed(
            f"There is no ledger entry of the request {printable_label(args.request)!r}. "
            "A new entry appears within 2 s, or 7 s after a start. A request that reached no provider has none. "
            "See: svc usage, and for a rejected request: svc why"
        )
    if "cost_terms" not in rows[0]:  # it comes from this machine's database
        _ledger_entry.explain_cost(rows[0])
    if args.json:
        print_json(rows[0])
    else:
        _ledger_entry.print_entry(rows[0])
    return 0


def _find_key_id(admin: AdminClient, key_selector: str) -> str:
    """Return the id of a key by its id, name or prefix. Raises NotFound, and UsageError for an ambiguous name."""
    if (
        key_selector.startswith(CONFIGURED_KEY_PREFIX)
        and KEY_ID.fullmatch(key_selector)
        and admin.query_usage({"by": "key", "key": key_selector})
    ):
        return key_selector
    key_id = find_key_id(admin, key_selector)
    key_ids = [key_id] if key_id is not None else _find_configured_keys(admin, key_selector)
    if len(key_ids) == 1:
        return key_ids[0]
    if not key_ids:
        hint = "keys of SVC_API_KEYS appear after their first request: svc usage --by key"
        raise NotFound(f"There is no key with the name or id {printable_label(key_selector)!r} ({hint}).", param="id")
    ids = f"{', '.join(key_ids[:5])}{', …' if len(key_ids) > 5 else ''}"
    raise UsageError(
        f"{len(key_ids)} keys have the name {printable_label(key_selector)!r}: give the id of one with --key ({ids})."
    )


def _find_configured_keys(admin: AdminClient, name: str) -> list[str]:
    """Return the ids of keys of SVC_API_KEYS with that name, which only the ledger contains."""
    rows = admin.query_usage({"by": "key", "limit": str(MAX_USAGE_ROWS)})
    return [row["key"] for row in rows if row["key"].startswith(CONFIGURED_KEY_PREFIX) and row["key_name"] == name]


def _print_entries(rows: list[dict[str, Any]]) -> None:
    labels = ("TIME", "KEY", "MODEL", "PROVIDER", "STATUS")
    table: list[tuple[str, ...]] = [(*labels, *_AMOUNT_TITLES, "MS")]
    for row in rows:
        names = [printable_label(row["key_name"]), row["model"] or "-", row["provider"] or "-", row["status"]]
        table.append((row["time"], *names, *_format_amounts(row), f"{row['latency_ms']:.0f}"))
    print_table(table, right_aligned=range(len(labels), len(table[0])), state_column=labels.index("STATUS"))


def _print_sums(by: str, rows: list[dict[str, Any]]) -> None:
    table: list[tuple[str, ...]] = [(by.upper(), "REQUESTS", *_AMOUNT_TITLES)]
    for row in rows:
        name = row.get("key_name") or row[by] or "-"
        table.append((printable_label(name), str(row["requests"]), *_format_amounts(row)))
    print_table(table, right_aligned=range(1, len(table[0])))


def _report_unpriced_requests(rows: list[dict[str, Any]]) -> None:
    """Print on standard error how many requests the costs do not include. Print nothing if the table has no costs."""
    unpriced = sum(
        [row.get("unpriced_requests", 0) if row["cost_usd"] is not None else row["requests"] for row in rows]
    )
    if unpriced and any(row["cost_usd"] is not None for row in rows):
        print(
            f"svc usage: USD excludes {unpriced} of {sum([row['requests'] for row in rows])} requests. "
            "Those failed without usage, or the price of their model is not known.",
            file=sys.stderr,
        )


def _format_amounts(row: Mapping[str, Any]) -> list[str]:
    """Format the fields that have a total. A gateway of another version can lack some."""
    amounts = [row.get(name) for name in TOTAL_FIELDS]
    return [
        "-" if amount is None else f"{amount:.6f}" if isinstance(amount, float) else str(amount) for amount in amounts
    ]
