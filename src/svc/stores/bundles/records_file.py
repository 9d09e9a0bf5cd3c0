"""Open the SQLite file of the records: for writing, else for reading, else as a copy in memory.

SQLite needs space and write permission even to read a file in WAL mode: it creates the files `-wal` and `-shm`. A copy
in memory needs neither, and includes what is only in `-wal`. https://www.sqlite.org/wal.html#read_only_databases
"""

from __future__ import annotations

import contextlib
import shutil
import sqlite3
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple
from urllib.parse import quote

from svc.bundles.disk_space import is_disk_full
from svc.errors import CommandFailed, InsufficientStorage, InternalError, SvcError

RECORDS_BUSY_TIMEOUT_SECONDS = 60.0
MAX_COPY_ATTEMPTS = 20
"""Attempts to copy the files while another process does not change them."""
MEMORY_FOLDERS: Final = ("/dev/shm", None)  # noqa: S108 tempfile creates a private folder there
"""Folders for the copy. None is the system's temporary folder."""
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
_DAMAGE_CODES: Final = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)
_PERMISSION_CODES: Final = (sqlite3.SQLITE_READONLY, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_PERM)
_SPACE_CODES: Final = (sqlite3.SQLITE_IOERR, sqlite3.SQLITE_CANTOPEN)
"""Codes that SQLite also returns on a full disk."""


class OpenedRecords(NamedTuple):
    """A connection. `copied_files` identifies the files of a copy, and is empty for the file itself."""

    connection: sqlite3.Connection
    write_error: SvcError | None = None
    """Why the records cannot be changed, or None if they can."""
    copied_files: str = ""


def open_records(path: Path) -> OpenedRecords:
    """Open the file, and create it if it is missing. Raises InsufficientStorage, InternalError and CommandFailed."""
    try:
        with translate_record_errors(path):
            return OpenedRecords(_open_for_writing(path))
    except (InsufficientStorage, InternalError) as error:
        if not path.is_file():
            raise
        write_error = error.strip_traceback()
    connection = _open_for_reading(path)
    return OpenedRecords(connection, write_error) if connection is not None else _copy_records(path, write_error)


def _open_for_writing(path: Path) -> sqlite3.Connection:
    """Open the database. SQLite returns SQLITE_BUSY at once while another process creates the file, so retry."""
    deadline = time.monotonic() + RECORDS_BUSY_TIMEOUT_SECONDS
    while True:
        db = sqlite3.connect(path, timeout=RECORDS_BUSY_TIMEOUT_SECONDS, isolation_level=None, check_same_thread=False)
        try:
            db.execute("PRAGMA journal_mode = WAL")
            db.execute("PRAGMA synchronous = FULL")
            db.executescript(_SCHEMA)
            return db
        except sqlite3.Error as error:
            db.close()
            if "locked" not in str(error) or time.monotonic() > deadline:
                raise
            time.sleep(0.02)


def _open_for_reading(path: Path) -> sqlite3.Connection | None:
    """Open the database read-only. This works if its `-shm` file exists, as while another process uses it."""
    db: sqlite3.Connection | None = None
    try:
        db = sqlite3.connect(
            f"file:{quote(str(path))}?mode=ro",
            uri=True,
            timeout=RECORDS_BUSY_TIMEOUT_SECONDS,
            isolation_level=None,
            check_same_thread=False,
        )
        db.execute("SELECT name FROM state LIMIT 1").fetchall()
    except sqlite3.Error:
        if db is not None:
            db.close()
        return None
    return db


def _copy_records(path: Path, write_error: SvcError) -> OpenedRecords:
    """Return the records as a copy in memory. Raises `write_error` if they cannot be read either."""
    for attempt in range(MAX_COPY_ATTEMPTS):
        files = identify_files(path)
        connection = _load_copy(path)
        if connection is not None and identify_files(path) == files:
            return OpenedRecords(connection, write_error, files)
        if connection is not None:
            connection.close()
        time.sleep(0.01 * attempt)
    raise write_error


def identify_files(path: Path) -> str:
    """Return a text that changes with each write to the database or its `-wal` file."""
    parts = []
    for file in _database_files(path):
        try:
            status = file.stat()
        except OSError:
            parts.append("-")
        else:
            parts.append(f"{status.st_ino}:{status.st_mtime_ns}:{status.st_size}")
    return " ".join(parts)


def _database_files(path: Path) -> tuple[Path, Path]:
    return path, path.with_name(f"{path.name}-wal")


def _load_copy(path: Path) -> sqlite3.Connection | None:
    """Copy the files to a folder in memory, and load them from there. Returns None if that fails."""
    for folder in MEMORY_FOLDERS:
        with (
            contextlib.suppress(OSError, sqlite3.Error),
            tempfile.TemporaryDirectory(prefix="svc-records-", dir=folder) as temporary,
        ):
            copy, *_ = copies = _database_files(Path(temporary) / path.name)
            for source, target in zip(_database_files(path), copies, strict=True):
                if source.exists():
                    shutil.copyfile(source, target)
            with contextlib.closing(sqlite3.connect(copy, isolation_level=None)) as db:
                return _load_into_memory(db)
    return None


def _load_into_memory(db: sqlite3.Connection) -> sqlite3.Connection:
    """Load the database. Raises sqlite3.Error if it was copied during a write, or is not complete."""
    memory = sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False)
    try:
        db.backup(memory)
        memory.execute("SELECT name FROM state LIMIT 1").fetchall()
        if memory.execute("PRAGMA quick_check(1)").fetchone() != ("ok",):
            raise sqlite3.DatabaseError("the copy is not consistent")
    except sqlite3.Error:
        memory.close()
        raise
    return memory


@contextlib.contextmanager
def translate_record_errors(path: Path) -> Iterator[None]:
    """Raise errors of SQLite as InsufficientStorage, CommandFailed (damaged) or InternalError, with the next step."""
    try:
        yield
    except sqlite3.ProgrammingError:  # a defect of the program, such as a closed connection
        raise
    except sqlite3.Error as error:
        raise _describe_error(error, path) from error


def _describe_error(error: sqlite3.Error, path: Path) -> SvcError:
    """Return the error. Clients do not see its reason, which has the path."""
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF
    if code in _DAMAGE_CODES:
        return CommandFailed(
            f"{path} cannot be read ({error}). Move it away: the entries of index.json are imported again, "
            "and other bundles are found by: svc registry verify --repair"
        )
    problem: SvcError
    if code == sqlite3.SQLITE_FULL or (code in _SPACE_CODES and is_disk_full(path.parent)):
        problem = InsufficientStorage("The registry's disk is full: free some space.")
    elif code in _PERMISSION_CODES:
        problem = InternalError(
            "The registry's records cannot be written: check the owner and the permissions of its folder."
        )
    else:
        problem = InternalError("The registry's records cannot be used: check its disk.")
    problem.reason = f"{path}: {error}"
    return problem
