"""Shared parts of the registry actions: options, the store, keys and output."""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from svc import plugins
from svc.bundles.archive import limits_from_environ
from svc.bundles.digest import sha256_file
from svc.bundles.download import DownloadProgress
from svc.bundles.oci_credentials import OciCredentials, find_credentials
from svc.bundles.platform import compatible_platforms
from svc.bundles.reference import describe_yanked, list_other_platforms, parse_reference, select_entry
from svc.cli import base
from svc.client.bundles import ResolveOptions, read_trusted_keys
from svc.distribution import install_command
from svc.errors import BundleNotFound, CommandFailed, UsageError
from svc.stores.bundles import factory
from svc.stores.bundles.base import BundleDraft, BundleStore
from svc.wire.bundle import BundleEntry, Signature, entry_for_json

if TYPE_CHECKING:
    from svc.bundles import oci
    from svc.bundles.registry_client import RegistryClient


def add_root_option(parser: argparse.ArgumentParser) -> None:
    """Add `--root`."""
    parser.add_argument("--root", metavar="DIR", type=Path, help="the local registry; default: $SVC_HOME/registry")


def add_json_option(parser: argparse.ArgumentParser) -> None:
    """Add `--json`."""
    parser.add_argument("--json", action="store_true", help="print JSON")


def add_registry_option(parser: argparse.ArgumentParser, *, required: bool = False) -> None:
    """Add `--registry`."""
    help_ = "URL of a registry" + ("; default: $SVC_REGISTRY_URL" if required else "; default: the local one")
    parser.add_argument("--registry", metavar="URL", help=help_)


def local_root(args: argparse.Namespace) -> Path:
    """Return the local registry's folder."""
    return args.root or base.registry_root()


def open_store(args: argparse.Namespace) -> contextlib.AbstractContextManager[BundleStore]:
    """Open the store of `--root`, else of `SVC_BLOB_URL`, as `svc registry serve` does."""
    return factory.open_store(local_root(args), os.environ | ({"SVC_BLOB_URL": ""} if args.root else {}))


def publishing_key() -> str | None:
    """Return `SVC_REGISTRY_KEY`, else `SVC_API_KEY`."""
    return os.environ.get("SVC_REGISTRY_KEY") or os.environ.get("SVC_API_KEY") or None


def publishing_client(url: str) -> RegistryClient:
    """Return a client that can publish. Raises CommandFailed when no key is set."""
    key = publishing_key()
    if key is None:
        raise CommandFailed(
            f"Publishing at {url} needs a key with the scope registry:write in SVC_REGISTRY_KEY "
            "(svc up prints one; svc keys create --scope registry:write creates one)."
        )
    client: RegistryClient = plugins.load("bundles", "registry_client").RegistryClient(url, key=key)
    return client


def find_entry(text: str, entries: Iterable[BundleEntry], platform: str | None) -> BundleEntry:
    """Find an entry by reference or full key. Raises BundleNotFound."""
    all_entries = list(entries)
    if text.count("/") == 2:
        match = next((entry for entry in all_entries if entry.key == text), None)
    else:
        reference, platforms = parse_reference(text), compatible_platforms() if platform is None else (platform,)
        match = select_entry(reference, all_entries, platforms)
        if match is None and (yanked := describe_yanked(reference, all_entries, platforms)):
            raise BundleNotFound(yanked)
        if match is None and (others := list_other_platforms(reference, all_entries)):
            raise BundleNotFound(f"There is no bundle {text} for {' or '.join(platforms)}, only for {others}.")
    if match is None:
        raise BundleNotFound(f"There is no bundle {text}; see: svc registry ls")
    return match


def registry_url(args: argparse.Namespace) -> str:
    """Return the URL of the registry. Raises UsageError when none is configured."""
    url: str | None = args.registry or os.environ.get("SVC_REGISTRY_URL")
    if not url:
        raise UsageError("No registry is configured: use --registry URL or set SVC_REGISTRY_URL.")
    return url


def resolve_options(args: argparse.Namespace, on_progress: DownloadProgress | None) -> ResolveOptions:
    """Return the resolve options of the command line and the environment."""
    return ResolveOptions(
        root=local_root(args),
        registry=args.registry or os.environ.get("SVC_REGISTRY_URL") or None,
        key=publishing_key(),
        platform=getattr(args, "platform", None),
        trusted_keys=read_trusted_keys(os.environ),
        limits=limits_from_environ(os.environ),
        report=on_progress,
        warn=print_warning,
    )


def print_warning(message: str) -> None:
    """Print one line on standard error."""
    print(f"svc: {message}", file=sys.stderr)


def open_oci_repository(reference: oci.OciReference) -> oci.OciRepository:
    """Open an OCI repository with the credentials of `SVC_OCI_USER`, else with those of `docker login`."""
    hosts = os.environ.get("SVC_OCI_TOKEN_HOST", "").lower().split(",")
    token_hosts = {host.strip() for host in hosts if host.strip()}
    user, password = os.environ.get("SVC_OCI_USER"), os.environ.get("SVC_OCI_PASSWORD", "")
    host = reference.origin.partition("://")[2]

    def get_credentials() -> OciCredentials | None:
        if user is not None:
            return OciCredentials(user, password)
        return find_credentials(host, reference.repository, os.environ)

    repository: oci.OciRepository = plugins.load("bundles", "oci").OciRepository(
        reference, get_credentials, token_hosts
    )
    return repository


def load_signing_module() -> Any:
    """Import the signature module. Raises CommandFailed when the extra `signing` is not installed."""
    try:
        return plugins.load("bundles", "signature")
    except ImportError as error:
        raise CommandFailed(
            f"Signing needs the package cryptography; install it with: {install_command('signing')}"
        ) from error


def signing_key_path() -> Path:
    """Return the path of this machine's signing key."""
    return base.home() / "signing.key"


def sign_bundle(file: Path, draft: BundleDraft) -> Signature:
    """Sign a file under the name of the draft."""
    entry = BundleEntry(
        model_id=draft.model_id,
        version=draft.version,
        target=draft.platform,
        size_bytes=file.stat().st_size,
        path="",
        sha256=sha256_file(file),
    )
    signature: Signature = load_signing_module().sign(entry, signing_key_path())
    return signature


def require_signature(entry: BundleEntry, signature: Signature | None) -> None:
    """Raise CommandFailed if the published entry lacks the signature: a published entry never changes."""
    if signature is not None and signature not in entry.signatures:
        raise CommandFailed(
            f"{entry.key} was published before without this signature, and a published bundle does not change. "
            "To sign it, publish it as another version."
        )


def require_file(path: Path) -> None:
    """Raise UsageError if the path is not a file."""
    if not path.is_file():
        raise UsageError(f"There is no file {path}.")


def no_location(entry: BundleEntry) -> None:
    """Return None: only the entry's `path` locates the bundle."""


def is_missing(store: BundleStore, entry: BundleEntry) -> bool:
    """Return whether the bundle's file does not exist. False for a bucket, where this needs a request per bundle."""
    return store.is_on_disk and not Path(store.location(entry)).exists()


def print_entries(
    entries: Iterable[BundleEntry],
    *,
    as_json: bool,
    locate: Callable[[BundleEntry], str | None] = no_location,
    is_missing: Callable[[BundleEntry], bool] = lambda _: False,
) -> None:
    """Print entries as a table or as JSON. `locate` returns the location of a bundle that `path` does not give."""
    if as_json:
        base.print_json([msgspec.to_builtins(entry_for_json(entry, locate(entry))) for entry in entries])
        return
    rows = [("MODEL", "VERSION", "PLATFORM", "BYTES", "STATE", "SHA256")]
    for entry in entries:
        state = "missing" if is_missing(entry) else "yanked" if entry.yanked else "ok"
        sha256 = (entry.sha256 or "")[:16]
        rows.append((entry.model_id, entry.version, entry.target, str(entry.size_bytes), state, sha256))
    base.print_table(rows, state_column=4)
