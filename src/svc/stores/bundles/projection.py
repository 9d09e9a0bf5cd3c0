"""`index.json`: what other tools read and write. It follows the records, and what others put into it is taken in.

Under one lock: if the file is not the one that we wrote, its entries are read; if the records have changed, it is
written again, to a temporary file that is renamed once.
"""

from __future__ import annotations

import logging
import os
import shutil
import threading
import time
from pathlib import Path

import msgspec

from svc.bundles import listing
from svc.bundles.room import room
from svc.errors import InsufficientStorage
from svc.stores.bundles.locks import held
from svc.stores.bundles.records import Records
from svc.wire.bundle import Entry, shown

log = logging.getLogger("svc.registry")

FILE = "index.json"
CHEAP_SECONDS = 0.005
"""A projection that takes longer is not made after every change, but by a thread, which rests in between."""
SETTLE_SECONDS = 2.0
"""An index that cannot be read, and was written less than so long ago, may be one that is not written in one step."""
REST = 9
"""The thread rests so many times as long as a projection takes."""


class Projection:
    """Keeps index.json in step."""

    def __init__(self, root: Path, state: Path, records: Records) -> None:
        self._root = root
        self._file = root / FILE
        self._lock = state / "index.lock"
        self._temporary = state / "index.json.new"
        self._records = records
        self._cost = 0.0
        self._wake = threading.Condition()
        self._thread: threading.Thread | None = None
        self._due = False
        self._closing = threading.Event()
        self.behind = False
        """The disk was full: the records are right, the file will be."""

    def changed(self) -> None:
        """A record has changed: at once while that is cheap, else soon."""
        if self._cost <= CHEAP_SECONDS:
            self.sync()
            return
        with self._wake:
            self._due = True
            if self._thread is None:
                self._thread = threading.Thread(target=self._follow, name="index-json", daemon=True)
                self._thread.start()
            self._wake.notify()

    def close(self) -> None:
        """Does what is due."""
        self._closing.set()
        with self._wake:
            self._wake.notify()
        if self._thread is not None:
            self._thread.join()

    def _follow(self) -> None:
        while True:
            with self._wake:
                while not (self._due or self._closing.is_set()):
                    self._wake.wait(60)
                if not self._due:
                    return
                self._due = False
            try:
                self.sync()
            except OSError:
                log.exception("index.json could not be written")
            self._closing.wait(self._cost * REST)

    def foreign(self) -> bool:
        """Whether another tool has written the file since we did; cheap."""
        return _stamp(self._file) != (self._records.state("index_stamp") or "")

    def sync(self) -> None:
        """Takes in, and writes if need be. On a full disk it is put off: the records are the truth."""
        began = time.perf_counter()
        try:
            with room():
                self._sync()
        except InsufficientStorage:
            self._put_off()
        self._cost = time.perf_counter() - began

    def _sync(self) -> None:
        with held(self._lock):
            stamp = _stamp(self._file)
            if stamp and stamp != self._records.state("index_stamp") and not self._take_in(stamp):
                return
            revision = self._records.revision()
            if revision != self._records.state("projected") or not stamp:
                self._write()
                self._records.set_state(projected=revision, index_stamp=_stamp(self._file))
        self.behind = False

    def _put_off(self) -> None:
        if not self.behind:
            log.warning("the disk is full: index.json will follow when there is room")
        self.behind = True

    def _write(self) -> None:
        index: dict[str, object] = dict(self._records.unread())
        index |= {entry.key: shown(entry, str(self._root / entry.path)) for entry in self._records.entries()}
        try:
            with self._temporary.open("wb") as file:
                file.write(msgspec.json.format(msgspec.json.encode(index), indent=1))
                file.flush()
                os.fsync(file.fileno())
            os.replace(self._temporary, self._file)
        except OSError:
            self._temporary.unlink(missing_ok=True)
            raise

    def _take_in(self, stamp: str) -> bool:
        """False when another tool may still be writing the file: then it is looked at again, and not written."""
        try:
            found = listing.split(self._file.read_bytes())
        except ValueError:
            if abs(time.time() - self._file.stat().st_mtime) < SETTLE_SECONDS:
                return False
            aside = self._aside()
            os.replace(self._file, aside)
            log.warning("index.json is not a JSON object; it was put aside as %s", aside.name)
            self._records.set_state(projected="")
            return True
        known = {entry.key for entry in self._records.entries()}
        fresh, unread = [], {}
        for key, raw in found.members.items():
            if key in known:
                continue
            try:
                fresh.append(read_foreign(key, raw, self._root))
            except (OSError, ValueError) as error:
                log.warning("the entry %.200r of index.json cannot be used: %s", key, error)
                try:
                    listing.check_json(raw)
                    unread[key] = raw.copy()
                except ValueError as damage:
                    found.damaged[key] = str(damage)
        if fresh:
            self._records.insert_all(fresh)
        self._records.set_unread(unread)
        self._records.set_state(index_stamp=stamp)
        if found.damaged:
            self._leave_out(found.damaged)
        return True

    def _leave_out(self, damaged: dict[str, str]) -> None:
        """No reader could read an index with such entries in it: it is written anew, and a copy is kept."""
        aside = self._aside()
        shutil.copyfile(self._file, aside)
        named = listing.describe(damaged)
        log.warning("entries of index.json are no JSON and were left out; a copy is %s: %s", aside.name, named)
        self._records.set_state(projected="")

    def _aside(self) -> Path:
        return self._file.with_name(f"{FILE}.unreadable-{time.time_ns() // 1_000_000}")


def read_foreign(key: str, raw: msgspec.Raw | bytes, root: Path) -> Entry:
    """An entry that another tool wrote; the bundle must be there. Raises OSError, ValueError: what is wrong with it."""
    entry = listing.parse(key, raw)
    path = root / Path(entry.path).expanduser()
    size = path.stat().st_size
    if size != entry.size_bytes or not path.is_file():
        raise ValueError(f"its bundle has {size} bytes, not {entry.size_bytes}")
    inside = path.resolve().is_relative_to(root.resolve()) and path.is_relative_to(root) and ".." not in path.parts
    return msgspec.structs.replace(entry, path=path.relative_to(root).as_posix() if inside else str(path.absolute()))


def _stamp(file: Path) -> str:
    try:
        status = file.stat()
    except OSError:
        return ""
    return f"{status.st_ino}:{status.st_mtime_ns}:{status.st_size}"
