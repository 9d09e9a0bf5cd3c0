"""The shared options of the registry's actions, and the store, server and limits that they select."""

from __future__ import annotations

import argparse
import contextlib
import os
from pathlib import Path

from svc.bundles.archive import limits_from_environ
from svc.bundles.download import DownloadProgress
from svc.cli._folders import find_registry_root
from svc.cli._output import print_warning
from svc.cli.registry._remote import publishing_key
from svc.client.bundles import ResolveOptions, read_trusted_keys
from svc.errors import UsageError
from svc.stores.bundles import factory
from svc.stores.bundles.base import BundleStore


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
    return args.root or find_registry_root()


def open_store(args: argparse.Namespace, *, publishes: bool = False) -> contextlib.AbstractContextManager[BundleStore]:
    """Open the store of `--root`, else of `SVC_BLOB_URL`, as `svc registry serve` does.

    With `publishes`, a bucket that cannot take bundles is rejected at once.
    """
    environ = os.environ | ({"SVC_BLOB_URL": ""} if args.root else {})
    return factory.open_store(local_root(args), environ, publishes=publishes)


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


def require_file(path: Path) -> None:
    """Raise UsageError if the path is not a file."""
    if not path.is_file():
        raise UsageError(f"There is no file {path}.")
