"""Download a bundle, verify it and unpack it. A bundle that is already there is not downloaded again."""

from __future__ import annotations

import argparse
import functools
import sys

import msgspec

from svc.bundles import oci
from svc.cli._output import print_json
from svc.cli._progress_bar import ProgressBar
from svc.cli.registry._options import add_json_option, add_registry_option, add_root_option, resolve_options
from svc.cli.registry._remote import open_oci_repository
from svc.client.bundles import Bundle, ResolveOptions, check_trust, resolve_bundle
from svc.errors import AlreadyExists
from svc.stores.bundles.fetch import fetch_into
from svc.stores.bundles.folder_use import open_folder


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """pull REFERENCE"""
    parser.add_argument("reference", metavar="ID[@VERSION]", help="or oci://HOST/REPOSITORY:TAG, …@sha256:…")
    parser.add_argument("--platform", metavar="NAME", help="default: the platform of this machine, else any")
    add_registry_option(parser, required=True)
    add_root_option(parser)
    add_json_option(parser)


def run(args: argparse.Namespace) -> int:
    """Print the folder of the model."""
    with ProgressBar() as progress:
        options = resolve_options(args, lambda done, total: progress(f"pulling {args.reference}", done, total))
        options = msgspec.structs.replace(options, needs_archive=True)
        bundle = (
            _pull_oci(args, options) if args.reference.startswith("oci://") else resolve_bundle(args.reference, options)
        )
    if args.json:
        metadata = msgspec.to_builtins(bundle.metadata)
        print_json({"reference": bundle.reference, "path": str(bundle.path), "metadata": metadata})
    else:
        print(f"{bundle.reference} {bundle.path}", file=sys.stdout)
    return 0


def _pull_oci(args: argparse.Namespace, options: ResolveOptions) -> Bundle:
    repository = open_oci_repository(oci.parse_oci_reference(args.reference))
    entry = oci.entry_from_manifest(repository.fetch_manifest()[0])
    check_trust(entry, options.trusted_keys)
    with open_folder(options.root, options.limits) as store:
        existing = store.find(entry.key)
        if existing is not None and existing.sha256 != entry.sha256:
            raise AlreadyExists(f"{entry.key} is already stored with other bytes than {args.reference}.")
        unpack = functools.partial(store.unpack, trusted=True)
        fetch_into(store, entry, oci.OciBundleSource(repository), on_progress=options.report, on_fetched=unpack)
    return resolve_bundle(f"{entry.model_id}@{entry.version}", msgspec.structs.replace(options, platform=entry.target))
