"""Which store of bundles the settings mean: a folder, or what `SVC_BLOB_URL` names."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from pathlib import Path

from svc import plugins
from svc.bundles.archive import limits_from_environ
from svc.distribution import install_command
from svc.errors import UsageError
from svc.stores.bundles.base import BundleStore
from svc.stores.bundles.folder import FolderStore


def open_store(
    folder: Path, environ: Mapping[str, str], *, proxy: bool = False
) -> contextlib.AbstractContextManager[BundleStore]:
    """The store; `folder` is the local registry, where uploads to a bucket wait too. Raises UsageError."""
    scheme, _, rest = (environ.get("SVC_BLOB_URL") or f"file://{folder}").partition("://")
    if scheme == "file":
        return FolderStore(Path(rest), limits_from_environ(environ))
    if scheme != "s3":
        raise UsageError("SVC_BLOB_URL begins with file:// or s3://.")
    try:
        bucket = plugins.load("stores.bundles", "s3")
    except ImportError as error:
        raise UsageError(f"A bucket needs the package obstore: {install_command('s3')}") from error
    store: contextlib.AbstractContextManager[BundleStore] = bucket.BucketStore(
        f"s3://{rest}", folder / ".registry", environ, proxy=proxy
    )
    return store
