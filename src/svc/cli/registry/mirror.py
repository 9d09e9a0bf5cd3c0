"""Copy all bundles of another registry into the local one. Run it again to resume."""

from __future__ import annotations

import argparse

import msgspec

from svc.cli._output import print_json, print_warning
from svc.cli._progress_bar import ProgressBar
from svc.cli.registry._options import (
    add_json_option,
    add_registry_option,
    add_root_option,
    open_store,
    registry_url,
    resolve_options,
)
from svc.client.bundles import download_bundle, list_entries, open_source
from svc.errors import SvcError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """mirror URL, or mirror --registry URL"""
    parser.add_argument("url", metavar="URL", nargs="?", help="same as --registry URL")
    add_registry_option(parser, required=True)
    add_root_option(parser)
    add_json_option(parser)


def run(args: argparse.Namespace) -> int:
    """Copy each bundle. The exit status is 1 if one failed; the others are still fetched."""
    args.registry = args.registry or args.url
    registry_url(args)
    keys_by_result: dict[str, list[str]] = {"fetched": [], "present": [], "failed": []}
    with open_store(args, publishes=True) as store, ProgressBar() as progress:
        options_without_progress = resolve_options(args, None)
        source = open_source(options_without_progress)
        for entry in list_entries(options_without_progress):
            existing = store.find(entry.key)
            try:
                if existing is not None and store.is_complete(existing):
                    same_hash = None in (entry.sha256, existing.sha256) or entry.sha256 == existing.sha256
                    keys_by_result["present" if same_hash else "failed"].append(entry.key)
                else:
                    label = f"mirroring {entry.key}"
                    options = msgspec.structs.replace(
                        options_without_progress, report=lambda at, total, label=label: progress(label, at, total)
                    )
                    download_bundle(store, entry, options, source)
                    keys_by_result["fetched"].append(entry.key)
                if existing is not None and existing.yanked != entry.yanked:
                    store.set_yanked(entry.key, entry.yanked)
            except SvcError as error:
                print_warning(error.message)
                keys_by_result["failed"].append(entry.key)
    if args.json:
        print_json(keys_by_result)
    else:
        print(", ".join(f"{len(keys)} {result}" for result, keys in keys_by_result.items()))
    return 1 if keys_by_result["failed"] else 0
