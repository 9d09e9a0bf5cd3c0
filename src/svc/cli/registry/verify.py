"""Hash every local bundle again, and find bundles that the index does not list."""

from __future__ import annotations

import argparse
import shlex
from typing import Final

import msgspec

from svc.cli._output import print_json
from svc.cli.registry._options import add_json_option, add_root_option, open_store

REPAIR_COMMAND: Final = "svc registry verify --repair"
STATE_LABELS: Final = {"removed": "moved aside"}
"""State in JSON -> label in the text output, where it differs."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """verify [--repair]"""
    parser.add_argument(
        "--repair", action="store_true", help="move damaged bundles aside, and add valid bundles that are not listed"
    )
    add_root_option(parser)
    add_json_option(parser)


def run(args: argparse.Namespace) -> int:
    """Verify the store. The exit status is 1 if a bundle is damaged, missing or, without --repair, unlisted."""
    findings = []
    repair_command = f"{REPAIR_COMMAND} --root {shlex.quote(str(args.root))}" if args.root else REPAIR_COMMAND
    with open_store(args) as store:
        for finding in store.verify(repair=args.repair):
            detail = finding.detail.replace(REPAIR_COMMAND, repair_command)
            findings.append(msgspec.structs.replace(finding, detail=detail))
            if not args.json:
                label = STATE_LABELS.get(finding.state, finding.state)
                print(f"{label:<11} {finding.key}  {detail}".rstrip(), flush=True)
    if args.json:
        print_json([msgspec.to_builtins(finding) for finding in findings])
    return 1 if any(finding.state in ("damaged", "missing", "unlisted") for finding in findings) else 0
