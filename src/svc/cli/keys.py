"""Creates, lists, rotates and revokes the keys that clients call the gateway with.

A key is printed once; only its hash is stored. Changes hold on every running worker and node within a second.

Examples:
  svc keys create --name "web shop" --rpm 600 --budget-usd 50 --budget-period month --tag team=shop
  svc keys ls
  svc keys rotate key_0123456789abcdef --grace 3600
  svc keys revoke key_0123456789abcdef
"""

from __future__ import annotations

import argparse
import os
import time
from datetime import UTC, datetime
from typing import Any

from svc import keys
from svc.cli import base
from svc.errors import UsageError
from svc.security import SCOPES
from svc.stores.base import Database, StoredKey, midnight
from svc.stores.opening import open_state

GRACE_SECONDS = 86400.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """create, ls, rotate, revoke."""
    verbs = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    create = verbs.add_parser("create", help="make a key and print it, once", allow_abbrev=False)
    create.add_argument("--name", required=True, help="whose key it is")
    create.add_argument("--models", metavar="A,B", type=_names, help="models it may use (default: all)")
    create.add_argument("--rpm", type=int, metavar="N", help="requests in any 60 seconds")
    create.add_argument("--tpm", type=int, metavar="N", help="tokens in any 60 seconds")
    create.add_argument("--concurrency", type=int, metavar="N", help="requests at the same time")
    create.add_argument("--budget-usd", type=float, metavar="X", help="what it may spend")
    create.add_argument("--budget-period", choices=("day", "month", "total"), help="UTC days or months, or for good")
    create.add_argument("--expires", type=_time, metavar="ISO8601", help="for example 2027-01-31T00:00:00Z")
    create.add_argument("--scope", type=_names, metavar="A,B", help=f"of {', '.join(SCOPES)}")
    create.add_argument(
        "--tag", action="append", default=[], type=_tag, metavar="K=V", help="for `svc usage --by tag:K`"
    )
    create.add_argument("--json", action="store_true", help="for programs")
    listing = verbs.add_parser("ls", help="every key, revoked ones too", allow_abbrev=False)
    listing.add_argument("--json", action="store_true", help="for programs")
    rotate = verbs.add_parser("rotate", help="give a key a new secret and print it, once", allow_abbrev=False)
    rotate.add_argument("id", metavar="ID")
    rotate.add_argument(
        "--grace",
        type=float,
        default=GRACE_SECONDS,
        metavar="SECONDS",
        help="so long the old secret stays valid (a day)",
    )
    rotate.add_argument("--json", action="store_true", help="for programs")
    revoke = verbs.add_parser("revoke", help="end a key for good", allow_abbrev=False)
    revoke.add_argument("id", metavar="ID")


def run(args: argparse.Namespace) -> int:
    """Runs the action."""
    database = open_state(os.environ, base.home())
    try:
        database.migrate()
        return {"create": _create, "ls": _ls, "rotate": _rotate, "revoke": _revoke}[args.action](database, args)
    finally:
        database.close()


def _create(database: Database, args: argparse.Namespace) -> int:
    if args.budget_period and args.budget_usd is None:
        raise UsageError("--budget-period goes with --budget-usd.")
    wanted = StoredKey(
        id="",
        name=args.name,
        prefix="",
        digest="",
        created=0.0,
        expires=args.expires,
        models=args.models,
        rpm=args.rpm,
        tpm=args.tpm,
        concurrency=args.concurrency,
        budget_usd=args.budget_usd,
        budget_period=None if args.budget_usd is None else args.budget_period or "total",
        tags=dict(args.tag),
        **({"scopes": args.scope} if args.scope else {}),
    )
    key, secret = keys.create(database, wanted)
    return _show_once(key, secret, args.json)


def _rotate(database: Database, args: argparse.Namespace) -> int:
    if not 0 <= args.grace <= 366 * 86400:
        raise UsageError("--grace is a number of seconds from 0 to a year.")
    key, secret = keys.rotate(database, args.id, args.grace)
    return _show_once(key, secret, args.json)


def _revoke(database: Database, args: argparse.Namespace) -> int:
    key = keys.revoke(database, args.id)
    print(f"{key.id} ({key.name}) is revoked")
    return 0


def _show_once(key: StoredKey, secret: str, as_json: bool) -> int:
    if as_json:
        base.print_json({"id": key.id, "key": secret, **{k: v for k, v in row_of(key, 0.0).items() if k != "id"}})
    else:
        print(f"{key.id}  {key.name}\n{secret}\nKeep it: it is not shown again.")
    return 0


def _ls(database: Database, args: argparse.Namespace) -> int:
    rows: list[dict[str, Any]] = []
    page = database.list_keys()
    while page:
        spent = database.spent({key.id: midnight(key.budget_period) for key in page})
        rows += [row_of(key, spent.get(key.id, 0.0)) for key in page]
        page = database.list_keys(after=page[-1].id)
    rows.sort(key=lambda row: row["created"], reverse=True)
    if args.json:
        base.print_json(rows)
        return 0
    table = [("ID", "NAME", "KEY", "SPENT USD", "LIMITS", "STATE")]
    table += [
        (row["id"], row["name"], f"{row['prefix']}…", f"{row['spent_usd']:.4f}", _limits(row), _state(row))
        for row in rows
    ]
    base.print_table(table)
    return 0


def row_of(key: StoredKey, spent: float) -> dict[str, Any]:
    """A key as `--json` and the admin API show it; `spent` is that of its budget period, or of ever."""
    return {
        "id": key.id,
        "name": key.name,
        "prefix": key.prefix,
        "created": _iso(key.created),
        "expires": _iso(key.expires),
        "revoked": _iso(key.revoked),
        "scopes": list(key.scopes),
        "models": None if key.models is None else list(key.models),
        "rpm": key.rpm,
        "tpm": key.tpm,
        "concurrency": key.concurrency,
        "budget_usd": key.budget_usd,
        "budget_period": key.budget_period,
        "spent_usd": round(spent, 9),
        "tags": key.tags,
    }


def _iso(stamp: float | None) -> str | None:
    return (
        None
        if stamp is None
        else datetime.fromtimestamp(stamp, UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
    )


def _limits(row: dict[str, Any]) -> str:
    found = [f"{name} {row[name]}" for name in ("rpm", "tpm", "concurrency") if row[name]]
    if row["budget_usd"] is not None:
        found.append(f"${row['budget_usd']:g} {row['budget_period']}")
    return ", ".join(found) or "none"


def _state(row: dict[str, Any]) -> str:
    if row["revoked"]:
        return f"revoked {row['revoked']}"
    if row["expires"] and datetime.fromisoformat(row["expires"]).timestamp() <= time.time():
        return f"expired {row['expires']}"
    return "valid"


def _names(text: str) -> tuple[str, ...]:
    found = tuple(dict.fromkeys(part.strip() for part in text.split(",") if part.strip()))
    if not found:
        raise argparse.ArgumentTypeError("expected names separated by commas")
    return found


def _tag(text: str) -> tuple[str, str]:
    name, mark, value = text.partition("=")
    if not mark or not name.strip():
        raise argparse.ArgumentTypeError(f"a tag is NAME=VALUE, not {text!r}")
    return name.strip(), value.strip()


def _time(text: str) -> float:
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"not a time like 2027-01-31T00:00:00Z: {text!r}") from None
    return (found if found.tzinfo else found.replace(tzinfo=UTC)).timestamp()
