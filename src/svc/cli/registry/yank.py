"""Yank a bundle: it still downloads by exact version, and is not selected otherwise."""

from __future__ import annotations

import argparse
from collections.abc import Callable

from svc.cli.registry._entries import find_entry, no_location, print_entries
from svc.cli.registry._options import add_json_option, add_registry_option, add_root_option, open_store
from svc.cli.registry._remote import publishing_client
from svc.wire.bundle import BundleEntry


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """yank REFERENCE"""
    parser.add_argument("reference", metavar="ID@VERSION", help="or <model_id>/<version>/<platform>")
    parser.add_argument("--platform", metavar="NAME", help="default: the platform of this machine, else any")
    add_registry_option(parser)
    add_root_option(parser)
    add_json_option(parser)


def run(args: argparse.Namespace, *, yanked: bool = True) -> int:
    """Set or clear the yanked flag."""
    locate: Callable[[BundleEntry], str | None] = no_location
    if args.registry:
        client = publishing_client(args.registry)
        entry = find_entry(args.reference, client.fetch_index(), args.platform)
        entry = client.set_yanked(entry.key, yanked)
    else:
        with open_store(args) as store:
            entry = find_entry(args.reference, store.entries(), args.platform)
            entry = store.set_yanked(entry.key, yanked)
            locate = store.location
    if args.json:
        print_entries([entry], as_json=True, locate=locate)
    else:
        print(f"{entry.key} {'yanked' if yanked else 'no longer yanked'}")
    return 0
