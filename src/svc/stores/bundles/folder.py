"""Store bundles in a folder on disk, which any number of processes share.

<root>/index.json                                     a copy of the records for other tools
<root>/<model_id>/<version>/<platform>/<model_id>.xyb
<root>/<model_id>/<version>/<platform>/content/       unpacked, with content.json beside it
<root>/.registry/records.sqlite                       the records: the authoritative state
<root>/.registry/uploads/<x>.part, <x>.to             an upload, and its target path
<root>/.registry/{locks,downloads,unpacking,aside}/

A publish hashes while writing, checks, syncs, writes the target path (.to), renames, syncs the folder, commits the
record, and removes the .to file. The next process that opens the folder finishes the publish of a crashed process:
it removes a moved file without a record.
"""

from __future__ import annotations

import errno
import os
import shutil
import threading
import time
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path

import msgspec

from svc.bundles.archive import ARCHIVE_READ_BYTES, ArchiveLimits
from svc.bundles.digest import sha256_file
from svc.bundles.disk_space import move_on_disk, translate_disk_full_errors, translate_write_errors
from svc.errors import AlreadyExists, BundleNotFound, InsufficientStorage, InternalError
from svc.file_lock import hold_lock
from svc.stores.bundles import maintenance
from svc.stores.bundles.base import BundleDraft, VerifyFinding, validate_bundle
from svc.stores.bundles.index_json import IndexJson
from svc.stores.bundles.locks import fsync_dir, make_durable_dirs, striped_lock_path
from svc.stores.bundles.records import BundleRecords
from svc.stores.bundles.unpacked_content import unpack
from svc.stores.bundles.upload import BundleUpload, CompleteFile
from svc.wire.bundle import BundleEntry

RESERVED_DISK_BYTES = 16 << 20


class FolderStore:
    """A local registry. Opening it creates the folder, cleans up after crashed processes and imports index.json.

    On a full disk or in a read-only folder, it can be read, and the next writer cleans up and imports.
    """

    is_on_disk = True

    def __init__(self, root: Path, limits: ArchiveLimits | None = None) -> None:
        self.limits = limits or ArchiveLimits()
        self.root = root.expanduser().absolute()
        self.work_dir = self.root / ".registry"
        for name in ("uploads", "locks", "downloads", "unpacking", "aside"):
            (self.work_dir / name).mkdir(parents=True, exist_ok=True)
        self.records = BundleRecords(self.work_dir / "records.sqlite")
        self._hash_lock = threading.Lock()
        self._hash_locks: dict[str, threading.Lock] = {}
        self.index_file = IndexJson(self.root, self.work_dir, self.records)
        try:
            maintenance.remove_leftovers(self)
            self.index_file.sync()
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        self.index_file.close()
        self.records.close()

    def __enter__(self) -> FolderStore:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def entries(self, model_id: str | None = None) -> Sequence[BundleEntry]:
        return self.records.entries(model_id)

    def find(self, key: str) -> BundleEntry | None:
        return self.records.find(key)

    def revision(self) -> str:
        return self.records.revision()

    def refresh(self) -> None:
        """Import changes of index.json, and write index.json if a full disk prevented it."""
        if self.index_file.is_modified_externally() or self.index_file.is_behind:
            self.index_file.sync()

    def lock_path(self, key: str) -> Path:
        """Return the lock file that protects the files of a key."""
        return striped_lock_path(self.work_dir / "locks", key)

    def create_upload(self, size: int | None = None) -> BundleUpload:
        if size is not None and size + RESERVED_DISK_BYTES > shutil.disk_usage(self.root).free:
            raise InsufficientStorage(f"The registry's disk has no space for {size} bytes.")
        with translate_write_errors():
            return BundleUpload(self.work_dir / "uploads")

    def publish(self, upload: BundleUpload | CompleteFile, draft: BundleDraft) -> tuple[BundleEntry, bool]:
        try:
            draft.validate_new()
            existing = self._find_same_bundle(draft.key, upload.sha256)
            if existing is not None and self.is_complete(existing):
                return existing, False
            validate_bundle(upload.path, draft, self.limits)
            with translate_write_errors():
                return self._commit_upload(upload, draft)
        finally:
            upload.close()

    def import_file(self, path: Path, entry: BundleEntry, sha256: str, *, durable: bool = True) -> BundleEntry:
        finished = CompleteFile(path, sha256, durable=durable)
        try:
            draft = BundleDraft(entry.model_id, entry.version, entry.target, entry.signatures)
            draft.validate()
            with translate_write_errors():
                stored, created = self._commit_upload(finished, draft, entry.created)
            if created and entry.yanked:
                stored = self.set_yanked(entry.key, True)
            return stored
        finally:
            finished.close()

    def _find_same_bundle(self, key: str, sha256: str) -> BundleEntry | None:
        """Return the existing record, or None. Raises AlreadyExists if its bytes differ."""
        entry = self.find(key)
        if entry is not None and entry.sha256 is None and self.is_complete(entry):
            entry = self.ensure_hash(entry)
        if entry is not None and entry.sha256 not in (None, sha256):
            raise AlreadyExists(f"{key} is already published with other bytes. Choose another version.")
        return entry

    def is_complete(self, entry: BundleEntry) -> bool:
        try:
            return self.bundle_path(entry).stat().st_size == entry.size_bytes
        except OSError:
            return False

    def _commit_upload(
        self, upload: BundleUpload | CompleteFile, draft: BundleDraft, created: str | None = None
    ) -> tuple[BundleEntry, bool]:
        upload.sync()
        note = self.work_dir / "uploads" / f"{upload.name}.to"
        note.symlink_to(draft.path)
        fsync_dir(note.parent)
        try:
            with hold_lock(self.lock_path(draft.key)):
                existing = self._find_same_bundle(draft.key, upload.sha256)
                if existing is not None and self.is_complete(existing):
                    return existing, False
                target = self.root / draft.path
                make_durable_dirs(self.root, target.parent)
                maintenance.clear_target(self, draft.path, note)
                try:
                    move_on_disk(upload.path, target)
                    fsync_dir(target.parent)
                    entry = self._save_record(existing, _new_entry(draft, upload.size, upload.sha256, created))
                except BaseException:  # usually a full disk: a file without a record is not a bundle
                    if self.find(draft.key) is None:
                        maintenance.remove_bundle(target, self.root)
                    raise
        finally:
            note.unlink(missing_ok=True)
        self.index_file.mark_changed()
        return entry, existing is None

    def _save_record(self, existing: BundleEntry | None, entry: BundleEntry) -> BundleEntry:
        if existing is None:
            return self.records.insert(entry)
        # The file was missing. This upload restores it.
        values = {"path": entry.path, "sha256": entry.sha256, "size_bytes": entry.size_bytes}
        return self.records.update(existing.key, **values) or entry

    def quarantine(self, path: Path) -> Path:
        """Move a file to the folder that `gc` cleans up."""
        target = self.work_dir / "aside" / f"{time.time_ns()}-{path.name}"
        try:
            os.rename(path, target)
        except OSError as error:
            if error.errno != errno.EXDEV:
                raise
            shutil.move(path, target)  # a folder of the registry is a link to another disk
        return target

    def set_yanked(self, key: str, yanked: bool) -> BundleEntry:
        with translate_disk_full_errors():
            entry = self.records.update(key, yanked=int(yanked))
        if entry is None:
            raise BundleNotFound(f"There is no bundle {key}.")
        self.index_file.mark_changed()
        return entry

    def list_unhashed(self) -> Sequence[BundleEntry]:
        return self.records.list_unhashed()

    def ensure_hash(self, entry: BundleEntry) -> BundleEntry:
        """Return the entry with its hash, computed if it is missing."""
        if entry.sha256 is not None:
            return entry
        with self._hash_lock:
            lock = self._hash_locks.setdefault(entry.key, threading.Lock())
        with lock:  # a second caller finds the hash of the first
            current = self.find(entry.key) or entry
            return current if current.sha256 is not None else self._compute_hash(current)

    def _compute_hash(self, entry: BundleEntry) -> BundleEntry:
        try:
            digest = sha256_file(self.bundle_path(entry))
        except OSError as error:
            raise BundleNotFound(f"The file of {entry.key} cannot be read; see: svc registry verify") from error
        try:
            with translate_disk_full_errors():
                entry = self.records.update(entry.key, sha256=digest) or entry
        except (InsufficientStorage, InternalError):  # the hash is valid, and can be stored later
            return msgspec.structs.replace(entry, sha256=digest)
        self.index_file.mark_changed()
        return entry

    def bundle_path(self, entry: BundleEntry) -> Path:
        """Return the path of the bundle, inside or outside the root."""
        return self.root / entry.path

    def location(self, entry: BundleEntry) -> str:
        return str(self.bundle_path(entry))

    def local_file(self, entry: BundleEntry) -> Path | None:
        return None if Path(entry.path).is_absolute() else self.root / entry.path

    def presigned_url(self, entry: BundleEntry) -> str | None:
        return None

    def read_range(self, entry: BundleEntry, start: int, end: int) -> Iterator[bytes]:
        with self.bundle_path(entry).open("rb") as file:
            file.seek(start)
            while start < end and (data := file.read(min(ARCHIVE_READ_BYTES, end - start))):
                start += len(data)
                yield data

    def content_dir(self, entry: BundleEntry) -> Path:
        """Return the folder of the unpacked bundle."""
        return self.root / entry.key / "content"

    def unpack(self, entry: BundleEntry, *, trusted: bool = False) -> Path:
        """Unpack the bundle if needed. `trusted` means that its hash was just verified. Raises InvalidBundle."""
        return unpack(self, entry, trusted=trusted)

    def verify(self, *, repair: bool = False) -> Iterator[VerifyFinding]:
        return maintenance.verify(self, repair=repair)

    def gc(self, *, dry_run: bool = False) -> Iterator[str]:
        return maintenance.gc(self, dry_run=dry_run)


def _new_entry(draft: BundleDraft, size: int, sha256: str, created: str | None) -> BundleEntry:
    return BundleEntry(
        model_id=draft.model_id,
        version=draft.version,
        target=draft.platform,
        size_bytes=size,
        path=draft.path,
        sha256=sha256,
        created=created or datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        signatures=draft.signatures,
    )
