"""A folder of bundles on disk, shared by any number of processes.

<root>/index.json                                     the projection that other tools read
<root>/<model_id>/<version>/<platform>/<model_id>.xyb
<root>/<model_id>/<version>/<platform>/content/       unpacked, with content.json beside it
<root>/.registry/records.sqlite                       the truth
<root>/.registry/uploads/<x>.part, <x>.to             an upload, and where it is about to be moved
<root>/.registry/{locks,downloads,unpacking,aside}/

A publish: hash while writing, check, fsync, note where to (.to), move, fsync the folder, commit, remove the note.
Whoever opens the folder next finishes what a dead process left: a moved file without a record is removed.
"""

from __future__ import annotations

import os
import shutil
import threading
import time
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path

import msgspec

from svc.bundles.archive import BLOCK, Limits
from svc.bundles.digest import sha256_of
from svc.bundles.room import room
from svc.errors import AlreadyExists, BundleNotFound, InsufficientStorage
from svc.stores.bundles import tidy
from svc.stores.bundles.base import Draft, Finding, check_bundle
from svc.stores.bundles.locks import held, make_folders, stripe, sync_folder
from svc.stores.bundles.projection import Projection
from svc.stores.bundles.records import Records
from svc.stores.bundles.spool import Finished, Spool
from svc.stores.bundles.unpacking import unpack
from svc.wire.bundle import Entry

RESERVE = 16 << 20


class FolderStore:
    """The local registry. Opening it makes the folder, cleans up after dead processes and takes in index.json."""

    on_disk = True

    def __init__(self, root: Path, limits: Limits | None = None) -> None:
        self.limits = limits or Limits()
        self.root = root.expanduser().absolute()
        self.state = self.root / ".registry"
        for name in ("uploads", "locks", "downloads", "unpacking", "aside"):
            (self.state / name).mkdir(parents=True, exist_ok=True)
        with room():
            self.records = Records(self.state / "records.sqlite")
        self._hash_lock = threading.Lock()
        self._hash_locks: dict[str, threading.Lock] = {}
        self.projection = Projection(self.root, self.state, self.records)
        tidy.clean(self)
        self.projection.sync()

    def close(self) -> None:
        self.projection.close()
        self.records.close()

    def __enter__(self) -> FolderStore:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def entries(self, model_id: str | None = None) -> Sequence[Entry]:
        return self.records.entries(model_id)

    def find(self, key: str) -> Entry | None:
        return self.records.find(key)

    def revision(self) -> str:
        return self.records.revision()

    def refresh(self) -> None:
        """Takes in what another tool has written to index.json, and writes what a full disk has kept from it."""
        if self.projection.foreign() or self.projection.behind:
            self.projection.sync()

    def lock(self, key: str) -> Path:
        """The file whose lock is held while the files of a key change."""
        return stripe(self.state / "locks", key)

    def spool(self, size: int | None = None) -> Spool:
        if size is not None and size + RESERVE > shutil.disk_usage(self.root).free:
            raise InsufficientStorage(f"The registry's disk has no room for {size} bytes.")
        with room():
            return Spool(self.state / "uploads")

    def publish(self, spool: Spool, draft: Draft) -> tuple[Entry, bool]:
        try:
            draft.check()
            known = self._same(draft.key, spool.sha256)
            if known is not None and self.is_whole(known):
                return known, False
            check_bundle(spool.path, draft, self.limits)
            with room():
                return self._keep(spool, draft)
        finally:
            spool.close()

    def adopt(self, path: Path, entry: Entry, sha256: str, *, durable: bool = True) -> Entry:
        finished = Finished(path, sha256, durable=durable)
        try:
            draft = Draft(entry.model_id, entry.version, entry.target, entry.signatures)
            draft.check()
            with room():
                kept, created = self._keep(finished, draft, entry.created)
            if created and entry.yanked:
                kept = self.set_yanked(entry.key, True)
            return kept
        finally:
            finished.close()

    def _same(self, key: str, sha256: str) -> Entry | None:
        """The record, if there is one. Raises AlreadyExists when it is of other bytes."""
        entry = self.find(key)
        if entry is not None and entry.sha256 is None and self.is_whole(entry):
            entry = self.hashed(entry)
        if entry is not None and entry.sha256 not in (None, sha256):
            raise AlreadyExists(f"{key} is published already, with other bytes; choose another version.")
        return entry

    def is_whole(self, entry: Entry) -> bool:
        try:
            return self.path(entry).stat().st_size == entry.size_bytes
        except OSError:
            return False

    def _keep(self, spool: Spool | Finished, draft: Draft, created: str | None = None) -> tuple[Entry, bool]:
        spool.sync()
        note = self.state / "uploads" / f"{spool.name}.to"
        note.symlink_to(draft.path)
        sync_folder(note.parent)
        try:
            with held(self.lock(draft.key)):
                known = self._same(draft.key, spool.sha256)
                if known is not None and self.is_whole(known):
                    return known, False
                target = self.root / draft.path
                make_folders(self.root, target.parent)
                tidy.make_way(self, draft.path, note)
                os.rename(spool.path, target)
                try:
                    sync_folder(target.parent)
                    entry = self._note(known, _entry(draft, spool.size, spool.sha256, created))
                except BaseException:  # a full disk, mostly: without a record there is no bundle
                    if self.find(draft.key) is None:
                        tidy.remove_bundle(target, self.root)
                    raise
        finally:
            note.unlink(missing_ok=True)
        self.projection.changed()
        return entry, known is None

    def _note(self, known: Entry | None, entry: Entry) -> Entry:
        if known is None:
            return self.records.insert(entry)
        # Its file was lost, and is back.
        values = {"path": entry.path, "sha256": entry.sha256, "size_bytes": entry.size_bytes}
        return self.records.update(known.key, **values) or entry

    def put_aside(self, path: Path) -> Path:
        """Moves a file that is in the way to where `gc` finds it."""
        aside = self.state / "aside" / f"{time.time_ns()}-{path.name}"
        os.rename(path, aside)
        return aside

    def set_yanked(self, key: str, yanked: bool) -> Entry:
        with room():
            entry = self.records.update(key, yanked=int(yanked))
        if entry is None:
            raise BundleNotFound(f"There is no bundle {key}.")
        self.projection.changed()
        return entry

    def unhashed(self) -> Sequence[Entry]:
        return self.records.unhashed()

    def hashed(self, entry: Entry) -> Entry:
        """The entry with its hash, which one of another tool may lack."""
        if entry.sha256 is not None:
            return entry
        with self._hash_lock:
            lock = self._hash_locks.setdefault(entry.key, threading.Lock())
        with lock:  # whoever comes second finds the hash of the first
            known = self.find(entry.key) or entry
            return known if known.sha256 is not None else self._hash(known)

    def _hash(self, entry: Entry) -> Entry:
        try:
            digest = sha256_of(self.path(entry))
        except OSError as error:
            raise BundleNotFound(f"The file of {entry.key} cannot be read; see: svc registry verify") from error
        try:
            with room():
                entry = self.records.update(entry.key, sha256=digest) or entry
        except InsufficientStorage:  # it is right all the same, and can be noted later
            return msgspec.structs.replace(entry, sha256=digest)
        self.projection.changed()
        return entry

    def path(self, entry: Entry) -> Path:
        """Where the bundle lies, in the root or elsewhere."""
        return self.root / entry.path

    def where(self, entry: Entry) -> str:
        return str(self.path(entry))

    def file(self, entry: Entry) -> Path | None:
        return None if Path(entry.path).is_absolute() else self.root / entry.path

    def address(self, entry: Entry) -> str | None:
        return None

    def read(self, entry: Entry, start: int, end: int) -> Iterator[bytes]:
        with self.path(entry).open("rb") as file:
            file.seek(start)
            while start < end and (data := file.read(min(BLOCK, end - start))):
                start += len(data)
                yield data

    def content(self, entry: Entry) -> Path:
        """Where the bundle lies unpacked, once it is."""
        return self.root / entry.key / "content"

    def unpack(self, entry: Entry, *, trusted: bool = False) -> Path:
        """Unpacks it unless it is; `trusted`: its hash has just been checked. Raises InvalidBundle."""
        return unpack(self, entry, trusted=trusted)

    def verify(self, *, repair: bool = False) -> Iterator[Finding]:
        return tidy.verify(self, repair=repair)

    def gc(self, *, dry_run: bool = False) -> Iterator[str]:
        return tidy.gc(self, dry_run=dry_run)


def _entry(draft: Draft, size: int, sha256: str, created: str | None) -> Entry:
    return Entry(
        model_id=draft.model_id,
        version=draft.version,
        target=draft.target,
        size_bytes=size,
        path=draft.path,
        sha256=sha256,
        created=created or datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        signatures=draft.signatures,
    )
