"""Download a bundle into a store: one process downloads, the others wait."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path

from svc.bundles.archive import ArchiveLimits, read_metadata
from svc.bundles.download import BundleSource, DownloadProgress, download, remove_partial_files
from svc.bundles.open_archive import open_archive
from svc.errors import InvalidBundle
from svc.file_lock import hold_lock
from svc.stores.bundles.base import BundleStore
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
    """Download a bundle into the store unless it is complete there. Returns the stored entry.

    `durable` syncs the file to disk, which a mere cache does not need. `on_fetched` is called with the new entry
    before waiting processes continue, and only by the process that downloaded it.

    Raises RegistryFailed, BundleNotFound, InvalidBundle and InsufficientStorage. An invalid bundle is removed.
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
    """Check that the file is a valid bundle of that name. A correct hash does not imply valid members."""
    with open_archive(partial_file, limits) as archive:
        metadata = read_metadata(archive)
        if (metadata.model_id, metadata.version) != (entry.model_id, entry.version):
            raise InvalidBundle(f"The bundle of {entry.key} says it is {metadata.model_id}@{metadata.version}.")
        archive.verify()
