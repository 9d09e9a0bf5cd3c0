"""Publish a bundle file to a registry or an OCI registry. Publishing the same bytes again succeeds."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path

import msgspec

from svc.bundles import oci
from svc.bundles.archive import ARCHIVE_READ_BYTES
from svc.bundles.digest import sha256_file
from svc.cli._output import print_json
from svc.cli._progress_bar import ProgressBar
from svc.cli.registry import add
from svc.cli.registry._entries import print_entries
from svc.cli.registry._options import add_json_option, add_registry_option, add_root_option, registry_url
from svc.cli.registry._remote import open_oci_repository, publishing_client
from svc.cli.registry._signing import require_signature, sign_bundle
from svc.wire.bundle import BundleEntry


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """push FILE --registry URL"""
    parser.add_argument("file", metavar="FILE", type=Path, help="a bundle file (.xyb)")
    parser.add_argument("--platform", metavar="NAME", help="default: the platform of the metadata, else any")
    parser.add_argument("--sign", action="store_true", help="sign with the key of `svc registry sign-key`")
    parser.add_argument("--oci", metavar="REF", help="push to an OCI registry instead: HOST/REPOSITORY:TAG")
    add_registry_option(parser, required=True)
    add_root_option(parser)
    add_json_option(parser)


def run(args: argparse.Namespace) -> int:
    """Upload the file."""
    if args.oci:
        return _push_oci(args)
    client = publishing_client(registry_url(args))
    draft = add.read_draft(args.file, args.platform)
    size = args.file.stat().st_size
    headers = {}
    signature = sign_bundle(args.file, draft) if args.sign else None
    if signature is not None:
        headers["x-svc-signature"] = f"{signature.key} {signature.value}"
    with ProgressBar() as progress:

        def read_blocks() -> Iterator[bytes]:
            done = 0
            with args.file.open("rb") as file:
                while block := file.read(ARCHIVE_READ_BYTES):
                    yield block
                    done += len(block)
                    progress(f"pushing {draft.key}", done, size)

        entry, created = client.publish(draft.key, size, read_blocks(), headers)
    require_signature(entry, signature)
    if args.json:
        print_entries([entry], as_json=True)
    else:
        print(f"{entry.key} {'published' if created else 'is already there'}: {client.url}{client.bundle_path(entry)}")
    return 0


def _push_oci(args: argparse.Namespace) -> int:
    """Push to an OCI registry, and print the reference with the digest."""
    reference = oci.parse_oci_reference(args.oci)
    draft = add.read_draft(args.file, args.platform)
    if args.sign:
        draft = msgspec.structs.replace(draft, signatures=(sign_bundle(args.file, draft),))
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
    digest = open_oci_repository(reference).push(args.file, sha256, oci.manifest_annotations(entry))
    pinned_reference = f"{reference.origin.partition('://')[2]}/{reference.repository}@{digest}"
    if args.json:
        print_json({"reference": pinned_reference, "digest": digest, "sha256": sha256})
    else:
        print(f"{entry.key} pushed: {pinned_reference}")
    return 0
