"""Remove local files that no index entry references, except those of a running publish."""

from __future__ import annotations

import argparse

from svc.cli._output import print_json
from svc.cli.registry._options import add_json_option, add_root_option, open_store


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """gc [--dry-run]"""
    parser.add_argument("--dry-run", action="store_true", help="only print what would be removed")
    add_root_option(parser)
    add_json_option(parser)


def run(args: argparse.Namespace) -> int:
    """Collect garbage, and print the removed names."""
    with open_store(args) as store:
        names = list(store.gc(dry_run=args.dry_run))
    if args.json:
        print_json(names)
    else:
        for name in names:
            print(f"{'would remove' if args.dry_run else 'removed'} {name}")
    return 0
