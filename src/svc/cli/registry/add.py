"""Adds a bundle file to the local registry."""

from __future__ import annotations

import argparse
from pathlib import Path

import msgspec

from svc.bundles.archive import BLOCK, metadata_of
from svc.bundles.opening import open_archive
from svc.bundles.platform import ANY
from svc.cli import base as shared
from svc.cli.registry import base
from svc.stores.bundles.base import Draft


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """add FILE"""
    parser.add_argument("file", metavar="FILE", type=Path)
    parser.add_argument("--platform", metavar="NAME", help="default: the metadata's, else any")
    parser.add_argument("--sign", action="store_true", help="sign with the key of `svc registry sign-key`")
    base.add_root(parser)
    base.add_json(parser)


def run(args: argparse.Namespace) -> int:
    """Publishes it; the same bytes again are no error."""
    draft = draft_of(args.file, args.platform)
    if args.sign:
        draft = msgspec.structs.replace(draft, signatures=(base.signature_of(args.file, draft),))
    size = args.file.stat().st_size
    with base.open_store(args) as store, shared.Progress() as progress:
        spool = store.spool(size)
        try:
            with args.file.open("rb") as file:
                while block := file.read(BLOCK):
                    spool.write(block)
                    progress(f"adding {draft.key}", spool.size, size)
        except BaseException:
            spool.close()
            raise
        entry, created = store.publish(spool, draft)
    if args.json:
        base.print_entries([entry], as_json=True, where=store.where)
    else:
        print(f"{entry.key} {'added' if created else 'is there already'}: {store.where(entry)}")
    return 0


def draft_of(file: Path, platform: str | None) -> Draft:
    """What the file's metadata says it is."""
    base.need_file(file)
    with open_archive(file) as archive:
        about = metadata_of(archive)
    draft = Draft(about.model_id, about.version, platform or about.platform or ANY)
    draft.check()
    return draft
