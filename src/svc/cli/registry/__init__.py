"""Store, serve, fetch and verify model bundles.

Examples:
  svc registry serve
  svc registry add my-model.xyb
  svc registry pull smollm2-135m@1 --registry http://127.0.0.1:8080
  svc registry ls --json
"""

from __future__ import annotations

import argparse
import errno

from svc import plugins
from svc.errors import CommandFailed


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add each module of this package as an action. An action has the same two functions as a command."""
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    for name in plugins.names("cli.registry"):
        doc = plugins.summary("cli.registry", name)
        first_sentence = doc.partition(". ")[0].rstrip(".")
        summary = f"{first_sentence[:1].lower()}{first_sentence[1:]}"
        action = actions.add_parser(name, help=summary, description=doc, allow_abbrev=False)
        plugins.load("cli.registry", name).add_arguments(action)


def run(args: argparse.Namespace) -> int:
    """Run the action. Raises CommandFailed if it must write to a file system that is mounted read-only."""
    try:
        status: int = plugins.load("cli.registry", args.action).run(args)
    except OSError as error:
        if error.errno != errno.EROFS:
            raise
        raise CommandFailed(
            f"{error.filename} is on a read-only file system. To write elsewhere, set SVC_REGISTRY_ROOT, or SVC_HOME."
        ) from error
    return status
