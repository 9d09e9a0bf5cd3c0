"""Undo a yank."""

from __future__ import annotations

import argparse

from svc.cli.registry import yank


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """unyank REFERENCE"""
    yank.add_arguments(parser)


def run(args: argparse.Namespace) -> int:
    """Clear the yanked flag."""
    return yank.run(args, yanked=False)
