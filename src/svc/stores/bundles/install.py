"""Register a folder that was created on this machine as a bundle, with the folder as its unpacked content."""

from __future__ import annotations

import contextlib
import os
import shutil
import uuid
from pathlib import Path

from svc.bundles.digest import sha256_file
from svc.bundles.pack import pack
from svc.bundles.platform import ANY_PLATFORM, compatible_platforms
from svc.bundles.reference import parse_reference, select_entry
from svc.errors import BundleNotFound, InvalidBundle, InvalidRequest, SvcError
from svc.file_lock import hold_lock
from svc.stores.bundles.folder import FolderStore
from svc.stores.bundles.folder_use import open_folder
from svc.stores.bundles.locks import striped_lock_path
from svc.stores.bundles.unpacked_content import write_manifest
from svc.stores.bundles.unreadable import warn_unreadable
from svc.wire.bundle import BundleEntry


def install_folder(folder: Path, root: Path) -> BundleEntry:
    """Pack and publish the folder, then move it into the store. Raises AlreadyExists and InvalidBundle."""
    with open_folder(root) as store:
        archive_path = store.work_dir / "unpacking" / f"{uuid.uuid4().hex}.xyb"
        try:
            metadata = pack(folder, archive_path)
            digest, size = sha256_file(archive_path), archive_path.stat().st_size
            entry = BundleEntry(
                model_id=metadata.model_id,
                version=metadata.version,
                target=metadata.platform or ANY_PLATFORM,
                size_bytes=size,
                path="",
                sha256=digest,
            )
            entry = store.import_file(archive_path, entry, digest)
        finally:
            archive_path.unlink(missing_ok=True)
        _move_content(store, folder, entry)
        return entry


def _move_content(store: FolderStore, folder: Path, entry: BundleEntry) -> None:
    target = store.content_dir(entry)
    with hold_lock(striped_lock_path(store.work_dir / "locks", f"unpack {entry.key}")):
        if target != folder:
            if target.exists():
                os.rename(target, store.work_dir / "unpacking" / uuid.uuid4().hex)
            os.rename(folder, target)
        files = {
            path.relative_to(target).as_posix(): path.stat().st_size for path in target.rglob("*") if path.is_file()
        }
        write_manifest(target, entry.sha256, files)


def ensure_installed(content: Path, root: Path) -> None:
    """Create the bundle of unpacked content that has none."""
    with open_folder(root) as store:
        entry = store.find("/".join(content.relative_to(root).parts[:3]))
        if entry is not None and store.is_complete(entry):
            return
    install_folder(content, root)


def find_unpacked(root: Path, reference: str) -> Path | None:
    """Return the folder of a bundle, unpacked if needed. Returns None for a missing or invalid bundle."""
    if not root.is_dir():
        return None
    try:
        requested = parse_reference(reference)
        with open_folder(root) as store:
            entry = select_entry(requested, store.entries(requested.model_id), compatible_platforms())
            return store.unpack(entry) if entry else None
    except (InvalidRequest, InvalidBundle, BundleNotFound):
        return None
    except (SvcError, OSError) as error:  # a read-only root has only unpacked bundles
        warn_unreadable(root, error)
        return None


def find_installed(model_id: str, version: str, root: Path) -> list[str]:
    """Return the keys of the bundles with exactly this version, of all platforms."""
    if not root.is_dir():
        return []
    with open_folder(root) as store:
        return [entry.key for entry in store.entries(model_id) if entry.version == version]


def remove_installed(key: str, root: Path) -> bool:
    """Remove a bundle's record, file and content. Returns False if it does not exist."""
    with open_folder(root) as store:
        entry = store.find(key)
        if entry is None:
            return False
        with hold_lock(store.lock_path(key)):
            store.records.remove(key)
            if (path := store.local_file(entry)) is not None:
                path.unlink(missing_ok=True)
            content = store.content_dir(entry)
            content.with_name("content.json").unlink(missing_ok=True)
            shutil.rmtree(content, ignore_errors=True)
            for folder in list(content.parents)[:3]:
                with contextlib.suppress(OSError):  # it has other files, or the bundle's file is outside the store
                    folder.rmdir()
        store.index_file.mark_changed()
        return True
