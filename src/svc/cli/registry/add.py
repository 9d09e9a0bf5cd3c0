"""Add a bundle file to the local registry."""

from __future__ import annotations

import argparse
from pathlib import Path

import msgspec

from svc.bundles.archive import ARCHIVE_READ_BYTES, read_metadata
from svc.bundles.open_archive import open_archive
from svc.bundles.platform import ANY_PLATFORM
from svc.cli._progress_bar import ProgressBar
from svc.cli.registry._entries import print_entries
from svc.cli.registry._options import add_json_option, add_root_option, open_store, require_file
from svc.cli.registry._signing import require_signature, sign_bundle
from svc.stores.bundles.base import BundleDraft


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """add FILE"""
    parser.add_argument("file", metavar="FILE", type=Path, help="a bundle file (.xyb)")
    parser.add_argument("--platform", metavar="NAME", help="default: the platform of the metadata, else any")
    parser.add_argument("--sign", action="store_true", help="sign with the key of `svc registry sign-key`")
    add_root_option(parser)
    add_json_option(parser)


def run(args: argparse.Namespace) -> int:
    """Publish the file. Publishing the same bytes again succeeds."""
    draft = read_draft(args.file, args.platform)
    signature = sign_bundle(args.file, draft) if args.sign else None
    if signature is not None:
        draft = msgspec.structs.replace(draft, signatures=(signature,))
    size = args.file.stat().st_size
    with open_store(args, publishes=True) as store, ProgressBar() as progress:
        upload = store.create_upload(size)
        try:
            with args.file.open("rb") as file:
                while block := file.read(ARCHIVE_READ_BYTES):
                    upload.write(block)
                    progress(f"adding {draft.key}", upload.size, size)
        except BaseException:
            upload.close()
            raise
        entry, created = store.publish(upload, draft)
    require_signature(entry, signature)
    if args.json:
        print_entries([entry], as_json=True, locate=store.location)
    else:
        print(f"{entry.key} {'added' if created else 'is already there'}: {store.location(entry)}")
    return 0


def read_draft(file: Path, platform: str | None) -> BundleDraft:
    """Read the model id, version and platform from the file's metadata."""
    require_file(file)
    with open_archive(file) as archive:
        metadata = read_metadata(archive)
    draft = BundleDraft(metadata.model_id, metadata.version, platform or metadata.platform or ANY_PLATFORM)
    draft.validate_new()
    return draft
