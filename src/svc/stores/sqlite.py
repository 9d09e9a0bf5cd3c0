"""Database in one SQLite file, in WAL mode: readers never wait, writers of several processes take turns."""

from __future__ import annotations

import contextlib
import os
import sqlite3
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from svc.errors import UsageError
from svc.stores._sql import Sql
from svc.stores._statements import Cursor
from svc.stores.base import StoreDown

BUSY_SECONDS = 10.0
"""So long a writer waits for its turn."""
NO_ROOM_BYTES = 64 * 1024
"""A disk with less room counts as full: the files beside a database need more."""


class SqliteDatabase(Sql):
    """Belongs to one thread at a time. The file and its folder are made when they are missing."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._db: sqlite3.Connection | None = None

    def close(self) -> None:
        if self._db is not None:
            self._db.close()
            self._db = None

    def _connect(self) -> sqlite3.Connection:
        if self._db is None:
            self._path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            new = not self._path.exists()
            db = sqlite3.connect(self._path, timeout=BUSY_SECONDS, isolation_level=None, check_same_thread=False)
            if new:  # by its path: closing any descriptor of ours would drop SQLite's locks; its side files follow suit
                self._path.chmod(0o600)
            _keep_log(db)
            db.execute("PRAGMA synchronous = NORMAL")
            self._db = db
        return self._db

    def _run(self, sql: str, args: Sequence[Any] = ()) -> Cursor:
        try:
            return self._connect().execute(sql, args)
        except (sqlite3.Error, OSError) as error:
            raise StoreDown(f"The database {self._path} cannot be used: {error}{_also(self._path)}.") from error

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[None]:
        self._run("BEGIN IMMEDIATE")
        try:
            yield
            self._run("COMMIT")
        except BaseException:
            with contextlib.suppress(StoreDown):
                if self._db is not None and self._db.in_transaction:
                    self._run("ROLLBACK")
            raise

    _migrating = _transaction


def _keep_log(db: sqlite3.Connection) -> None:
    """In WAL mode. Of several that open a new file, each has to wait here: SQLite does not, to change the mode."""
    deadline = time.monotonic() + BUSY_SECONDS
    while True:
        try:
            db.execute("PRAGMA journal_mode = WAL")
            return
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY or time.monotonic() > deadline:
                raise
        time.sleep(0.01)


def open_database(url: str, answer_seconds: float = 0.0) -> SqliteDatabase:
    """`sqlite:///relative.db`, `sqlite:////absolute.db`; raises UsageError. A file needs no time limit."""
    path = url.removeprefix("sqlite:///")
    if path == url or not path:
        raise UsageError(f"SVC_DATABASE_URL is not like sqlite:///path/of/file.db: {url[:64]!r}.")
    return SqliteDatabase(Path(path).expanduser())


def _also(path: Path) -> str:
    """SQLite says "disk I/O error" where a file beside the database finds no room."""
    with contextlib.suppress(OSError):
        disk = os.statvfs(path.parent)
        if disk.f_blocks and disk.f_bavail * disk.f_frsize < NO_ROOM_BYTES:
            return ", since its disk is full"
    return ""
