"""Publishes a bundle file at a registry, or at any OCI registry; the same bytes again are no error."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path

import msgspec

from svc.bundles import oci
from svc.bundles.archive import BLOCK
from svc.bundles.digest import sha256_of
from svc.cli import base as shared
from svc.cli.registry import add, base
from svc.wire.bundle import Entry


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """push FILE --registry URL"""
    parser.add_argument("file", metavar="FILE", type=Path)
    parser.add_argument("--platform", metavar="NAME", help="default: the metadata's, else any")
    parser.add_argument("--sign", action="store_true", help="sign with the key of `svc registry sign-key`")
    parser.add_argument("--oci", metavar="REF", help="an OCI registry instead: HOST/REPOSITORY:TAG")
    base.add_registry(parser, required=True)
    base.add_root(parser)
    base.add_json(parser)


def run(args: argparse.Namespace) -> int:
    """Uploads it."""
    if args.oci:
        return _push_oci(args)
    remote = base.remote_for_writing(base.address(args))
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


def _push_oci(args: argparse.Namespace) -> int:
    """Prints the reference that pins what was pushed."""
    place = oci.parse(args.oci)
    draft = add.draft_of(args.file, args.platform)
    if args.sign:
        draft = msgspec.structs.replace(draft, signatures=(base.signature_of(args.file, draft),))
    sha256 = sha256_of(args.file)
    entry = Entry(
        model_id=draft.model_id,
        version=draft.version,
        target=draft.target,
        size_bytes=args.file.stat().st_size,
        path="",
        sha256=sha256,
        signatures=draft.signatures,
    )
    digest = base.oci_registry(place).push(args.file, sha256, oci.annotate(entry))
    pinned = f"{place.origin.partition('://')[2]}/{place.repository}@{digest}"
    if args.json:
        shared.print_json({"reference": pinned, "digest": digest, "sha256": sha256})
    else:
        print(f"{entry.key} pushed: {pinned}")
    return 0
