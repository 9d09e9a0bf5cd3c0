"""Creates, lists, changes, rotates and revokes the keys that clients call the gateway with.

A key is printed once; only its hash is stored. Changes hold on every running worker and node within a second.
With --gateway URL the keys are those of a gateway elsewhere, and SVC_API_KEY holds a key of the scope admin there.

Examples:
  svc keys create --name "web shop" --rpm 600 --budget-usd 50 --budget-period month --tag team=shop
  svc keys ls
  svc keys show "web shop"
  svc keys change key_0123456789abcdef --rpm 1200 --budget-usd none
  svc keys rotate key_0123456789abcdef --grace 3600
  svc keys revoke key_0123456789abcdef
  svc keys limits --gateway https://gateway.example
"""

from __future__ import annotations

import argparse
import heapq
import sys
import time
from collections.abc import Callable, Iterator
from datetime import datetime
from typing import Any

import msgspec

from svc.cli import _desk, base
from svc.cli._desk import Desk
from svc.cli._named import find_id, plain
from svc.errors import UsageError
from svc.keys import issuing
from svc.keys.issuing import Change, MadeKey, NewKey, Rotation, ShownKey
from svc.wire.key import SCOPES

CELL = 60
"""Characters of a list in a table."""
SHOWN = 100
"""Keys in a table, unless more are asked for."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """create, ls, show, limits, change, rotate, revoke."""
    verbs = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    create = verbs.add_parser("create", help="make a key and print it, once", allow_abbrev=False)
    create.add_argument("--name", required=True, help="whose key it is")
    _add_fields(create, lambda kind: kind, "")
    listing = verbs.add_parser("ls", help="the newest keys, revoked ones too", allow_abbrev=False)
    most = listing.add_mutually_exclusive_group()
    most.add_argument("--limit", type=_count, metavar="N", help=f"so many at most (default: {SHOWN}, with --json all)")
    most.add_argument("--all", action="store_true", help="every key")
    show = verbs.add_parser("show", help="one key", allow_abbrev=False)
    limits = verbs.add_parser("limits", help="what keys use of their limits now", allow_abbrev=False)
    limits.add_argument("id", metavar="KEY", nargs="?", help="of this key alone, by id, name or prefix")
    change = verbs.add_parser("change", help="change what is named of a key", allow_abbrev=False)
    change.add_argument("--name", help="whose key it is")
    _add_fields(change, _or_none, "; the word none takes it away")
    rotate = verbs.add_parser("rotate", help="give a key a new secret and print it, once", allow_abbrev=False)
    grace = "so long the old secret stays valid (a day)"
    rotate.add_argument("--grace", type=float, metavar="SECONDS", default=issuing.GRACE_SECONDS, help=grace)
    revoke = verbs.add_parser("revoke", help="end a key for good", allow_abbrev=False)
    for verb in (show, change, rotate, revoke):
        verb.add_argument("id", metavar="KEY", help="its id, its name, or how its id or secret begins")
    for verb in (create, listing, show, limits, change, rotate, revoke):
        verb.add_argument("--json", action="store_true", help="for programs")
        _desk.add_gateway(verb)


def _add_fields(
    parser: argparse.ArgumentParser, kind: Callable[[Callable[[str], Any]], Callable[[str], Any]], more: str
) -> None:
    """Options that are not given are left out of the namespace."""
    add = parser.add_argument
    given = argparse.SUPPRESS
    add("--models", metavar="A,B", default=given, type=kind(_names), help=f"models it may use (default: all){more}")
    add("--rpm", default=given, type=kind(int), metavar="N", help=f"requests in any 60 seconds{more}")
    add("--tpm", default=given, type=kind(int), metavar="N", help=f"tokens in any 60 seconds{more}")
    add("--concurrency", default=given, type=kind(int), metavar="N", help=f"requests at the same time{more}")
    add("--budget-usd", default=given, type=kind(float), metavar="X", help=f"what it may spend{more}")
    add("--budget-period", default=given, choices=("day", "month", "total"), help="UTC days or months, or for good")
    add("--expires", default=given, type=kind(str), metavar="ISO8601", help=f"for example 2027-01-31T00:00:00Z{more}")
    add("--scope", default=given, type=_names, dest="scopes", metavar="A,B", help=f"of {', '.join(SCOPES)}")
    add(
        "--tag",
        default=given,
        action="append",
        type=_tag,
        dest="tags",
        metavar="K=V",
        help="for `svc usage --by tag:K`; all of them at once",
    )


def run(args: argparse.Namespace) -> int:
    """Runs the action."""
    actions = {
        "create": _create,
        "ls": _ls,
        "show": _show,
        "limits": _uses,
        "change": _change,
        "rotate": _rotate,
        "revoke": _revoke,
    }
    with _desk.opened(args) as desk:
        if wanted := getattr(args, "id", None):
            prefer = args.action != "revoke"  # what cannot be undone has to name its key exactly
            args.id = find_id(desk, wanted, prefer_unrevoked=prefer) or wanted  # the action refuses an unknown key
        return actions[args.action](desk, args)


def _given(args: argparse.Namespace) -> dict[str, Any]:
    names = {field.name for field in msgspec.structs.fields(NewKey)}
    fields = {
        name: value for name, value in vars(args).items() if name in names and (name != "name" or value is not None)
    }
    return fields | ({"tags": _tags(fields["tags"])} if "tags" in fields else {})


def _tags(pairs: list[tuple[str, str]]) -> dict[str, str]:
    """Raises UsageError for a tag with two values: one of them would be lost."""
    found: dict[str, str] = {}
    for name, value in pairs:
        if found.setdefault(name, value) != value:
            raise UsageError(f"--tag gives {name!r} two values, {found[name]!r} and {value!r}: a tag has one.")
    return found


def _create(desk: Desk, args: argparse.Namespace) -> int:
    return _show_once(desk.create(issuing.asked(NewKey, _given(args))), args.json)


def _change(desk: Desk, args: argparse.Namespace) -> int:
    fields = _given(args)
    if not fields:
        raise UsageError("There is nothing to change. See: svc keys change --help")
    return _print(desk.change(args.id, issuing.asked(Change, fields)), args.json)


def _rotate(desk: Desk, args: argparse.Namespace) -> int:
    return _show_once(desk.rotate(args.id, issuing.asked(Rotation, {"grace": args.grace})), args.json)


def _show(desk: Desk, args: argparse.Namespace) -> int:
    return _print(desk.one(args.id), args.json)


def _revoke(desk: Desk, args: argparse.Namespace) -> int:
    key = desk.revoke(args.id)
    if args.json:
        return _print(key, True)
    print(f"{key.id} ({key.name}) is revoked")
    return 0


def _show_once(key: MadeKey, as_json: bool) -> int:
    if as_json:
        return _print(key, True)
    print(f"{key.id}  {key.name}\n{key.key}\nKeep it: it is not shown again.")
    return 0


def _print(key: ShownKey, as_json: bool) -> int:
    fields = msgspec.to_builtins(key)
    if as_json:
        base.print_json(fields)
        return 0
    rows = [(name, _words(value)) for name, value in fields.items() if value not in (None, {})]
    base.print_table([*rows, ("state", _state(key))])
    return 0


def _words(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{name}={one}" for name, one in value.items())
    return ", ".join(value) if isinstance(value, tuple | list) else str(value)


def _ls(desk: Desk, args: argparse.Namespace) -> int:
    keys, count = _newest(desk, None if args.all else args.limit or (None if args.json else SHOWN))
    if args.json:
        base.print_json(msgspec.to_builtins(keys))
    else:
        _print_keys(keys)
    if count > len(keys):
        print(f"svc keys: {count - len(keys)} older ones are not shown; see --limit and --all", file=sys.stderr)
    return 0


def _newest(desk: Desk, limit: int | None) -> tuple[list[ShownKey], int]:
    """So many keys, the newest first, and how many there are; no more are held in memory."""
    count = 0

    def counted() -> Iterator[ShownKey]:
        nonlocal count
        for key in desk.every():
            count += 1
            yield key

    def age(key: ShownKey) -> tuple[str, str]:
        return key.created, key.id

    keys = sorted(counted(), key=age, reverse=True) if limit is None else heapq.nlargest(limit, counted(), key=age)
    return keys, count


def _print_keys(keys: list[ShownKey]) -> None:
    table = [("ID", "NAME", "KEY", "SCOPES", "MODELS", "TAGS", "LAST USED", "SPENT USD", "LIMITS", "STATE")]
    for key in keys:
        may = (_short(_words(key.scopes)), _short("all" if key.models is None else _words(key.models)))
        used = (_short(_words(key.tags)) or "-", key.last_used or "never", f"{key.spent_usd:.4f}")
        table.append((key.id, plain(key.name), f"{key.prefix}…", *may, *used, _limits(key), _state(key)))
    base.print_table(table, right=(7,))


def _short(text: str) -> str:
    """One cell of a table; `svc keys show` has the whole."""
    return text if len(text) <= CELL else f"{text[: CELL - 1]}…"


def _limits(key: ShownKey) -> str:
    found = [f"{name} {value}" for name in ("rpm", "tpm", "concurrency") if (value := getattr(key, name))]
    if key.budget_usd is not None:
        found.append(f"${key.budget_usd:g} {key.budget_period}")
    return ", ".join(found) or "none"


def _uses(desk: Desk, args: argparse.Namespace) -> int:
    found = list(desk.uses(args.id))
    if args.json:
        base.print_json(msgspec.to_builtins(found))
        return 0
    table: list[tuple[str, ...]] = [("ID", "NAME", "REQUESTS", "TOKENS", "RUNNING", "SPENT USD")]
    for use in found:
        counts = ((use.requests, use.rpm), (use.tokens, use.tpm), (use.running, use.concurrency))
        cells = [f"{count} of {most}" if most else "-" for count, most in counts]
        budget = "" if use.budget_usd is None else f" of {use.budget_usd:g} ({use.budget_period})"
        table.append((use.id, use.name, *cells, f"{use.spent_usd:.4f}{budget}"))
    base.print_table(table)
    return 0


def _state(key: ShownKey) -> str:
    if key.revoked:
        return f"revoked {key.revoked}"
    if key.expires and datetime.fromisoformat(key.expires).timestamp() <= time.time():
        return f"expired {key.expires}"
    return f"valid, the old secret too until {key.old_until}" if key.old_until else "valid"


def _or_none(kind: Callable[[str], Any]) -> Callable[[str], Any]:
    def convert(text: str) -> Any:
        return None if text == "none" else kind(text)

    convert.__name__ = getattr(kind, "__name__", "value")  # argparse names it in its message
    return convert


def _count(text: str) -> int:
    if not text.isdecimal() or not 1 <= int(text[:12]) <= 10**9:
        raise argparse.ArgumentTypeError("expected a number from 1 on")
    return int(text)


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
