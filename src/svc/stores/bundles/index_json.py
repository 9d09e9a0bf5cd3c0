"""Synchronize `index.json`, which other tools read and write, with the records.

Under one lock: if another tool has changed the file, import its entries. If the records have changed, write a
temporary file and rename it.
"""

from __future__ import annotations

import logging
import os
import shutil
import threading
import time
from pathlib import Path

import msgspec

from svc.bundles import index_parser
from svc.bundles.disk_space import is_unwritable, translate_disk_full_errors
from svc.errors import InsufficientStorage, InternalError, SvcError
from svc.file_lock import hold_lock
from svc.stores.bundles.records import BundleRecords
from svc.wire.bundle import BundleEntry, entry_for_json

log = logging.getLogger("svc.registry")

INDEX_FILE_NAME = "index.json"
MAX_INLINE_WRITE_SECONDS = 0.005
"""Above this duration, writes move from the caller to a background thread."""
INCOMPLETE_WRITE_GRACE_SECONDS = 2.0
"""A file that cannot be decoded may still be written to if it is younger than this."""
REST_PER_SYNC_SECOND = 9
"""The thread pauses between writes for this multiple of a write's duration."""


class IndexJson:
    """Keeps index.json and the records in sync."""

    def __init__(self, root: Path, work_dir: Path, records: BundleRecords) -> None:
        self._root = root
        self._path = root / INDEX_FILE_NAME
        self._lock = work_dir / "index.lock"
        self._temporary = work_dir / "index.json.new"
        self._records = records
        self._last_sync_seconds = 0.0
        self._wake = threading.Condition()
        self._thread: threading.Thread | None = None
        self._is_due = False
        self._closing = threading.Event()
        self.is_behind = False
        """True after a full disk or a read-only folder prevented a write. The records are correct."""

    def mark_changed(self) -> None:
        """Schedule a write after a record change: inline while that is cheap, else in the thread."""
        if self._last_sync_seconds <= MAX_INLINE_WRITE_SECONDS:
            self.sync()
            return
        with self._wake:
            self._is_due = True
            if self._thread is None:
                self._thread = threading.Thread(target=self._run_sync_thread, name="index-json", daemon=True)
                self._thread.start()
            self._wake.notify()

    def close(self) -> None:
        """Finish the pending write."""
        self._closing.set()
        with self._wake:
            self._wake.notify()
        if self._thread is not None:
            self._thread.join()

    def _run_sync_thread(self) -> None:
        while True:
            with self._wake:
                while not (self._is_due or self._closing.is_set()):
                    self._wake.wait(60)
                if not self._is_due:
                    return
                self._is_due = False
            try:
                self.sync()
            except (OSError, SvcError):
                log.exception("index.json could not be written")
            self._closing.wait(self._last_sync_seconds * REST_PER_SYNC_SECOND)

    def is_modified_externally(self) -> bool:
        """Return whether another tool has written the file since the last sync. Cheap to call."""
        return _file_fingerprint(self._path) != (self._records.get_state("index_stamp") or "")

    def sync(self) -> None:
        """Import changes, and write if needed. A full disk or a read-only folder postpones this."""
        started_at = time.perf_counter()
        try:
            if not self._records.is_writable and self._is_current():
                self.is_behind = False
                return
            with translate_disk_full_errors():
                self._sync()
        except InsufficientStorage:
            self._postpone("the disk is full: index.json will be written when there is space")
        except InternalError as error:
            self._postpone(f"index.json is not synchronized: {error.message}")
        except OSError as error:
            if not is_unwritable(error):
                raise
            self._postpone(f"index.json is not synchronized: {error}")
        self._last_sync_seconds = time.perf_counter() - started_at

    def _is_current(self) -> bool:
        """Return whether the file has the current records, and no change of another tool."""
        is_written = self._records.revision() == self._records.get_state("projected")
        return is_written and not self.is_modified_externally()

    def _sync(self) -> None:
        with hold_lock(self._lock):
            fingerprint = _file_fingerprint(self._path)
            if (
                fingerprint
                and fingerprint != self._records.get_state("index_stamp")
                and not self._import_entries(fingerprint)
            ):
                return
            revision = self._records.revision()
            if revision != self._records.get_state("projected") or not fingerprint:
                self._write()
                self._records.set_state(projected=revision, index_stamp=_file_fingerprint(self._path))
        self.is_behind = False

    def _postpone(self, reason: str) -> None:
        if not self.is_behind:
            log.warning("%s", reason)
        self.is_behind = True

    def _write(self) -> None:
        index: dict[str, object] = dict(self._records.list_unusable())
        index |= {entry.key: entry_for_json(entry, str(self._root / entry.path)) for entry in self._records.entries()}
        try:
            with self._temporary.open("wb") as file:
                file.write(msgspec.json.format(msgspec.json.encode(index), indent=1))
                file.flush()
                os.fsync(file.fileno())
            os.replace(self._temporary, self._path)
        except OSError:
            self._temporary.unlink(missing_ok=True)
            raise

    def _import_entries(self, fingerprint: str) -> bool:
        """Import entries of other tools. Returns False while another tool may still be writing the file."""
        try:
            parsed = index_parser.split_index(self._path.read_bytes())
        except ValueError:
            if abs(time.time() - self._path.stat().st_mtime) < INCOMPLETE_WRITE_GRACE_SECONDS:
                return False
            backup = self._backup_path()
            os.replace(self._path, backup)
            log.warning("index.json is not a JSON object; it was moved to %s", backup.name)
            self._records.set_state(projected="")
            return True
        known = {entry.key for entry in self._records.entries()}
        new_entries, unread = [], {}
        for key, raw in parsed.entries.items():
            if key in known:
                continue
            try:
                new_entries.append(read_external_entry(key, raw, self._root))
            except (OSError, ValueError) as error:
                log.warning("the entry %.200r of index.json is not valid: %s", key, error)
                try:
                    index_parser.check_json(raw)
                    unread[key] = raw.copy()
                except ValueError as damage:
                    parsed.errors[key] = str(damage)
        if new_entries:
            self._records.insert_all(new_entries)
        self._records.set_unusable(unread)
        self._records.set_state(index_stamp=fingerprint)
        if parsed.errors:
            self._drop_damaged(parsed.errors)
        return True

    def _drop_damaged(self, damaged: dict[str, str]) -> None:
        """Write a file without damaged entries, which would make it unreadable for others, and keep a copy."""
        backup = self._backup_path()
        shutil.copyfile(self._path, backup)
        named = index_parser.describe_skipped(damaged)
        log.warning("entries of index.json are not valid JSON and were removed; a copy is %s: %s", backup.name, named)
        self._records.set_state(projected="")

    def _backup_path(self) -> Path:
        return self._path.with_name(f"{INDEX_FILE_NAME}.unreadable-{time.time_ns() // 1_000_000}")


def read_external_entry(key: str, raw: msgspec.Raw | bytes, root: Path) -> BundleEntry:
    """Decode an entry of another tool, whose bundle must exist. Raises OSError, and ValueError with the reason."""
    entry = index_parser.parse_entry(key, raw)
    path = root / Path(entry.path).expanduser()
    size = path.stat().st_size
    if size != entry.size_bytes or not path.is_file():
        raise ValueError(f"its bundle has {size} bytes, not {entry.size_bytes}")
    is_inside = path.resolve().is_relative_to(root.resolve()) and path.is_relative_to(root) and ".." not in path.parts
    return msgspec.structs.replace(entry, path=path.relative_to(root).as_posix() if is_inside else str(path.absolute()))


def _file_fingerprint(file: Path) -> str:
    try:
        status = file.stat()
    except OSError:
        return ""
    return f"{status.st_ino}:{status.st_mtime_ns}:{status.st_size}"
