"""Store the records of a folder's bundles in SQLite (WAL mode). This is the authoritative state.

`path` is relative to the root, or absolute for a bundle that another tool stores elsewhere.
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
from svc.wire.bundle import BundleEntry, Signature

RECORDS_BUSY_TIMEOUT_SECONDS = 60.0
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
_RECORD_COLUMNS = "model_id, version, target, size_bytes, path, sha256, created, yanked, signatures"
_WHERE_KEY = "WHERE model_id = ? AND version = ? AND target = ?"
_INCREMENT_REVISION_SQL = "UPDATE state SET value = CAST(value AS INTEGER) + 1 WHERE name = 'revision'"


class BundleRecords:
    """One connection, shared by all threads of the process under a lock."""

    def __init__(self, path: Path) -> None:
        """Open the file. Raises CommandFailed if it is not a database."""
        self._lock = threading.RLock()
        self._connection = _open_database(path)

    def close(self) -> None:
        """Close the connection. May be called twice."""
        with self._lock:
            self._connection.close()

    def entries(self, model_id: str | None = None) -> list[BundleEntry]:
        """Return all records, or those of one model, sorted by key."""
        where, values = ("WHERE model_id = ?", (model_id,)) if model_id is not None else ("", ())
        with self._lock:
            rows = self._connection.execute(f"SELECT {_RECORD_COLUMNS} FROM bundle {where}", values).fetchall()  # noqa: S608
        return sorted(map(_entry_from_row, rows), key=lambda entry: entry.key)

    def list_unhashed(self) -> list[BundleEntry]:
        """Return the records without a hash."""
        with self._lock:
            rows = self._connection.execute(f"SELECT {_RECORD_COLUMNS} FROM bundle WHERE sha256 IS NULL").fetchall()  # noqa: S608
        return sorted(map(_entry_from_row, rows), key=lambda entry: entry.key)

    def find(self, key: str) -> BundleEntry | None:
        """Return the record of that key, or None."""
        with self._lock:
            row = self._connection.execute(
                f"SELECT {_RECORD_COLUMNS} FROM bundle {_WHERE_KEY}",  # noqa: S608
                _split_key(key),
            ).fetchone()
        return None if row is None else _entry_from_row(row)

    def revision(self) -> str:
        """Return the revision, which increases with every record change."""
        return self.get_state("revision") or "0"

    def get_state(self, name: str) -> str | None:
        """Return a state value, or None."""
        with self._lock:
            row = self._connection.execute("SELECT value FROM state WHERE name = ?", (name,)).fetchone()
        return None if row is None else str(row[0])

    def set_state(self, **values: str) -> None:
        """Store state values."""
        with self._write_transaction(increments_revision=False):
            self._connection.executemany("INSERT OR REPLACE INTO state VALUES (?, ?)", list(values.items()))

    def insert(self, entry: BundleEntry) -> BundleEntry:
        """Add a record. Returns the stored record, which is the existing one if there was one."""
        return self.insert_all([entry])[0]

    def insert_all(self, entries: Iterable[BundleEntry]) -> list[BundleEntry]:
        """Add records in one transaction."""
        stored = []
        with self._write_transaction():
            for entry in entries:
                self._connection.execute(
                    "INSERT OR IGNORE INTO bundle VALUES (?,?,?,?,?,?,?,?,?)", _row_from_entry(entry)
                )
                stored.append(self.find(entry.key) or entry)
        return stored

    def update(self, key: str, **values: str | int | None) -> BundleEntry | None:
        """Change columns of a record. Returns the new record, or None."""
        columns = ", ".join(f"{name} = ?" for name in values)
        with self._write_transaction():
            self._connection.execute(f"UPDATE bundle SET {columns} {_WHERE_KEY}", (*values.values(), *_split_key(key)))  # noqa: S608
            return self.find(key)

    def remove(self, key: str) -> None:
        """Remove a record."""
        with self._write_transaction():
            self._connection.execute(f"DELETE FROM bundle {_WHERE_KEY}", _split_key(key))  # noqa: S608

    def list_unusable(self) -> dict[str, msgspec.Raw]:
        """Return the entries of other tools that could not be decoded. They stay in index.json."""
        with self._lock:
            rows = self._connection.execute("SELECT key, raw FROM unread ORDER BY key").fetchall()
        return {key: msgspec.Raw(raw.encode()) for key, raw in rows}

    def set_unusable(self, raws: Mapping[str, msgspec.Raw]) -> None:
        """Replace the entries that could not be decoded."""
        with self._write_transaction(increments_revision=False):
            self._connection.execute("DELETE FROM unread")
            self._connection.executemany(
                "INSERT INTO unread VALUES (?, ?)", [(k, bytes(v).decode()) for k, v in raws.items()]
            )

    @contextmanager
    def _write_transaction(self, *, increments_revision: bool = True) -> Iterator[None]:
        with self._lock:
            self._connection.execute("BEGIN IMMEDIATE")
            try:
                yield
                if increments_revision:
                    self._connection.execute(_INCREMENT_REVISION_SQL)
                self._connection.execute("COMMIT")
            except BaseException:
                if self._connection.in_transaction:  # a full disk ends the transaction
                    self._connection.execute("ROLLBACK")
                raise


def _open_database(path: Path) -> sqlite3.Connection:
    """Open the database. SQLite returns SQLITE_BUSY at once while another process creates the file, so retry."""
    deadline = time.monotonic() + RECORDS_BUSY_TIMEOUT_SECONDS
    while True:
        db = sqlite3.connect(path, timeout=RECORDS_BUSY_TIMEOUT_SECONDS, isolation_level=None, check_same_thread=False)
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
                f"{path} cannot be read ({error}). Move it away: the entries of index.json are imported again, "
                "and other bundles are found by: svc registry verify --repair"
            ) from error


def _split_key(key: str) -> tuple[str, str, str]:
    model_id, version, target = key.split("/")
    return model_id, version, target


def _entry_from_row(row: tuple[str, str, str, int, str, str | None, str | None, int, str]) -> BundleEntry:
    model_id, version, target, size, path, sha256, created, yanked, signatures = row
    return BundleEntry(
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


def _row_from_entry(entry: BundleEntry) -> tuple[str | int | None, ...]:
    signatures = msgspec.json.encode(entry.signatures).decode()
    return (
        *(entry.model_id, entry.version, entry.target, entry.size_bytes, entry.path),
        *(entry.sha256, entry.created, int(entry.yanked), signatures),
    )
