"""Which models of a folder hold a file of some name, told without unpacking anything."""

from __future__ import annotations

from pathlib import Path

from svc.bundles.peek import peek
from svc.bundles.platform import fallbacks
from svc.bundles.reference import Reference, choose
from svc.errors import SvcError
from svc.stores.bundles.folder import FolderStore
from svc.wire.bundle import Entry


class Contents:
    """Of one folder. A bundle is looked into once; any thread may ask."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._files: dict[tuple[str, str | None], tuple[str, ...]] = {}
        """By key and hash."""
        self._newest: tuple[str, list[Entry]] = ("", [])
        """The revision of the folder, and the newest bundle of each model for this platform."""

    def holding(self, file: str) -> list[str]:
        """The models whose newest bundle for this platform names the file. None of a folder that cannot be read."""
        if not self._root.is_dir():
            return []
        try:
            with FolderStore(self._root) as store:
                return [entry.model_id for entry in self._entries(store) if file in self._look(store, entry)]
        except (SvcError, OSError):
            return []

    def _entries(self, store: FolderStore) -> list[Entry]:
        revision = store.revision()
        known, entries = self._newest
        if known != revision:
            by_model: dict[str, list[Entry]] = {}
            for entry in store.entries():
                by_model.setdefault(entry.model_id, []).append(entry)
            found = (choose(Reference(name), of, fallbacks()) for name, of in by_model.items())
            entries = [entry for entry in found if entry is not None]
            self._newest = (revision, entries)
            kept = {(entry.key, entry.sha256) for entry in entries}
            self._files = {at: files for at, files in self._files.items() if at in kept}
        return entries

    def _look(self, store: FolderStore, entry: Entry) -> tuple[str, ...]:
        at = (entry.key, entry.sha256)
        if at not in self._files:
            self._files[at] = _named(store, entry)
        return self._files[at]


def _named(store: FolderStore, entry: Entry) -> tuple[str, ...]:
    """The files that the bundle's metadata names; none of one that is damaged, or has gone."""
    try:
        with store.path(entry).open("rb") as file:

            def read(start: int, size: int) -> bytes:
                file.seek(start)
                return file.read(size)

            about = peek(read, store.path(entry).stat().st_size)
    except (SvcError, OSError):
        return ()
    return about.files if about is not None else ()
