"""Pulls everything of another registry into the local one; go on by calling it again."""

from __future__ import annotations

import argparse

import msgspec

from svc.cli import base as shared
from svc.cli.registry import base
from svc.client.bundles import copy, entries_at
from svc.errors import SvcError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """mirror URL, or mirror --registry URL"""
    parser.add_argument("url", metavar="URL", nargs="?", help="the same as --registry URL")
    base.add_registry(parser, required=True)
    base.add_root(parser)
    base.add_json(parser)


def run(args: argparse.Namespace) -> int:
    """The exit status is 1 when a bundle could not be had; the others are still fetched."""
    args.registry = args.registry or args.url
    base.address(args)
    done: dict[str, list[str]] = {"fetched": [], "present": [], "failed": []}
    with base.open_store(args) as store, shared.Progress() as progress:
        plain = base.options(args, None)
        for entry in entries_at(plain):
            known = store.find(entry.key)
            try:
                if known is not None and store.is_whole(known):
                    same = None in (entry.sha256, known.sha256) or entry.sha256 == known.sha256
                    done["present" if same else "failed"].append(entry.key)
                else:
                    label = f"mirroring {entry.key}"
                    options = msgspec.structs.replace(
                        plain, report=lambda at, total, label=label: progress(label, at, total)
                    )
                    copy(store, entry, options)
                    done["fetched"].append(entry.key)
                if known is not None and known.yanked != entry.yanked:
                    store.set_yanked(entry.key, entry.yanked)
            except SvcError as error:
                base.warn(error.message)
                done["failed"].append(entry.key)
    if args.json:
        shared.print_json(done)
    else:
        print(", ".join(f"{len(keys)} {what}" for what, keys in done.items()))
    return 1 if done["failed"] else 0
