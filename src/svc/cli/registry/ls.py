"""Lists bundles, local or at --registry URL."""

from __future__ import annotations

import argparse

from svc.cli.registry import base
from svc.client.bundles import entries_at


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """ls [MODEL_ID]"""
    parser.add_argument("model_id", metavar="MODEL_ID", nargs="?")
    base.add_registry(parser)
    base.add_root(parser)
    base.add_json(parser)


def run(args: argparse.Namespace) -> int:
    """Prints what there is."""
    if args.registry:
        base.print_entries(entries_at(base.options(args, None), args.model_id), as_json=args.json)
        return 0
    with base.open_store(args) as store:
        base.print_entries(store.entries(args.model_id), as_json=args.json, where=store.where)
    return 0
