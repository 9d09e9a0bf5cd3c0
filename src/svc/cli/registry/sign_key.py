"""Create this machine's signing key if it is missing, and print its public key, which clients trust."""

from __future__ import annotations

import argparse

from svc.cli._output import print_json
from svc.cli.registry._options import add_json_option
from svc.cli.registry._signing import load_signing_module, signing_key_path


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """sign-key"""
    add_json_option(parser)


def run(args: argparse.Namespace) -> int:
    """Print the public key."""
    public = load_signing_module().make_key(signing_key_path())
    if args.json:
        print_json({"public_key": public, "path": str(signing_key_path())})
    else:
        print(public)
    return 0
