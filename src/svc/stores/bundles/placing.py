"""Keeps a folder of files that was made on this machine as a bundle, with the folder itself as its content."""

from __future__ import annotations

import os
import shutil
import uuid
from pathlib import Path

from svc.bundles.digest import sha256_of
from svc.bundles.pack import pack
from svc.bundles.platform import ANY, fallbacks
from svc.bundles.reference import choose, parse
from svc.errors import SvcError
from svc.stores.bundles.folder import FolderStore
from svc.stores.bundles.locks import held, stripe
from svc.stores.bundles.unpacking import write_manifest
from svc.wire.bundle import Entry


def place(folder: Path, root: Path) -> Entry:
    """Packs, publishes and moves the folder into the layout. Raises AlreadyExists, InvalidBundle."""
    with FolderStore(root) as store:
        packed = store.state / "unpacking" / f"{uuid.uuid4().hex}.xyb"
        try:
            about = pack(folder, packed)
            digest, size = sha256_of(packed), packed.stat().st_size
            entry = Entry(
                model_id=about.model_id,
                version=about.version,
                target=about.platform or ANY,
                size_bytes=size,
                path="",
                sha256=digest,
            )
            entry = store.adopt(packed, entry, digest)
        finally:
            packed.unlink(missing_ok=True)
        _move(store, folder, entry)
        return entry


def _move(store: FolderStore, folder: Path, entry: Entry) -> None:
    target = store.content(entry)
    with held(stripe(store.state / "locks", f"unpack {entry.key}")):
        if target != folder:
            if target.exists():
                os.rename(target, store.state / "unpacking" / uuid.uuid4().hex)
            os.rename(folder, target)
        files = {
            path.relative_to(target).as_posix(): path.stat().st_size for path in target.rglob("*") if path.is_file()
        }
        write_manifest(target, entry.sha256, files)


def ensure(content: Path, root: Path) -> None:
    """Makes a bundle of content that was put into the layout without one."""
    with FolderStore(root) as store:
        entry = store.find("/".join(content.relative_to(root).parts[:3]))
        if entry is not None and store.is_whole(entry):
            return
    place(content, root)


def unpacked(root: Path, reference: str) -> Path | None:
    """The folder of a bundle that is in the root, unpacked if need be. None when there is none, or it is not sound."""
    if not root.is_dir():
        return None
    try:
        wanted = parse(reference)
        with FolderStore(root) as store:
            entry = choose(wanted, store.entries(wanted.model_id), fallbacks())
            return store.unpack(entry) if entry else None
    except (SvcError, OSError):  # a root that can only be read has no bundles that are not unpacked
        return None


def remove(key: str, root: Path) -> bool:
    """Removes a bundle of this machine, record, file and content. False when it was not there."""
    with FolderStore(root) as store:
        entry = store.find(key)
        if entry is None:
            return False
        with held(store.lock(key)):
            store.records.remove(key)
            if (path := store.file(entry)) is not None:
                path.unlink(missing_ok=True)
            content = store.content(entry)
            content.with_name("content.json").unlink(missing_ok=True)
            shutil.rmtree(content, ignore_errors=True)
            for folder in list(content.parents)[:3]:
                if not any(folder.iterdir()):
                    folder.rmdir()
        store.projection.changed()
        return True
