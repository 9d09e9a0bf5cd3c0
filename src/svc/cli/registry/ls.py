"""List bundles, local or at --registry URL."""

from __future__ import annotations

import argparse

from svc.cli.registry import base
from svc.client.bundles import list_entries


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """ls [MODEL_ID]"""
    parser.add_argument("model_id", metavar="MODEL_ID", nargs="?", help="only this model")
    base.add_registry_option(parser)
    base.add_root_option(parser)
    base.add_json_option(parser)


def run(args: argparse.Namespace) -> int:
    """Print the entries."""
    if args.registry:
        base.print_entries(list_entries(base.resolve_options(args, None), args.model_id), as_json=args.json)
        return 0
    with base.open_store(args) as store:
        base.print_entries(
            store.entries(args.model_id),
            as_json=args.json,
            locate=store.location,
            is_missing=lambda entry: base.is_missing(store, entry),
        )
    return 0
