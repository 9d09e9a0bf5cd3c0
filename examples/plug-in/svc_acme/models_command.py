"""Print the models of Acme that the configuration has.

Examples:
  svc acme-models
"""

from __future__ import annotations

import argparse
import os

from svc import settings


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add nothing: the command has no arguments."""


def run(args: argparse.Namespace) -> int:
    """Print one model per line, and return the exit status."""
    for provider in settings.load(os.environ).providers:
        if provider.dialect == "acme":
            for model in provider.models or ():
                print(model.id)
    return 0
