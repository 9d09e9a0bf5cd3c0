"""Publishes a bundle file at a registry; the same bytes again are no error."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path

from svc.bundles.archive import BLOCK
from svc.bundles.remote import Remote
from svc.cli import base as shared
from svc.cli.registry import add, base


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """push FILE --registry URL"""
    parser.add_argument("file", metavar="FILE", type=Path)
    parser.add_argument("--platform", metavar="NAME", help="default: the metadata's, else any")
    parser.add_argument("--sign", action="store_true", help="sign with the key of `svc registry sign-key`")
    base.add_registry(parser, required=True)
    base.add_root(parser)
    base.add_json(parser)


def run(args: argparse.Namespace) -> int:
    """Uploads it."""
    remote = Remote(base.address(args), key=base.key_for_writing())
    draft = add.draft_of(args.file, args.platform)
    size = args.file.stat().st_size
    headers = {}
    if args.sign:
        signature = base.signature_of(args.file, draft)
        headers["x-svc-signature"] = f"{signature.key} {signature.value}"
    with shared.Progress() as progress:

        def pieces() -> Iterator[bytes]:
            done = 0
            with args.file.open("rb") as file:
                while block := file.read(BLOCK):
                    yield block
                    done += len(block)
                    progress(f"pushing {draft.key}", done, size)

        entry, created = remote.put(draft.key, size, pieces(), headers)
    if args.json:
        base.print_entries([entry], as_json=True)
    else:
        print(f"{entry.key} {'published' if created else 'is there already'}: {remote.url}{remote.address(entry)}")
    return 0
