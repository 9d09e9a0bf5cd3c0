"""Store the records of a folder's bundles in SQLite (WAL mode). This is the authoritative state.

`path` is relative to the root, or absolute for a bundle that another tool stores elsewhere.
"""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec

from svc.stores.bundles.records_file import identify_files, open_records, translate_record_errors
from svc.wire.bundle import BundleEntry, Signature

_RECORD_COLUMNS = "model_id, version, target, size_bytes, path, sha256, created, yanked, signatures"
_WHERE_KEY = "WHERE model_id = ? AND version = ? AND target = ?"
_INCREMENT_REVISION_SQL = "UPDATE state SET value = CAST(value AS INTEGER) + 1 WHERE name = 'revision'"


class BundleRecords:
    """One connection, shared by all threads of the process under a lock.

    On a full disk and in a read-only folder, the records can be read and not changed. All methods may raise
    InsufficientStorage and InternalError, and CommandFailed for a damaged file.
    """

    def __init__(self, path: Path) -> None:
        """Open the file, or create it."""
        self._lock = threading.RLock()
        self._path = path
        self._opened = open_records(path)

    def close(self) -> None:
        """Close the connection. May be called twice."""
        with self._lock:
            self._opened.connection.close()

    @property
    def is_writable(self) -> bool:
        """Return whether the records could be changed when the file was opened last."""
        return self._opened.write_error is None

    def entries(self, model_id: str | None = None) -> list[BundleEntry]:
        """Return all records, or those of one model, sorted by key."""
        where, values = ("WHERE model_id = ?", (model_id,)) if model_id is not None else ("", ())
        rows = self._select(f"SELECT {_RECORD_COLUMNS} FROM bundle {where}", values)  # noqa: S608
        return sorted(map(_entry_from_row, rows), key=lambda entry: entry.key)

    def list_unhashed(self) -> list[BundleEntry]:
        """Return the records without a hash."""
        rows = self._select(f"SELECT {_RECORD_COLUMNS} FROM bundle WHERE sha256 IS NULL")  # noqa: S608
        return sorted(map(_entry_from_row, rows), key=lambda entry: entry.key)

    def find(self, key: str) -> BundleEntry | None:
        """Return the record of that key, or None."""
        rows = self._select(f"SELECT {_RECORD_COLUMNS} FROM bundle {_WHERE_KEY}", _split_key(key))  # noqa: S608
        return _entry_from_row(rows[0]) if rows else None

    def revision(self) -> str:
        """Return the revision, which increases with every record change."""
        return self.get_state("revision") or "0"

    def get_state(self, name: str) -> str | None:
        """Return a state value, or None."""
        rows = self._select("SELECT value FROM state WHERE name = ?", (name,))
        return str(rows[0][0]) if rows else None

    def set_state(self, **values: str) -> None:
        """Store state values."""
        with self._write_transaction(increments_revision=False) as connection:
            connection.executemany("INSERT OR REPLACE INTO state VALUES (?, ?)", list(values.items()))

    def insert(self, entry: BundleEntry) -> BundleEntry:
        """Add a record. Returns the stored record, which is the existing one if there was one."""
        return self.insert_all([entry])[0]

    def insert_all(self, entries: Iterable[BundleEntry]) -> list[BundleEntry]:
        """Add records in one transaction."""
        stored = []
        with self._write_transaction() as connection:
            for entry in entries:
                connection.execute("INSERT OR IGNORE INTO bundle VALUES (?,?,?,?,?,?,?,?,?)", _row_from_entry(entry))
                stored.append(self.find(entry.key) or entry)
        return stored

    def update(self, key: str, **values: str | int | None) -> BundleEntry | None:
        """Change columns of a record. Returns the new record, or None."""
        columns = ", ".join(f"{name} = ?" for name in values)
        with self._write_transaction() as connection:
            connection.execute(f"UPDATE bundle SET {columns} {_WHERE_KEY}", (*values.values(), *_split_key(key)))  # noqa: S608
            return self.find(key)

    def remove(self, key: str) -> None:
        """Remove a record."""
        with self._write_transaction() as connection:
            connection.execute(f"DELETE FROM bundle {_WHERE_KEY}", _split_key(key))  # noqa: S608

    def list_unusable(self) -> dict[str, msgspec.Raw]:
        """Return the entries of other tools that could not be decoded. They stay in index.json."""
        rows = self._select("SELECT key, raw FROM unread ORDER BY key")
        return {key: msgspec.Raw(raw.encode()) for key, raw in rows}

    def set_unusable(self, raws: Mapping[str, msgspec.Raw]) -> None:
        """Replace the entries that could not be decoded."""
        with self._write_transaction(increments_revision=False) as connection:
            connection.execute("DELETE FROM unread")
            connection.executemany(
                "INSERT INTO unread VALUES (?, ?)", [(k, bytes(v).decode()) for k, v in raws.items()]
            )

    def _select(self, sql: str, values: Sequence[str] = ()) -> list[Any]:
        """Return the rows. A copy in memory is replaced first if the file has changed."""
        with self._lock, translate_record_errors(self._path):
            if self._opened.copied_files and self._opened.copied_files != identify_files(self._path):
                self._reopen()
            return self._opened.connection.execute(sql, values).fetchall()

    def _reopen(self) -> None:
        opened = open_records(self._path)
        self._opened.connection.close()
        self._opened = opened

    @contextmanager
    def _write_transaction(self, *, increments_revision: bool = True) -> Iterator[sqlite3.Connection]:
        with self._lock, translate_record_errors(self._path):
            if self._opened.write_error is not None:
                self._reopen()  # there may be space again
            if self._opened.write_error is not None:
                raise self._opened.write_error
            connection = self._opened.connection
            connection.execute("BEGIN IMMEDIATE")
            try:
                yield connection
                if increments_revision:
                    connection.execute(_INCREMENT_REVISION_SQL)
                connection.execute("COMMIT")
            except BaseException:
                if connection.in_transaction:  # a full disk ends the transaction
                    connection.execute("ROLLBACK")
                raise


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
