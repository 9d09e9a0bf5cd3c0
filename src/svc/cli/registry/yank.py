"""Withdraws a bundle: it still downloads when named exactly, and is not chosen otherwise."""

from __future__ import annotations

import argparse
from collections.abc import Callable

from svc.cli.registry import base
from svc.wire.bundle import Entry


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """yank REFERENCE"""
    parser.add_argument("reference", metavar="ID@VERSION", help="or <model_id>/<version>/<platform>")
    parser.add_argument("--platform", metavar="NAME", help="default: this machine's, else any")
    base.add_registry(parser)
    base.add_root(parser)
    base.add_json(parser)


def run(args: argparse.Namespace, *, yanked: bool = True) -> int:
    """Withdraws it, or takes that back."""
    where: Callable[[Entry], str | None] = base.no_place
    if args.registry:
        remote = base.remote_for_writing(args.registry)
        entry = base.one(args.reference, remote.index(), args.platform)
        entry = remote.set_yanked(entry.key, yanked)
    else:
        with base.open_store(args) as store:
            entry = base.one(args.reference, store.entries(), args.platform)
            entry = store.set_yanked(entry.key, yanked)
            where = store.where
    if args.json:
        base.print_entries([entry], as_json=True, where=where)
    else:
        print(f"{entry.key} {'yanked' if yanked else 'no longer yanked'}")
    return 0
