"""Open the bundle store that the settings select: a folder, or the bucket of `SVC_BLOB_URL`."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from pathlib import Path

from svc import plugins
from svc.bundles.archive import limits_from_environ
from svc.distribution import install_command
from svc.errors import UsageError
from svc.stores.bundles.base import BundleStore
from svc.stores.bundles.folder_use import open_folder


def open_store(
    folder: Path,
    environ: Mapping[str, str],
    *,
    proxies_bucket: bool = False,
    may_be_unavailable: bool = False,
    publishes: bool = True,
) -> contextlib.AbstractContextManager[BundleStore]:
    """Open the store. `folder` is the local registry, and the work folder of a bucket. Raises UsageError.

    `proxies_bucket`: this server sends the bundles of a bucket itself, and does not redirect clients to it.
    With `may_be_unavailable`, a bucket that does not respond is opened too, and its calls raise RegistryFailed.
    Without `publishes`, nothing is written to a bucket before the first publish.
    """
    store_folder = find_store_folder(folder, environ)
    if store_folder is not None:
        return open_folder(store_folder, limits_from_environ(environ))
    try:
        bucket = plugins.load("stores.bundles", "s3")
    except ImportError as error:
        raise UsageError(f"A bucket needs the package obstore: {install_command('s3')}") from error
    store: contextlib.AbstractContextManager[BundleStore] = bucket.BucketStore(
        environ["SVC_BLOB_URL"],
        folder / ".registry",
        environ,
        proxies_bucket=proxies_bucket,
        may_be_unavailable=may_be_unavailable,
        publishes=publishes,
    )
    return store


def find_store_folder(folder: Path, environ: Mapping[str, str]) -> Path | None:
    """Return the folder of the bundles, which is `folder` without `SVC_BLOB_URL`. None for a bucket.

    Raises UsageError for another URL.
    """
    url = environ.get("SVC_BLOB_URL")
    if not url:
        return folder
    scheme, _, rest = url.partition("://")
    if scheme == "s3":
        return None
    if scheme != "file":
        raise UsageError("SVC_BLOB_URL must begin with file:// or s3://.")
    if not rest.startswith("/"):  # the folder would depend on where each command is started
        raise UsageError(f"SVC_BLOB_URL is {url!r}. The URL of a folder has three slashes: file:///FOLDER.")
    return Path(rest)
