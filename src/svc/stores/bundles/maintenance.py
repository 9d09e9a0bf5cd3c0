"""Maintain a folder of bundles: clean up after crashed processes, verify hashes, collect garbage."""

from __future__ import annotations

import contextlib
import glob
import os
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

from svc.bundles.archive import ArchiveLimits
from svc.bundles.digest import sha256_file
from svc.bundles.disk_space import is_unwritable
from svc.bundles.reference import check_name
from svc.errors import InsufficientStorage, InternalError, InvalidRequest, SvcError
from svc.file_lock import hold_lock, is_abandoned, remove_abandoned
from svc.stores.bundles.base import BundleDraft, VerifyFinding, validate_bundle
from svc.stores.bundles.index_json import IndexJson
from svc.stores.bundles.records import BundleRecords
from svc.stores.bundles.resumable_upload import remove_expired_uploads
from svc.wire.bundle import BundleEntry

STALE_DOWNLOAD_SECONDS = 14 * 86400.0
"""Age at which an unfinished download is removed."""


class MaintainedStore(Protocol):
    """The methods of the store that maintenance needs."""

    root: Path
    work_dir: Path
    limits: ArchiveLimits
    records: BundleRecords
    index_file: IndexJson

    def lock_path(self, key: str) -> Path: ...
    def bundle_path(self, entry: BundleEntry) -> Path: ...
    def ensure_hash(self, entry: BundleEntry) -> BundleEntry: ...
    def quarantine(self, path: Path) -> Path: ...


def remove_leftovers(store: MaintainedStore) -> None:
    """Remove files of crashed processes. Files of running processes are locked. A read-only folder stays unchanged."""
    try:
        _remove_leftovers(store)
    except OSError as error:
        if not is_unwritable(error):
            raise


def _remove_leftovers(store: MaintainedStore) -> None:
    uploads = store.work_dir / "uploads"
    for note in uploads.glob("*.to"):
        part = note.with_suffix(".part")
        if part.exists():
            if remove_abandoned(part):
                note.unlink(missing_ok=True)
        else:
            _finish_publish(store, note)
    for part in uploads.glob("*.part"):
        remove_abandoned(part)
    for folder in (store.work_dir / "unpacking").iterdir():
        if is_abandoned(folder):
            shutil.rmtree(folder, ignore_errors=True)
    remove_expired_uploads(store.work_dir)


def _finish_publish(store: MaintainedStore, note: Path) -> None:
    """Finish an interrupted publish: keep the moved file if its record exists, otherwise remove it."""
    path = _note_target(note)
    if path is None:
        return
    target = store.root / path
    key = "/".join(target.relative_to(store.root).parts[:3])
    with hold_lock(store.lock_path(key)):
        if target.exists() and not is_abandoned(target):
            return
        if store.records.find(key) is None:
            remove_bundle(target, store.root)
        note.unlink(missing_ok=True)


def clear_target(store: MaintainedStore, path: str, own_note: Path) -> None:
    """Clear `path` before a publish: remove the file of a crashed publish, or move another file. Needs the lock."""
    target = store.root / path
    if not target.exists():
        return
    for note in store.work_dir.joinpath("uploads").glob("*.to"):
        if note != own_note and _note_target(note) == path and is_abandoned(target):
            target.unlink(missing_ok=True)
            note.unlink(missing_ok=True)
    if target.exists():
        store.quarantine(target)


def _note_target(note: Path) -> str | None:
    try:
        return os.readlink(note)
    except OSError:  # its publisher has just finished
        return None


def remove_bundle(path: Path, root: Path) -> None:
    """Remove the file, and folders that become empty."""
    path.unlink(missing_ok=True)
    _remove_empty(path.parent, root)


def _remove_empty(folder: Path, root: Path) -> None:
    while folder != root:
        try:
            folder.rmdir()
        except OSError:
            return
        folder = folder.parent


def verify(store: MaintainedStore, *, repair: bool) -> Iterator[VerifyFinding]:
    """Check every record, then every file without a record. `repair` moves damaged files aside and adds valid ones."""
    for entry in store.records.entries():
        yield _verify_entry(store, entry, repair)
    for path in _unlisted_bundles(store):
        yield _verify_unlisted(store, path, repair)
    store.index_file.sync()


def _verify_entry(store: MaintainedStore, entry: BundleEntry, repair: bool) -> VerifyFinding:
    path = store.bundle_path(entry)
    try:
        status, digest = path.stat(), sha256_file(path)
    except OSError as error:
        is_denied = isinstance(error, PermissionError)
        advice = "check its owner and its permissions" if is_denied else "pull or publish it again"
        return VerifyFinding(entry.key, "missing", f"{path}: {error.strerror}; {advice}")
    if entry.sha256 is None and status.st_size == entry.size_bytes:
        with contextlib.suppress(InsufficientStorage, InternalError):  # it can be stored later
            store.records.update(entry.key, sha256=digest)
        return VerifyFinding(entry.key, "ok", "hash computed")
    if (digest, status.st_size) == (entry.sha256, entry.size_bytes):
        return VerifyFinding(entry.key, "ok")
    if not repair:
        return VerifyFinding(
            entry.key, "damaged", f"{path} is not what was published; repair with: svc registry verify --repair"
        )
    try:
        with hold_lock(store.lock_path(entry.key)):
            if _inode(path) != status.st_ino:
                return VerifyFinding(entry.key, "mended", "another process published it again")
            if Path(entry.path).is_absolute():
                return _repair_record(store, entry, digest, status.st_size)
            quarantined = store.quarantine(path)
    except (OSError, InsufficientStorage, InternalError) as error:  # the other bundles can still be repaired
        return VerifyFinding(entry.key, "damaged", f"{path} is not what was published, and cannot be repaired: {error}")
    return VerifyFinding(entry.key, "removed", f"damaged; it is now at {quarantined}; pull or publish it again")


def _repair_record(store: MaintainedStore, entry: BundleEntry, digest: str, size: int) -> VerifyFinding:
    """Adapt the record of a bundle outside the root to its file, which belongs to another tool and stays."""
    path = store.bundle_path(entry)
    try:
        validate_bundle(path, BundleDraft(entry.model_id, entry.version, entry.target), store.limits)
    except SvcError as error:
        store.records.remove(entry.key)
        return VerifyFinding(entry.key, "unlisted", f"{path} stays, and its record is removed: {error.message}")
    store.records.update(entry.key, sha256=digest, size_bytes=size, signatures="[]")
    return VerifyFinding(entry.key, "mended", f"another tool has changed {path}; its record has the new hash")


def _inode(path: Path) -> int | None:
    try:
        return path.stat().st_ino
    except OSError:
        return None


def _verify_unlisted(store: MaintainedStore, path: Path, repair: bool) -> VerifyFinding:
    model_id, version, target = path.relative_to(store.root).parts[:3]
    draft = BundleDraft(model_id, version, target)
    try:
        validate_bundle(path, draft, store.limits)
        if not repair:
            return VerifyFinding(draft.key, "unlisted", f"{path} is valid; add it with: svc registry verify --repair")
        entry = BundleEntry(
            model_id=draft.model_id,
            version=draft.version,
            target=draft.platform,
            size_bytes=path.stat().st_size,
            path=path.relative_to(store.root).as_posix(),
            sha256=sha256_file(path),
            created=time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        )
        with hold_lock(store.lock_path(draft.key)):
            store.records.insert(entry)
    except (SvcError, OSError) as error:
        return VerifyFinding(draft.key, "unlisted", f"{path} cannot be added: {error}")
    return VerifyFinding(draft.key, "added", str(path))


def _paths_in_layout(store: MaintainedStore, name: str) -> list[Path]:
    """Return paths with this name in <model_id>/<version>/<platform>/. Folders that disappear meanwhile are skipped."""
    paths = (store.root / path for path in sorted(glob.glob(f"*/*/*/{name}", root_dir=store.root)))
    return [path for path in paths if _is_key(path.relative_to(store.root).parts[:3])]


def _unlisted_bundles(store: MaintainedStore) -> Iterator[Path]:
    """Yield bundle files without a record that no running publish uses."""
    for path in _paths_in_layout(store, "*.xyb"):
        entry = store.records.find("/".join(path.relative_to(store.root).parts[:3]))
        if (entry is None or store.bundle_path(entry) != path) and is_abandoned(path):
            yield path


def _is_key(parts: tuple[str, ...]) -> bool:
    try:
        for part in parts:
            check_name("name", part)
    except InvalidRequest:
        return False
    return True


def gc(store: MaintainedStore, *, dry_run: bool) -> Iterator[str]:
    """Remove and yield files without a record, except those of a running publish."""
    store.index_file.sync()
    for path in [*_unlisted_bundles(store), *_paths_in_layout(store, "content")]:
        key = "/".join(path.relative_to(store.root).parts[:3])
        with hold_lock(store.lock_path(key)):
            entry = store.records.find(key)
            if entry is not None and (path.name == "content" or store.bundle_path(entry) == path):
                continue
            if not is_abandoned(path):
                continue
            if not dry_run:
                _remove(path)
                _remove_empty(path.parent, store.root)
        yield path.relative_to(store.root).as_posix()
    for path in [*(store.work_dir / "aside").iterdir(), *_stale_files(store.work_dir / "downloads")]:
        if not dry_run:
            _remove(path)
        yield path.relative_to(store.root).as_posix()


def _stale_files(folder: Path) -> Iterator[Path]:
    for path in folder.iterdir():
        with contextlib.suppress(FileNotFoundError):  # the file was renamed to a bundle concurrently
            if time.time() - path.stat().st_mtime > STALE_DOWNLOAD_SECONDS:
                yield path


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
        path.with_name("content.json").unlink(missing_ok=True)
    else:
        path.unlink(missing_ok=True)
