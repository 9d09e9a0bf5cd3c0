"""Gets a bundle from a registry, verifies it and unpacks it; what is here already is not fetched again."""

from __future__ import annotations

import argparse
import sys

import msgspec

from svc.cli import base as shared
from svc.cli.registry import base
from svc.client.bundles import resolve


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """pull REFERENCE"""
    parser.add_argument("reference", metavar="ID[@VERSION]")
    parser.add_argument("--platform", metavar="NAME", help="default: this machine's, else any")
    base.add_registry(parser, required=True)
    base.add_root(parser)
    base.add_json(parser)


def run(args: argparse.Namespace) -> int:
    """Prints where the model lies."""
    with shared.Progress() as progress:
        bundle = resolve(
            args.reference,
            base.options(args, lambda done, total: progress(f"pulling {args.reference}", done, total)),
        )
    if args.json:
        about = msgspec.to_builtins(bundle.metadata)
        shared.print_json({"reference": bundle.reference, "path": str(bundle.path), "metadata": about})
    else:
        print(f"{bundle.reference} {bundle.path}", file=sys.stdout)
    return 0
