"""Remove local files that no index entry references, except those of a running publish."""

from __future__ import annotations

import argparse

from svc.cli import base as shared
from svc.cli.registry import base


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """gc [--dry-run]"""
    parser.add_argument("--dry-run", action="store_true", help="only print what would be removed")
    base.add_root_option(parser)
    base.add_json_option(parser)


def run(args: argparse.Namespace) -> int:
    """Collect garbage, and print the removed names."""
    with base.open_store(args) as store:
        names = list(store.gc(dry_run=args.dry_run))
    if args.json:
        shared.print_json(names)
    else:
        for name in names:
            print(f"{'would remove' if args.dry_run else 'removed'} {name}")
    return 0
