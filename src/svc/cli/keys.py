"""Create, list, change, rotate and revoke the API keys of clients.

A key is printed once, and only its hash is stored. Changes apply to every running worker and node within one second.
With --gateway URL, the command manages keys of a remote gateway. SVC_API_KEY must be a key with the scope admin.

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

from svc.cli import _admin_client
from svc.cli._admin_client import AdminClient
from svc.cli._key_lookup import find_key_id, printable_label
from svc.cli._output import print_json, print_table
from svc.errors import UsageError
from svc.keys import lifecycle
from svc.keys.lifecycle import Change, MadeKey, NewKey, Rotation, ShownKey
from svc.wire.key import SCOPES
from svc.wire.usage import format_usd

MAX_CELL_CHARACTERS = 60
"""Maximum width of a table cell."""
DEFAULT_KEY_ROWS = 100
"""Default row limit of a table."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the actions create, ls, show, limits, change, rotate and revoke."""
    verbs = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    create = verbs.add_parser("create", help="create a key and print it once", allow_abbrev=False)
    create.add_argument("--name", required=True, help="name of the key's owner")
    _add_fields(create, lambda kind: kind, "")
    listing = verbs.add_parser("ls", help="list the newest keys, including revoked ones", allow_abbrev=False)
    limit_group = listing.add_mutually_exclusive_group()
    limit_group.add_argument(
        "--limit",
        type=_parse_count,
        metavar="N",
        help=f"maximum number of keys (default: {DEFAULT_KEY_ROWS}, with --json all)",
    )
    limit_group.add_argument("--all", action="store_true", help="list every key")
    show = verbs.add_parser("show", help="show one key", allow_abbrev=False)
    limits = verbs.add_parser("limits", help="show the current use of limits", allow_abbrev=False)
    limits.add_argument(
        "id", metavar="KEY", nargs="?", help="only this key: its id or name, or a prefix of its id or secret"
    )
    change = verbs.add_parser("change", help="change fields of a key", allow_abbrev=False)
    change.add_argument("--name", help="name of the key's owner")
    _add_fields(change, _accept_none, "; none removes it")
    rotate = verbs.add_parser(
        "rotate", help="replace the secret of a key, and print the new secret once", allow_abbrev=False
    )
    grace_help = "seconds that the old secret stays valid (default: a day)"
    rotate.add_argument(
        "--grace", type=float, metavar="SECONDS", default=lifecycle.DEFAULT_ROTATION_GRACE_SECONDS, help=grace_help
    )
    revoke = verbs.add_parser("revoke", help="disable a key permanently", allow_abbrev=False)
    for verb in (show, change, rotate, revoke):
        verb.add_argument("id", metavar="KEY", help="id or name of the key, or a prefix of its id or secret")
    for verb in (create, listing, show, limits, change, rotate, revoke):
        verb.add_argument("--json", action="store_true", help="print JSON")
        _admin_client.add_gateway_option(verb)


def _add_fields(
    parser: argparse.ArgumentParser, wrap_type: Callable[[Callable[[str], Any]], Callable[[str], Any]], help_suffix: str
) -> None:
    """Add the fields of a key. Options that are not given are absent from the namespace."""
    add = parser.add_argument
    not_given = argparse.SUPPRESS
    add(
        "--models",
        metavar="A,B",
        default=not_given,
        type=wrap_type(_parse_names),
        help=f"models that the key may use (default: all){help_suffix}",
    )
    add("--rpm", default=not_given, type=wrap_type(int), metavar="N", help=f"requests in any 60 seconds{help_suffix}")
    add("--tpm", default=not_given, type=wrap_type(int), metavar="N", help=f"tokens in any 60 seconds{help_suffix}")
    add(
        "--concurrency",
        default=not_given,
        type=wrap_type(int),
        metavar="N",
        help=f"concurrent requests{help_suffix}",
    )
    add(
        "--budget-usd", default=not_given, type=wrap_type(float), metavar="X", help=f"maximum spend in USD{help_suffix}"
    )
    add("--budget-period", default=not_given, choices=("day", "month", "total"), help="period of the budget, in UTC")
    add(
        "--expires",
        default=not_given,
        type=wrap_type(str),
        metavar="ISO8601",
        help=f"time of expiry, such as 2027-01-31T00:00:00Z{help_suffix}",
    )
    add(
        "--scope",
        default=not_given,
        type=_parse_names,
        dest="scopes",
        metavar="A,B",
        help=f"scopes of the key: {', '.join(SCOPES)}",
    )
    add(
        "--tag",
        default=not_given,
        action="append",
        type=_parse_tag,
        dest="tags",
        metavar="K=V",
        help="tag for `svc usage --by tag:K`; repeatable, replaces all tags",
    )


def run(args: argparse.Namespace) -> int:
    """Run the action."""
    actions = {
        "create": _create,
        "ls": _list,
        "show": _show,
        "limits": _show_limit_usage,
        "change": _change,
        "rotate": _rotate,
        "revoke": _revoke,
    }
    with _admin_client.open_admin_client(args) as admin:
        if key_selector := getattr(args, "id", None):
            prefer = args.action != "revoke"  # a permanent action needs an unambiguous key
            args.id = (
                find_key_id(admin, key_selector, prefer_unrevoked=prefer) or key_selector
            )  # the action rejects an unknown key
        return actions[args.action](admin, args)


def _fields_from_args(args: argparse.Namespace) -> dict[str, Any]:
    names = {field.name for field in msgspec.structs.fields(NewKey)}
    fields = {
        name: value for name, value in vars(args).items() if name in names and (name != "name" or value is not None)
    }
    return fields | ({"tags": _merge_tags(fields["tags"])} if "tags" in fields else {})


def _merge_tags(pairs: list[tuple[str, str]]) -> dict[str, str]:
    """Merge tags into a dict. Raises UsageError for a tag with two values, because one would be lost."""
    tags: dict[str, str] = {}
    for name, value in pairs:
        if tags.setdefault(name, value) != value:
            raise UsageError(
                f"--tag gives {name!r} two values, {tags[name]!r} and {value!r}: a tag has only one value."
            )
    return tags


def _create(admin: AdminClient, args: argparse.Namespace) -> int:
    return _show_once(admin.create_key(lifecycle.parse_key_request(NewKey, _fields_from_args(args))), args.json)


def _change(admin: AdminClient, args: argparse.Namespace) -> int:
    fields = _fields_from_args(args)
    if not fields:
        raise UsageError("No change is given. See: svc keys change --help")
    return _print_key(admin.change_key(args.id, lifecycle.parse_key_request(Change, fields)), args.json)


def _rotate(admin: AdminClient, args: argparse.Namespace) -> int:
    return _show_once(
        admin.rotate_key(args.id, lifecycle.parse_key_request(Rotation, {"grace": args.grace})), args.json
    )


def _show(admin: AdminClient, args: argparse.Namespace) -> int:
    return _print_key(admin.get_key(args.id), args.json)


def _revoke(admin: AdminClient, args: argparse.Namespace) -> int:
    key = admin.revoke_key(args.id)
    if args.json:
        return _print_key(key, True)
    print(f"{key.id} ({key.name}) is revoked")
    return 0


def _show_once(key: MadeKey, as_json: bool) -> int:
    if as_json:
        return _print_key(key, True)
    print(f"{key.id}  {key.name}\n{key.key}\nSave this key now. It is not shown again.")
    return 0


def _print_key(key: ShownKey, as_json: bool) -> int:
    fields = msgspec.to_builtins(key)
    if as_json:
        print_json(fields)
        return 0
    rows = [(name, _format_value(value)) for name, value in fields.items() if value not in (None, {})]
    print_table([*rows, ("state", _format_state(key))], state_column=1, has_header=False)
    return 0


def _format_value(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{name}={item}" for name, item in value.items())
    return ", ".join(value) if isinstance(value, tuple | list) else str(value)


def _list(admin: AdminClient, args: argparse.Namespace) -> int:
    keys, count = _newest_keys(admin, None if args.all else args.limit or (None if args.json else DEFAULT_KEY_ROWS))
    if args.json:
        print_json(msgspec.to_builtins(keys))
    else:
        _print_keys(keys)
    if count > len(keys):
        print(f"svc keys: {count - len(keys)} older ones are not shown; see --limit and --all", file=sys.stderr)
    return 0


def _newest_keys(admin: AdminClient, limit: int | None) -> tuple[list[ShownKey], int]:
    """Return the newest keys, up to the limit, and the number of all keys. Memory is bounded by the limit."""
    count = 0

    def count_keys() -> Iterator[ShownKey]:
        nonlocal count
        for key in admin.list_keys():
            count += 1
            yield key

    def creation_order(key: ShownKey) -> tuple[str, str]:
        return key.created, key.id

    keys = (
        sorted(count_keys(), key=creation_order, reverse=True)
        if limit is None
        else heapq.nlargest(limit, count_keys(), key=creation_order)
    )
    return keys, count


def _print_keys(keys: list[ShownKey]) -> None:
    table = [("ID", "NAME", "KEY", "SCOPES", "MODELS", "TAGS", "LAST USED", "SPENT USD", "LIMITS", "STATE")]
    for key in keys:
        access = (
            _shorten(_format_value(key.scopes)),
            _shorten("all" if key.models is None else _format_value(key.models)),
        )
        activity = (_shorten(_format_value(key.tags)) or "-", key.last_used or "never", f"{key.spent_usd:.4f}")
        table.append(
            (
                key.id,
                printable_label(key.name),
                f"{key.prefix}…",
                *access,
                *activity,
                _format_limits(key),
                _format_state(key),
            )
        )
    print_table(table, right_aligned=(7,), state_column=9)


def _shorten(text: str) -> str:
    """Shorten the text of a table cell. `svc keys show` prints it in full."""
    return text if len(text) <= MAX_CELL_CHARACTERS else f"{text[: MAX_CELL_CHARACTERS - 1]}…"


def _format_limits(key: ShownKey) -> str:
    limits = [f"{name} {value}" for name in ("rpm", "tpm", "concurrency") if (value := getattr(key, name))]
    if key.budget_usd is not None:
        limits.append(f"${format_usd(key.budget_usd)} {key.budget_period}")
    return ", ".join(limits) or "none"


def _show_limit_usage(admin: AdminClient, args: argparse.Namespace) -> int:
    key_usages = list(admin.list_key_usage(args.id))
    if args.json:
        print_json(msgspec.to_builtins(key_usages))
        return 0
    table: list[tuple[str, ...]] = [("ID", "NAME", "REQUESTS", "TOKENS", "RUNNING", "SPENT USD")]
    for use in key_usages:
        usage_and_limits = ((use.requests, use.rpm), (use.tokens, use.tpm), (use.running, use.concurrency))
        cells = [f"{count} of {limit}" if limit else "-" for count, limit in usage_and_limits]
        budget = "" if use.budget_usd is None else f" of {format_usd(use.budget_usd)} ({use.budget_period})"
        table.append((use.id, use.name, *cells, f"{use.spent_usd:.4f}{budget}"))
    print_table(table)
    return 0


def _format_state(key: ShownKey) -> str:
    if key.revoked:
        return f"revoked {key.revoked}"
    if key.expires and datetime.fromisoformat(key.expires).timestamp() <= time.time():
        return f"expired {key.expires}"
    return f"valid, the old secret too until {key.old_until}" if key.old_until else "valid"


def _accept_none(parse: Callable[[str], Any]) -> Callable[[str], Any]:
    def convert(text: str) -> Any:
        return None if text == "none" else parse(text)

    convert.__name__ = getattr(parse, "__name__", "value")  # argparse prints this name in its message
    return convert


def _parse_count(text: str) -> int:
    if not text.isdecimal() or not 1 <= int(text[:12]) <= 10**9:
        raise argparse.ArgumentTypeError("expected a number of at least 1")
    return int(text)


def _parse_names(text: str) -> tuple[str, ...]:
    names = tuple(dict.fromkeys(part.strip() for part in text.split(",") if part.strip()))
    if not names:
        raise argparse.ArgumentTypeError("expected names separated by commas")
    return names


def _parse_tag(text: str) -> tuple[str, str]:
    name, separator, value = text.partition("=")
    if not separator or not name.strip():
        raise argparse.ArgumentTypeError(f"a tag must be NAME=VALUE, not {text!r}")
    return name.strip(), value.strip()
