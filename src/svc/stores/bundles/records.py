"""The records of a folder's bundles: SQLite in WAL mode, which is the truth. It knows nothing of files.

`path` is relative to the root, or absolute for a bundle of another tool that lies outside of it.
"""

from __future__ import annotations

import sqlite3
import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import msgspec

from svc.errors import CommandFailed
from svc.wire.bundle import Entry, Signature

BUSY_SECONDS = 60.0
_SCHEMA = """
CREATE TABLE IF NOT EXISTS bundle (
    model_id TEXT NOT NULL, version TEXT NOT NULL, target TEXT NOT NULL,
    size_bytes INTEGER NOT NULL, path TEXT NOT NULL, sha256 TEXT, created TEXT,
    yanked INTEGER NOT NULL DEFAULT 0, signatures TEXT NOT NULL DEFAULT '[]',
    PRIMARY KEY (model_id, version, target)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS unread (key TEXT PRIMARY KEY, raw TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS state (name TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
INSERT OR IGNORE INTO state VALUES ('revision', '0');
"""
_COLUMNS = "model_id, version, target, size_bytes, path, sha256, created, yanked, signatures"
_BY_KEY = "WHERE model_id = ? AND version = ? AND target = ?"
_NEXT = "UPDATE state SET value = CAST(value AS INTEGER) + 1 WHERE name = 'revision'"


class Records:
    """One connection, for all threads of this process, one at a time."""

    def __init__(self, path: Path) -> None:
        """Raises CommandFailed when the file is no database."""
        self._lock = threading.RLock()
        self._db = _open(path)

    def close(self) -> None:
        """May be called twice."""
        with self._lock:
            self._db.close()

    def entries(self, model_id: str | None = None) -> list[Entry]:
        """Sorted by key."""
        where, values = ("WHERE model_id = ?", (model_id,)) if model_id is not None else ("", ())
        with self._lock:
            rows = self._db.execute(f"SELECT {_COLUMNS} FROM bundle {where}", values).fetchall()  # noqa: S608
        return sorted(map(_entry, rows), key=lambda entry: entry.key)

    def unhashed(self) -> list[Entry]:
        """Those without a hash."""
        with self._lock:
            rows = self._db.execute(f"SELECT {_COLUMNS} FROM bundle WHERE sha256 IS NULL").fetchall()  # noqa: S608
        return sorted(map(_entry, rows), key=lambda entry: entry.key)

    def find(self, key: str) -> Entry | None:
        """The record of that key."""
        with self._lock:
            row = self._db.execute(f"SELECT {_COLUMNS} FROM bundle {_BY_KEY}", _parts(key)).fetchone()  # noqa: S608
        return None if row is None else _entry(row)

    def revision(self) -> str:
        """Grows with every change of a record."""
        return self.state("revision") or "0"

    def state(self, name: str) -> str | None:
        """A value kept beside the records."""
        with self._lock:
            row = self._db.execute("SELECT value FROM state WHERE name = ?", (name,)).fetchone()
        return None if row is None else str(row[0])

    def set_state(self, **values: str) -> None:
        """Keeps values beside the records."""
        with self._changing(counted=False):
            self._db.executemany("INSERT OR REPLACE INTO state VALUES (?, ?)", list(values.items()))

    def insert(self, entry: Entry) -> Entry:
        """Adds a record; gives the one that is there afterwards, which is another if there was one."""
        return self.insert_all([entry])[0]

    def insert_all(self, entries: Iterable[Entry]) -> list[Entry]:
        """Adds all of them in one step."""
        kept = []
        with self._changing():
            for entry in entries:
                self._db.execute("INSERT OR IGNORE INTO bundle VALUES (?,?,?,?,?,?,?,?,?)", _row(entry))
                kept.append(self.find(entry.key) or entry)
        return kept

    def update(self, key: str, **values: str | int | None) -> Entry | None:
        """Changes columns of a record and gives the new one."""
        columns = ", ".join(f"{name} = ?" for name in values)
        with self._changing():
            self._db.execute(f"UPDATE bundle SET {columns} {_BY_KEY}", (*values.values(), *_parts(key)))  # noqa: S608
            return self.find(key)

    def remove(self, key: str) -> None:
        """Forgets a record."""
        with self._changing():
            self._db.execute(f"DELETE FROM bundle {_BY_KEY}", _parts(key))  # noqa: S608

    def unread(self) -> dict[str, msgspec.Raw]:
        """Entries of another tool's index that could not be used; they stay in it."""
        with self._lock:
            rows = self._db.execute("SELECT key, raw FROM unread ORDER BY key").fetchall()
        return {key: msgspec.Raw(raw.encode()) for key, raw in rows}

    def set_unread(self, raws: Mapping[str, msgspec.Raw]) -> None:
        """Replaces them."""
        with self._changing(counted=False):
            self._db.execute("DELETE FROM unread")
            self._db.executemany("INSERT INTO unread VALUES (?, ?)", [(k, bytes(v).decode()) for k, v in raws.items()])

    @contextmanager
    def _changing(self, *, counted: bool = True) -> Iterator[None]:
        with self._lock:
            self._db.execute("BEGIN IMMEDIATE")
            try:
                yield
                if counted:
                    self._db.execute(_NEXT)
                self._db.execute("COMMIT")
            except BaseException:
                if self._db.in_transaction:  # a full disk has ended it already
                    self._db.execute("ROLLBACK")
                raise


def _open(path: Path) -> sqlite3.Connection:
    """Several processes may make the file at the same time: SQLite then says busy without waiting, so we wait."""
    deadline = time.monotonic() + BUSY_SECONDS
    while True:
        db = sqlite3.connect(path, timeout=BUSY_SECONDS, isolation_level=None, check_same_thread=False)
        try:
            db.execute("PRAGMA journal_mode = WAL")
            db.execute("PRAGMA synchronous = FULL")
            db.executescript(_SCHEMA)
            return db
        except sqlite3.OperationalError as error:
            db.close()
            if "locked" not in str(error) or time.monotonic() > deadline:
                raise
            time.sleep(0.02)
        except sqlite3.DatabaseError as error:
            db.close()
            raise CommandFailed(
                f"{path} cannot be read ({error}). Move it away: what index.json lists is taken in again, "
                "and the rest is found by: svc registry verify --repair"
            ) from error


def _parts(key: str) -> tuple[str, str, str]:
    model_id, version, target = key.split("/")
    return model_id, version, target


def _entry(row: tuple[str, str, str, int, str, str | None, str | None, int, str]) -> Entry:
    model_id, version, target, size, path, sha256, created, yanked, signatures = row
    return Entry(
        model_id=model_id,
        version=version,
        target=target,
        size_bytes=size,
        path=path,
        sha256=sha256,
        created=created,
        yanked=bool(yanked),
        signatures=() if signatures == "[]" else msgspec.json.decode(signatures, type=tuple[Signature, ...]),
    )


def _row(entry: Entry) -> tuple[str | int | None, ...]:
    signatures = msgspec.json.encode(entry.signatures).decode()
    return (
        *(entry.model_id, entry.version, entry.target, entry.size_bytes, entry.path),
        *(entry.sha256, entry.created, int(entry.yanked), signatures),
    )
