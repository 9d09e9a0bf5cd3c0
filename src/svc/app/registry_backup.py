"""List the files of a registry folder for a backup, so that it agrees with the copy of the records.

    copy the records -> list the files of their bundles -> write the files -> write the records

A bundle whose file vanishes while the files are written is removed from the copy of the records. Unpacked folders
are derived from bundles: a file of them that vanishes is left out, and the next pull creates it again.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Final

from svc.stores.backup_archive import REGISTRY_RECORDS, SourceFile, is_restorable
from svc.stores.bundles.index_json import INDEX_FILE_NAME
from svc.stores.bundles.records import BundleRecords
from svc.stores.bundles.unpacked_content import CONTENT_MANIFEST_FILE_NAME
from svc.wire.bundle import BundleEntry

OnBackupWarning = Callable[[str], None]
"""Called with a sentence that names what is not in the backup."""
MAX_LISTING_ATTEMPTS: Final = 3
LISTING_PAUSE_SECONDS: Final = 0.1
_REGISTRY_FOLDER: Final = "registry"


class RegistryBackup:
    """The files of one registry folder, and its copy of the records."""

    def __init__(self, root: Path, copy_records: Callable[[], Path | None], on_warning: OnBackupWarning) -> None:
        """`copy_records` copies the records and returns the path, or None if there are none."""
        self._root = root
        self._on_warning = on_warning
        self._entries_by_name: dict[str, list[BundleEntry]] = {}
        self._records_copy, entries = self._copy_with_all_files(copy_records)
        self.sources = self._list_sources(entries)
        """The files, in the order in which they must be written."""

    def _copy_with_all_files(self, copy_records: Callable[[], Path | None]) -> tuple[Path | None, list[BundleEntry]]:
        """Copy the records. Repeat it while files are missing, because their bundles may just have been removed."""
        attempt = 1
        while True:
            records_copy = copy_records()
            entries = [] if records_copy is None else _read_entries(records_copy)
            if attempt == MAX_LISTING_ATTEMPTS or all((self._root / entry.path).is_file() for entry in entries):
                return records_copy, entries
            attempt += 1
            time.sleep(LISTING_PAUSE_SECONDS)

    def remove_vanished(self, source: SourceFile) -> None:
        """Remove the bundles of a vanished file from the copy of the records, which is not written yet."""
        entries = self._entries_by_name.get(source.name, ())
        if not entries or self._records_copy is None:
            return
        records = BundleRecords(self._records_copy)
        try:
            for entry in entries:
                records.remove(entry.key)
                self._on_warning(f"{entry.key} is not in the backup: it was removed meanwhile.")
        finally:
            records.close()

    def _list_sources(self, entries: Sequence[BundleEntry]) -> list[SourceFile]:
        sources: dict[str, SourceFile] = {}
        for entry in entries:
            for source in self._list_bundle(entry):
                sources[source.name] = source
        links: list[str] = []
        for source in _walk(self._root, _REGISTRY_FOLDER, links):
            self._add(sources, source)
        for link in links:
            if not any(name == link or name.startswith(f"{link}/") for name in sources):
                self._on_warning(f"{self._path_of(link)} is not in the backup: it is a link, and no bundle is there.")
        index = sources.pop(
            f"{_REGISTRY_FOLDER}/{INDEX_FILE_NAME}", None
        )  # it must not name more bundles than the records
        ordered = sorted(sources.values(), key=lambda source: source.name) + ([index] if index else [])
        if self._records_copy is not None:
            ordered.append(SourceFile(REGISTRY_RECORDS, self._records_copy))
        return ordered

    def _list_bundle(self, entry: BundleEntry) -> Iterator[SourceFile]:
        """Yield the files of a recorded bundle, also behind links. Warn if the bundle cannot be in the backup."""
        path, name = self._root / entry.path, f"{_REGISTRY_FOLDER}/{entry.path}"
        if not path.is_file():
            self._on_warning(f"{entry.key} is not in the backup: its file {path} is missing.")
        elif Path(entry.path).is_absolute() or not is_restorable(name):
            self._on_warning(f"{entry.key} is not in the backup: its file {path} does not belong to {self._root}.")
        else:
            self._entries_by_name.setdefault(name, []).append(entry)
            yield SourceFile(name, path, is_optional=True)
        folder = self._root / entry.key
        if (folder / CONTENT_MANIFEST_FILE_NAME).is_file():
            name = f"{_REGISTRY_FOLDER}/{entry.key}/{CONTENT_MANIFEST_FILE_NAME}"
            yield SourceFile(name, folder / CONTENT_MANIFEST_FILE_NAME, is_optional=True)
        for source in _walk(folder / "content", f"{_REGISTRY_FOLDER}/{entry.key}/content", []):
            if is_restorable(source.name):  # other files are not from the bundle
                yield source

    def _add(self, sources: dict[str, SourceFile], source: SourceFile) -> None:
        if is_restorable(source.name):
            sources.setdefault(source.name, source)
        else:
            self._on_warning(f"{str(source.path)!r} is not in the backup: its name has forbidden characters.")

    def _path_of(self, name: str) -> Path:
        return self._root / name.removeprefix(f"{_REGISTRY_FOLDER}/")


def list_recipe_files(folder: Path, on_warning: OnBackupWarning) -> list[SourceFile]:
    """Return the plain files of the user's recipes. Warn of files that cannot be in a backup."""
    links: list[str] = []
    sources = []
    for source in _walk(folder, "recipes", links):
        if is_restorable(source.name):
            sources.append(source)
        else:
            on_warning(f"{str(source.path)!r} is not in the backup: its name has forbidden characters.")
    for link in links:
        on_warning(f"{link} is not in the backup: it is a link.")
    return sources


def _read_entries(path: Path) -> list[BundleEntry]:
    records = BundleRecords(path)
    try:
        return records.entries()
    finally:
        records.close()


def _walk(folder: Path, prefix: str, links: list[str]) -> Iterator[SourceFile]:
    """Yield the plain files below a folder, without hidden ones. Append the names of links, which are not followed.

    Raises OSError for a folder that cannot be read. One that vanishes is left out.
    """
    for parent, folders, names in os.walk(folder, onerror=_raise_unless_vanished):
        relative = Path(prefix, os.path.relpath(parent, folder)).as_posix()
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        links += [f"{relative}/{name}" for name in folders if os.path.islink(os.path.join(parent, name))]
        for name in sorted(names):
            path = Path(parent, name)
            if name.startswith("."):
                continue
            if path.is_symlink():
                links.append(f"{relative}/{name}")
            elif path.is_file():
                yield SourceFile(f"{relative}/{name}", path, is_optional=True)


def _raise_unless_vanished(error: OSError) -> None:
    if not isinstance(error, (FileNotFoundError, NotADirectoryError)):
        raise error
