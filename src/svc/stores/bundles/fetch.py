"""Downloads a bundle into a store of bundles: one process does, the others wait."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path

from svc.bundles.archive import ArchiveLimits, read_metadata
from svc.bundles.download import BundleSource, DownloadProgress, download, remove_partial_files
from svc.bundles.open_archive import open_archive
from svc.errors import InvalidBundle
from svc.stores.bundles.base import BundleStore
from svc.stores.bundles.locks import hold_lock
from svc.wire.bundle import BundleEntry

DOWNLOAD_LOCK_TIMEOUT_SECONDS = 86400.0


def fetch_into(
    store: BundleStore,
    entry: BundleEntry,
    source: BundleSource,
    *,
    durable: bool = False,
    on_progress: DownloadProgress | None = None,
    on_fetched: Callable[[BundleEntry], object] = lambda _: None,
) -> BundleEntry:
    """The bundle is here afterwards. Leaves nothing of a hostile one.

    What is only used here can be had again after a power failure; `durable` is for what may be all that there is.
    `fetched` is called, if nobody else was first, with what has just been kept and checked, before others go on.

    Raises RegistryFailed, BundleNotFound, InvalidBundle, InsufficientStorage.
    """
    folder = store.work_dir / "downloads"
    name = hashlib.sha256(entry.key.encode()).hexdigest()[:32]
    with hold_lock(store.work_dir / "locks" / f"download-{name}.lock", timeout_seconds=DOWNLOAD_LOCK_TIMEOUT_SECONDS):
        existing = store.find(entry.key)
        if existing is not None and store.is_complete(existing):
            return existing
        partial_file, digest = download(entry, source, folder, name, on_progress)
        try:
            _validate_download(partial_file, entry, store.limits)
            stored = store.import_file(partial_file, entry, digest, durable=durable)
        finally:
            remove_partial_files(folder, name)
        on_fetched(stored)
        return stored


def _validate_download(partial_file: Path, entry: BundleEntry, limits: ArchiveLimits) -> None:
    """Whether this is a whole bundle of that name: a hash that holds does not say that its members are sound."""
    with open_archive(partial_file, limits) as archive:
        metadata = read_metadata(archive)
        if (metadata.model_id, metadata.version) != (entry.model_id, entry.version):
            raise InvalidBundle(f"The bundle of {entry.key} says it is {metadata.model_id}@{metadata.version}.")
        archive.verify()
