"""Publish a bundle file to a registry or an OCI registry. Publishing the same bytes again succeeds."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path

import msgspec

from svc.bundles import oci
from svc.bundles.archive import ARCHIVE_READ_BYTES
from svc.bundles.digest import sha256_file
from svc.cli import base as shared
from svc.cli.registry import add, base
from svc.wire.bundle import BundleEntry


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """push FILE --registry URL"""
    parser.add_argument("file", metavar="FILE", type=Path, help="a bundle file (.xyb)")
    parser.add_argument("--platform", metavar="NAME", help="default: the platform of the metadata, else any")
    parser.add_argument("--sign", action="store_true", help="sign with the key of `svc registry sign-key`")
    parser.add_argument("--oci", metavar="REF", help="push to an OCI registry instead: HOST/REPOSITORY:TAG")
    base.add_registry_option(parser, required=True)
    base.add_root_option(parser)
    base.add_json_option(parser)


def run(args: argparse.Namespace) -> int:
    """Upload the file."""
    if args.oci:
        return _push_oci(args)
    client = base.publishing_client(base.registry_url(args))
    draft = add.read_draft(args.file, args.platform)
    size = args.file.stat().st_size
    headers = {}
    signature = base.sign_bundle(args.file, draft) if args.sign else None
    if signature is not None:
        headers["x-svc-signature"] = f"{signature.key} {signature.value}"
    with shared.ProgressBar() as progress:

        def read_blocks() -> Iterator[bytes]:
            done = 0
            with args.file.open("rb") as file:
                while block := file.read(ARCHIVE_READ_BYTES):
                    yield block
                    done += len(block)
                    progress(f"pushing {draft.key}", done, size)

        entry, created = client.publish(draft.key, size, read_blocks(), headers)
    base.require_signature(entry, signature)
    if args.json:
        base.print_entries([entry], as_json=True)
    else:
        print(f"{entry.key} {'published' if created else 'is already there'}: {client.url}{client.bundle_path(entry)}")
    return 0


def _push_oci(args: argparse.Namespace) -> int:
    """Push to an OCI registry, and print the reference with the digest."""
    reference = oci.parse_oci_reference(args.oci)
    draft = add.read_draft(args.file, args.platform)
    if args.sign:
        draft = msgspec.structs.replace(draft, signatures=(base.sign_bundle(args.file, draft),))
    sha256 = sha256_file(args.file)
    entry = BundleEntry(
        model_id=draft.model_id,
        version=draft.version,
        target=draft.platform,
        size_bytes=args.file.stat().st_size,
        path="",
        sha256=sha256,
        signatures=draft.signatures,
    )
    digest = base.open_oci_repository(reference).push(args.file, sha256, oci.manifest_annotations(entry))
    pinned_reference = f"{reference.origin.partition('://')[2]}/{reference.repository}@{digest}"
    if args.json:
        shared.print_json({"reference": pinned_reference, "digest": digest, "sha256": sha256})
    else:
        print(f"{entry.key} pushed: {pinned_reference}")
    return 0
