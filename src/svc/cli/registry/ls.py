"""List bundles, local or at --registry URL."""

from __future__ import annotations

import argparse

from svc.cli.registry._entries import is_missing, print_entries
from svc.cli.registry._options import add_json_option, add_registry_option, add_root_option, open_store, resolve_options
from svc.client.bundles import list_entries


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """ls [MODEL_ID]"""
    parser.add_argument("model_id", metavar="MODEL_ID", nargs="?", help="only this model")
    add_registry_option(parser)
    add_root_option(parser)
    add_json_option(parser)


def run(args: argparse.Namespace) -> int:
    """Print the entries."""
    if args.registry:
        print_entries(list_entries(resolve_options(args, None), args.model_id), as_json=args.json)
        return 0
    with open_store(args) as store:
        print_entries(
            store.entries(args.model_id),
            as_json=args.json,
            locate=store.location,
            is_missing=lambda entry: is_missing(store, entry),
        )
    return 0
