"""Hash every local bundle again, and find bundles that the index does not list."""

from __future__ import annotations

import argparse

import msgspec

from svc.cli import base as shared
from svc.cli.registry import base


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """verify [--repair]"""
    parser.add_argument(
        "--repair", action="store_true", help="move damaged bundles aside, and add valid bundles that are not listed"
    )
    base.add_root_option(parser)
    base.add_json_option(parser)


def run(args: argparse.Namespace) -> int:
    """Verify the store. The exit status is 1 if a bundle is damaged, missing or, without --repair, unlisted."""
    findings = []
    with base.open_store(args) as store:
        for finding in store.verify(repair=args.repair):
            findings.append(finding)
            if not args.json:
                print(f"{finding.state:<9} {finding.key}  {finding.detail}".rstrip(), flush=True)
    if args.json:
        shared.print_json([msgspec.to_builtins(finding) for finding in findings])
    return 1 if any(finding.state in ("damaged", "missing", "unlisted") for finding in findings) else 0
