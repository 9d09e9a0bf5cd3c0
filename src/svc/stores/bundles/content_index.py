"""Find the models of a folder that contain a file of a given name, without unpacking bundles."""

from __future__ import annotations

from pathlib import Path

from svc.bundles.platform import compatible_platforms
from svc.bundles.reference import BundleReference, select_entry
from svc.bundles.remote_metadata import read_remote_metadata
from svc.errors import SvcError
from svc.stores.bundles.folder import FolderStore
from svc.stores.bundles.unreadable import warn_unreadable
from svc.wire.bundle import BundleEntry


class BundleContentIndex:
    """The file names in the bundles of one folder. Each bundle is read once. Thread-safe."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._files_by_bundle: dict[tuple[str, str | None], tuple[str, ...]] = {}
        """Keyed by bundle key and hash."""
        self._newest: tuple[str, list[BundleEntry]] = ("", [])
        """The folder's revision, and the newest bundle of each model for this platform."""

    def models_with_file(self, file_name: str) -> list[str]:
        """Return the models whose newest bundle for this platform has the file. An unreadable folder has none."""
        if not self._root.is_dir():
            return []
        try:
            with FolderStore(self._root) as store:
                return [
                    entry.model_id for entry in self._newest_entries(store) if file_name in self._files_of(store, entry)
                ]
        except (SvcError, OSError) as error:
            warn_unreadable(self._root, error)
            return []

    def _newest_entries(self, store: FolderStore) -> list[BundleEntry]:
        revision = store.revision()
        cached_revision, entries = self._newest
        if cached_revision != revision:
            by_model: dict[str, list[BundleEntry]] = {}
            for entry in store.entries():
                by_model.setdefault(entry.model_id, []).append(entry)
            selected = (
                select_entry(BundleReference(name), versions, compatible_platforms())
                for name, versions in by_model.items()
            )
            entries = [entry for entry in selected if entry is not None]
            self._newest = (revision, entries)
            current_keys = {(entry.key, entry.sha256) for entry in entries}
            self._files_by_bundle = {key: files for key, files in self._files_by_bundle.items() if key in current_keys}
        return entries

    def _files_of(self, store: FolderStore, entry: BundleEntry) -> tuple[str, ...]:
        key = (entry.key, entry.sha256)
        if key not in self._files_by_bundle:
            self._files_by_bundle[key] = _read_file_names(store, entry)
        return self._files_by_bundle[key]


def _read_file_names(store: FolderStore, entry: BundleEntry) -> tuple[str, ...]:
    """Return the files in the bundle's metadata. A damaged or missing bundle has none."""
    try:
        with store.bundle_path(entry).open("rb") as file:

            def read(start: int, size: int) -> bytes:
                file.seek(start)
                return file.read(size)

            bundle_metadata = read_remote_metadata(read, store.bundle_path(entry).stat().st_size)
    except (SvcError, OSError):
        return ()
    return bundle_metadata.files if bundle_metadata is not None else ()
