"""What the actions share: which store is meant, keys, entries as tables."""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import msgspec

from svc import plugins
from svc.bundles import oci
from svc.bundles.archive import limits_of
from svc.bundles.digest import sha256_of
from svc.bundles.download import Report
from svc.bundles.platform import fallbacks
from svc.bundles.reference import choose, parse
from svc.bundles.remote import Remote
from svc.cli import base
from svc.client.bundles import Options
from svc.distribution import install_command
from svc.errors import BundleNotFound, CommandFailed, UsageError
from svc.stores.bundles import choosing
from svc.stores.bundles.base import BundleStore, Draft
from svc.wire.bundle import Entry, Signature, shown


def add_root(parser: argparse.ArgumentParser) -> None:
    """`--root`."""
    parser.add_argument("--root", metavar="DIR", type=Path, help="the local registry; default: $SVC_HOME/registry")


def add_json(parser: argparse.ArgumentParser) -> None:
    """`--json`."""
    parser.add_argument("--json", action="store_true", help="for programs")


def add_registry(parser: argparse.ArgumentParser, *, required: bool = False) -> None:
    """`--registry`."""
    help_ = "address of a registry" + ("; default: $SVC_REGISTRY_URL" if required else "; default: the local one")
    parser.add_argument("--registry", metavar="URL", help=help_)


def root_of(args: argparse.Namespace) -> Path:
    """The local registry's folder."""
    return args.root or base.registry_root()


def open_store(args: argparse.Namespace) -> contextlib.AbstractContextManager[BundleStore]:
    """The registry that a server here would serve: the folder that is named, else what `SVC_BLOB_URL` names."""
    return choosing.open_store(root_of(args), os.environ | ({"SVC_BLOB_URL": ""} if args.root else {}))


def key_for_writing() -> str | None:
    """`SVC_REGISTRY_KEY`, else `SVC_API_KEY`."""
    return os.environ.get("SVC_REGISTRY_KEY") or os.environ.get("SVC_API_KEY") or None


def remote_for_writing(url: str) -> Remote:
    """A registry to publish at. Raises CommandFailed when there is no key, before anything is sent."""
    key = key_for_writing()
    if key is None:
        raise CommandFailed(
            f"Publishing at {url} needs a key: put one with the scope registry:write into SVC_REGISTRY_KEY "
            "(svc up prints one; svc keys create --scope registry:write makes one)."
        )
    return Remote(url, key=key)


def one(text: str, entries: Iterable[Entry], platform: str | None) -> Entry:
    """The entry that a person names: a reference, or a whole key. Raises BundleNotFound."""
    known = list(entries)
    if text.count("/") == 2:
        found = next((entry for entry in known if entry.key == text), None)
    else:
        found = choose(parse(text), known, fallbacks(platform) if platform is None else (platform,))
    if found is None:
        raise BundleNotFound(f"There is no bundle {text}; see: svc registry ls")
    return found


def address(args: argparse.Namespace) -> str:
    """Which registry is meant. Raises UsageError when none is."""
    url: str | None = args.registry or os.environ.get("SVC_REGISTRY_URL")
    if not url:
        raise UsageError("No registry is named: use --registry URL or set SVC_REGISTRY_URL.")
    return url


def options(args: argparse.Namespace, report: Report | None) -> Options:
    """How to resolve, as the command line and the environment say."""
    trusted = os.environ.get("SVC_TRUSTED_KEYS", "").split(",")
    return Options(
        root=root_of(args),
        registry=args.registry or os.environ.get("SVC_REGISTRY_URL") or None,
        key=key_for_writing(),
        platform=getattr(args, "platform", None),
        trusted_keys=tuple(key.strip() for key in trusted if key.strip()),
        limits=limits_of(os.environ),
        report=report,
        warn=warn,
    )


def warn(message: str) -> None:
    """One line on standard error."""
    print(f"svc: {message}", file=sys.stderr)


def oci_registry(place: oci.Place) -> oci.Oci:
    """An OCI registry, with the credentials of `SVC_OCI_USER` and `SVC_OCI_PASSWORD`."""
    hosts = os.environ.get("SVC_OCI_TOKEN_HOST", "").lower().split(",")
    token_hosts = {host.strip() for host in hosts if host.strip()}
    return oci.Oci(place, os.environ.get("SVC_OCI_USER"), os.environ.get("SVC_OCI_PASSWORD"), token_hosts)


def signing() -> Any:
    """The module that signs. Raises CommandFailed when the extra is not installed."""
    try:
        return plugins.load("bundles", "signature")
    except ImportError as error:
        raise CommandFailed(
            f"Signing needs the package cryptography; install it with: {install_command('signing')}"
        ) from error


def signing_key() -> Path:
    """Where this machine's key lies."""
    return base.home() / "signing.key"


def signature_of(file: Path, draft: Draft) -> Signature:
    """The signature of a file under that name."""
    entry = Entry(
        model_id=draft.model_id,
        version=draft.version,
        target=draft.target,
        size_bytes=file.stat().st_size,
        path="",
        sha256=sha256_of(file),
    )
    signature: Signature = signing().sign(entry, signing_key())
    return signature


def need_file(path: Path) -> None:
    """Raises UsageError."""
    if not path.is_file():
        raise UsageError(f"There is no file {path}.")


def no_place(entry: Entry) -> None:
    """The path of the entry says it, or nobody knows."""


def print_entries(entries: Iterable[Entry], *, as_json: bool, where: Callable[[Entry], str | None] = no_place) -> None:
    """A table, or a list of index entries; `where` says where a bundle lies, if not in its path."""
    if as_json:
        base.print_json([msgspec.to_builtins(shown(entry, where(entry))) for entry in entries])
        return
    rows = [("MODEL", "VERSION", "PLATFORM", "BYTES", "STATE", "SHA256")]
    for entry in entries:
        state = "yanked" if entry.yanked else "ok"
        sha256 = (entry.sha256 or "")[:16]
        rows.append((entry.model_id, entry.version, entry.target, str(entry.size_bytes), state, sha256))
    base.print_table(rows)
