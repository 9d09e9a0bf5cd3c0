"""A Database in one SQLite file in WAL mode: readers never wait, and writers of several processes are serialized."""

from __future__ import annotations

import contextlib
import os
import pwd
import sqlite3
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from svc.bundles.disk_space import is_disk_full
from svc.errors import UsageError
from svc.stores.database.base import StoreUnavailable
from svc.stores.database.sql import SqlDatabase
from svc.stores.database.statements import DatabaseCursor

DATABASE_BUSY_TIMEOUT_SECONDS = 10.0
"""Maximum time that a writer waits for the write lock."""
_DAMAGED = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)


class SqliteDatabase(SqlDatabase):
    """Belongs to one thread at a time. It creates the file and its folder if they are missing."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._connection: sqlite3.Connection | None = None

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def interrupt(self) -> None:
        connection = self._connection
        if connection is not None:
            with contextlib.suppress(sqlite3.Error):  # closed
                connection.interrupt()

    def _connect(self) -> sqlite3.Connection:
        if self._connection is None:
            self._path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            is_new = not self._path.exists()
            connection = sqlite3.connect(
                self._path, timeout=DATABASE_BUSY_TIMEOUT_SECONDS, isolation_level=None, check_same_thread=False
            )
            if is_new:  # by path: closing a descriptor would release SQLite's locks; the WAL files inherit the mode
                self._path.chmod(0o600)
            _enable_wal(connection)
            connection.execute("PRAGMA synchronous = NORMAL")
            self._connection = connection
        return self._connection

    def _run_statement(self, sql: str, args: Sequence[Any] = ()) -> DatabaseCursor:
        try:
            return self._connect().execute(sql, args)
        except (sqlite3.Error, OSError) as error:
            raise StoreUnavailable(
                f"The database {self._path} cannot be used: {error}{_describe_cause(self._path, error)}."
            ) from error

    def _has_table(self, name: str) -> bool:
        return bool(self._run_statement("SELECT 1 FROM sqlite_master WHERE name = ?", (name,)).fetchall())

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[None]:
        self._run_statement("BEGIN IMMEDIATE")
        try:
            yield
            self._run_statement("COMMIT")
        except BaseException:
            with contextlib.suppress(StoreUnavailable):
                if self._connection is not None and self._connection.in_transaction:
                    self._run_statement("ROLLBACK")
            raise

    _migration_transaction = _transaction


def _enable_wal(db: sqlite3.Connection) -> None:
    """Enable WAL mode. SQLite's busy timeout does not apply to this pragma, so it is repeated while the file is locked.

    https://www.sqlite.org/wal.html
    """
    deadline = time.monotonic() + DATABASE_BUSY_TIMEOUT_SECONDS
    while True:
        try:
            db.execute("PRAGMA journal_mode = WAL")
            return
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY or time.monotonic() > deadline:
                raise
        time.sleep(0.01)


def open_database(url: str, timeout_seconds: float = 0.0) -> SqliteDatabase:
    """Open `sqlite:///relative.db` or `sqlite:////absolute.db`. `timeout_seconds` is ignored. Raises UsageError."""
    path = url.removeprefix("sqlite:///")
    if path == url or not path:
        raise UsageError(f"SVC_DATABASE_URL is not valid: use sqlite:///path/of/file.db, not {url[:64]!r}.")
    return SqliteDatabase(Path(path).expanduser())


def _describe_cause(path: Path, error: Exception) -> str:
    """Return what SQLite does not say: a full disk can be a "disk I/O error", and a wrong owner cannot be seen."""
    if is_disk_full(path.parent):
        return ", since its disk is full"
    if isinstance(error, sqlite3.Error) and getattr(error, "sqlite_errorcode", 0) & 0xFF in _DAMAGED:
        return ", so restore a backup"
    with contextlib.suppress(OSError):  # a folder that cannot be searched
        for file in (path, Path(f"{path}-wal"), Path(f"{path}-shm"), path.parent):
            if file.exists() and not os.access(file, os.R_OK | os.W_OK):
                owner, user = _user_name(file.stat().st_uid), _user_name(os.geteuid())
                return f", since {file} belongs to {owner} and is not writable for {user}"
    return ""


def _user_name(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:  # such as in a container
        return f"user {uid}"
