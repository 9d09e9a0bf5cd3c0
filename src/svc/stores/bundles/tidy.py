"""Keeps a folder of bundles healthy: cleaning up after dead processes, hashing again, removing what nothing names."""

from __future__ import annotations

import contextlib
import fcntl
import glob
import os
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

from svc.bundles.archive import Limits
from svc.bundles.digest import sha256_of
from svc.bundles.reference import check_name
from svc.errors import InvalidRequest, SvcError
from svc.stores.bundles.base import Draft, Finding, check_bundle
from svc.stores.bundles.locks import held
from svc.stores.bundles.projection import Projection
from svc.stores.bundles.records import Records
from svc.stores.bundles.spool import is_abandoned
from svc.wire.bundle import Entry

STALE_SECONDS = 14 * 86400.0
"""After so long an unfinished download is given up."""


class Folder(Protocol):
    """What is asked of the store."""

    root: Path
    state: Path
    limits: Limits
    records: Records
    projection: Projection

    def lock(self, key: str) -> Path: ...
    def path(self, entry: Entry) -> Path: ...
    def hashed(self, entry: Entry) -> Entry: ...
    def put_aside(self, path: Path) -> Path: ...


def clean(store: Folder) -> None:
    """Removes what processes that died have left. What living ones use is locked."""
    uploads = store.state / "uploads"
    for note in uploads.glob("*.to"):
        part = note.with_suffix(".part")
        if part.exists():
            if remove_abandoned(part):
                note.unlink(missing_ok=True)
        else:
            _finish(store, note)
    for part in uploads.glob("*.part"):
        remove_abandoned(part)
    for folder in (store.state / "unpacking").iterdir():
        if is_abandoned(folder):
            shutil.rmtree(folder, ignore_errors=True)


def _finish(store: Folder, note: Path) -> None:
    """The file was moved: it stays if the record was made, and goes if it was not."""
    path = _leads_to(note)
    if path is None:
        return
    target = store.root / path
    key = "/".join(target.relative_to(store.root).parts[:3])
    with held(store.lock(key)):
        if target.exists() and not is_abandoned(target):
            return
        if store.records.find(key) is None:
            remove_bundle(target, store.root)
        note.unlink(missing_ok=True)


def make_way(store: Folder, path: str, own: Path) -> None:
    """Before a file is moved to `path`, whose lock is held: removes what a dead publisher left, puts aside the rest."""
    target = store.root / path
    if not target.exists():
        return
    for note in store.state.joinpath("uploads").glob("*.to"):
        if note != own and _leads_to(note) == path and is_abandoned(target):
            target.unlink(missing_ok=True)
            note.unlink(missing_ok=True)
    if target.exists():
        store.put_aside(target)


def _leads_to(note: Path) -> str | None:
    try:
        return os.readlink(note)
    except OSError:  # its publisher has just ended
        return None


def remove_abandoned(path: Path) -> bool:
    """Removes the file while holding its lock, so that nobody can take it up in between."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        path.unlink(missing_ok=True)
    except OSError:
        return False
    finally:
        os.close(fd)
    return True


def remove_bundle(path: Path, root: Path) -> None:
    """Removes the file, and the folders that are empty without it."""
    path.unlink(missing_ok=True)
    _remove_empty(path.parent, root)


def _remove_empty(folder: Path, root: Path) -> None:
    while folder != root:
        try:
            folder.rmdir()
        except OSError:
            return
        folder = folder.parent


def verify(store: Folder, *, repair: bool) -> Iterator[Finding]:
    """Every record, then every file that none names. `repair` puts damaged files aside and adds sound ones."""
    for entry in store.records.entries():
        yield _verify(store, entry, repair)
    for path in _unlisted(store):
        yield _offer(store, path, repair)
    store.projection.sync()


def _verify(store: Folder, entry: Entry, repair: bool) -> Finding:
    path = store.path(entry)
    try:
        status, digest = path.stat(), sha256_of(path)
    except OSError as error:
        return Finding(entry.key, "missing", f"{path}: {error.strerror}; pull or publish it again")
    if entry.sha256 is None and status.st_size == entry.size_bytes:
        store.records.update(entry.key, sha256=digest)
        return Finding(entry.key, "ok", "hash noted")
    if (digest, status.st_size) == (entry.sha256, entry.size_bytes):
        return Finding(entry.key, "ok")
    if not repair:
        return Finding(
            entry.key, "damaged", f"{path} is not what was published; mend with: svc registry verify --repair"
        )
    with held(store.lock(entry.key)):
        if _inode(path) != status.st_ino:
            return Finding(entry.key, "mended", "somebody has just published it again")
        aside = store.put_aside(path)
    return Finding(entry.key, "removed", f"damaged; put aside as {aside}; pull or publish it again")


def _inode(path: Path) -> int | None:
    try:
        return path.stat().st_ino
    except OSError:
        return None


def _offer(store: Folder, path: Path, repair: bool) -> Finding:
    model_id, version, target = path.relative_to(store.root).parts[:3]
    draft = Draft(model_id, version, target)
    try:
        check_bundle(path, draft, store.limits)
        if not repair:
            return Finding(draft.key, "unlisted", f"{path} is sound; add it with: svc registry verify --repair")
        entry = Entry(
            model_id=draft.model_id,
            version=draft.version,
            target=draft.target,
            size_bytes=path.stat().st_size,
            path=path.relative_to(store.root).as_posix(),
            sha256=sha256_of(path),
            created=time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        )
        with held(store.lock(draft.key)):
            store.records.insert(entry)
    except (SvcError, OSError) as error:
        return Finding(draft.key, "unlisted", f"{path} cannot be added: {error}")
    return Finding(draft.key, "added", str(path))


def _in_layout(store: Folder, name: str) -> list[Path]:
    """What is called so in <model_id>/<version>/<platform>/. Folders that go while we look are passed over."""
    found = (store.root / path for path in sorted(glob.glob(f"*/*/*/{name}", root_dir=store.root)))
    return [path for path in found if _is_key(path.relative_to(store.root).parts[:3])]


def _unlisted(store: Folder) -> Iterator[Path]:
    """Bundles in the layout that no record names and no publisher is at."""
    for path in _in_layout(store, "*.xyb"):
        entry = store.records.find("/".join(path.relative_to(store.root).parts[:3]))
        if (entry is None or store.path(entry) != path) and is_abandoned(path):
            yield path


def _is_key(parts: tuple[str, ...]) -> bool:
    try:
        for part in parts:
            check_name("name", part)
    except InvalidRequest:
        return False
    return True


def gc(store: Folder, *, dry_run: bool) -> Iterator[str]:
    """Removes, and names, what no record names; what a running publish is about to name is left alone."""
    store.projection.sync()
    for path in [*_unlisted(store), *_in_layout(store, "content")]:
        key = "/".join(path.relative_to(store.root).parts[:3])
        with held(store.lock(key)):
            entry = store.records.find(key)
            if entry is not None and (path.name == "content" or store.path(entry) == path):
                continue
            if not is_abandoned(path):
                continue
            if not dry_run:
                _remove(path)
                _remove_empty(path.parent, store.root)
        yield path.relative_to(store.root).as_posix()
    for path in [*(store.state / "aside").iterdir(), *_stale(store.state / "downloads")]:
        if not dry_run:
            _remove(path)
        yield path.relative_to(store.root).as_posix()


def _stale(folder: Path) -> Iterator[Path]:
    for path in folder.iterdir():
        with contextlib.suppress(FileNotFoundError):  # it has just become a bundle
            if time.time() - path.stat().st_mtime > STALE_SECONDS:
                yield path


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
        path.with_name("content.json").unlink(missing_ok=True)
    else:
        path.unlink(missing_ok=True)
