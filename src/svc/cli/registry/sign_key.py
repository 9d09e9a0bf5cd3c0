"""Create this machine's signing key if it is missing, and print its public key, which clients trust."""

from __future__ import annotations

import argparse

from svc.cli import base as shared
from svc.cli.registry import base


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """sign-key"""
    base.add_json_option(parser)


def run(args: argparse.Namespace) -> int:
    """Print the public key."""
    public = base.load_signing_module().make_key(base.signing_key_path())
    if args.json:
        shared.print_json({"public_key": public, "path": str(base.signing_key_path())})
    else:
        print(public)
    return 0
