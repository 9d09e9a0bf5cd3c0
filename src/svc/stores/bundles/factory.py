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
    folder: Path, environ: Mapping[str, str], *, proxy: bool = False
) -> contextlib.AbstractContextManager[BundleStore]:
    """Open the store. `folder` is the local registry, and the work folder of a bucket. Raises UsageError."""
    url = environ.get("SVC_BLOB_URL")
    if not url:
        return open_folder(folder, limits_from_environ(environ))
    scheme, _, rest = url.partition("://")
    if scheme == "file":
        if not rest.startswith("/"):  # the folder would depend on where each command is started
            raise UsageError(f"SVC_BLOB_URL is {url!r}. The URL of a folder has three slashes: file:///FOLDER.")
        return open_folder(Path(rest), limits_from_environ(environ))
    if scheme != "s3":
        raise UsageError("SVC_BLOB_URL must begin with file:// or s3://.")
    try:
        bucket = plugins.load("stores.bundles", "s3")
    except ImportError as error:
        raise UsageError(f"A bucket needs the package obstore: {install_command('s3')}") from error
    store: contextlib.AbstractContextManager[BundleStore] = bucket.BucketStore(
        f"s3://{rest}", folder / ".registry", environ, proxy=proxy
    )
    return store
