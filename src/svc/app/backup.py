"""Back up the state folder while gateways run: a consistent copy of the SQLite database and of the journals.

    list journals -> begin a read transaction -> copy the journals -> copy the database of that transaction

The database knows how many bytes of each journal it has. Each entry is therefore in the copy of the database, or behind
that offset in the copy of a journal. An ingester truncates and deletes a journal that it has stored. If that happens in
between, entries can be missing in both copies, and the backup starts again.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import functools
import os
import secrets
import shutil
import sqlite3
import time
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Final
from urllib.parse import quote

import svc
from svc.app.registry_backup import OnBackupWarning, RegistryBackup, list_recipe_files
from svc.bundles.disk_space import is_disk_full, translate_disk_full_errors
from svc.errors import CommandFailed, UsageError
from svc.gateway.accounting.journal import JOURNAL_SUFFIX
from svc.stores import backup_archive
from svc.stores.backup_archive import BackupManifest, SourceFile
from svc.stores.bundles.locks import fsync_dir
from svc.stores.database.migrations import SchemaState, derive_schema_state
from svc.stores.database.sqlite import DATABASE_BUSY_TIMEOUT_SECONDS

OnBackupProgress = Callable[[str, int, int], None]
"""Called with a label, the bytes so far, and in total."""
STATE_FILES: Final = ("api_key", "console_key", "signing.key", "svc.toml")
"""Files of the state folder in a backup, if they exist."""
MAX_SNAPSHOT_ATTEMPTS: Final = 100
SNAPSHOT_PAUSE_SECONDS: Final = 0.05
BACKUP_STEP_PAGES: Final = 2000
"""Pages that SQLite copies between two calls of the progress function, 8 MB."""


def create_backup(
    home: Path,
    database_path: Path,
    target: Path,
    *,
    registry_root: Path | None,
    overwrite: bool,
    on_progress: OnBackupProgress,
    on_warning: OnBackupWarning,
) -> BackupManifest:
    """Write a backup to `target`, which appears only when it is complete. `registry_root` adds all bundles.

    `on_warning` gets a sentence for each bundle and file that is not in the backup.
    Raises CommandFailed, UsageError, OSError, and InsufficientStorage if the disk of `target` is full.
    """
    _check_paths(database_path, target, overwrite)
    disk_full = f"The disk of {target.parent.absolute()} is full, so the backup was not written."
    with translate_disk_full_errors(disk_full), _work_folder(target) as work:
        schema_version, sources = _copy_state(home, database_path, work, on_progress)
        sources += list_recipe_files(home / "recipes", on_warning)
        registry = None
        if registry_root is not None:
            copy_records = functools.partial(_copy_records, registry_root, work, on_progress)
            registry = RegistryBackup(registry_root, copy_records, on_warning)
            sources += registry.sources
        partial = work / "archive"
        with open(os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600), "wb") as archive:
            manifest = backup_archive.write_backup(
                archive,
                sources,
                svc_version=svc.__version__,
                created=datetime.now(UTC).isoformat(timespec="seconds").replace("+00:00", "Z"),
                schema_version=schema_version,
                on_bytes=lambda done, total: on_progress("archive", done, total),
                on_vanished=_ignore_vanished if registry is None else registry.remove_vanished,
            )
            archive.flush()
            os.fsync(archive.fileno())
        _publish(partial, target, overwrite)
    return manifest


def _ignore_vanished(source: SourceFile) -> None:
    """A recipe that the user deletes meanwhile is not missed."""


def _check_paths(database_path: Path, target: Path, overwrite: bool) -> None:
    if not database_path.is_file():
        raise CommandFailed(f"There is no database to back up: {database_path} does not exist.")
    if target.is_dir() or not target.parent.is_dir():
        raise UsageError(f"FILE must be a file in an existing folder: {target}")
    if os.path.lexists(target) and not overwrite:
        raise _already_exists(target)


def _already_exists(target: Path) -> UsageError:
    return UsageError(f"{target} already exists. Use another name, or --force to replace it.")


def _publish(partial: Path, target: Path, overwrite: bool) -> None:
    if overwrite:
        os.replace(partial, target)
    else:
        try:
            os.link(partial, target)  # atomic, and never overwrites an existing file
        except FileExistsError:
            raise _already_exists(target) from None
    fsync_dir(target.parent)


@contextlib.contextmanager
def _work_folder(target: Path) -> Iterator[Path]:
    """Create a folder beside the target, and delete it at the end. Deletes those of killed backups first."""
    prefix, suffix = f".{target.name}.", ".partial"
    for entry in list(os.scandir(target.parent)):
        if entry.name.startswith(prefix) and entry.name.endswith(suffix) and entry.is_dir(follow_symlinks=False):
            _remove_if_unlocked(Path(entry.path))
    work = target.parent / f"{prefix}{secrets.token_hex(4)}{suffix}"
    work.mkdir(mode=0o700)
    lock = os.open(work, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield work
    finally:
        shutil.rmtree(work, ignore_errors=True)
        os.close(lock)


def _remove_if_unlocked(folder: Path) -> None:
    with contextlib.suppress(OSError):  # another backup holds or removes it
        lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(folder)
        finally:
            os.close(lock)


def _copy_state(
    home: Path, database_path: Path, work: Path, on_progress: OnBackupProgress
) -> tuple[int, list[SourceFile]]:
    """Copy the database and the journals. Return the schema version and the files of the backup."""
    with _open_sqlite(database_path) as database:
        schema_version, journals = _begin_snapshot(database, home / "journal", work / "journal")
        _copy_sqlite(database, work / "svc.db", on_progress)
    sources = [SourceFile("svc.db", work / "svc.db")]
    sources += [SourceFile(f"journal/{name}", work / "journal" / name) for name in sorted(journals)]
    sources += [SourceFile(name, home / name) for name in STATE_FILES if (home / name).is_file()]
    return schema_version, sources


def _begin_snapshot(database: sqlite3.Connection, journal_folder: Path, copies: Path) -> tuple[int, Mapping[str, int]]:
    """Begin a read transaction, and copy the journals that belong to it. Return the schema version, and their sizes."""
    for _ in range(MAX_SNAPSHOT_ATTEMPTS):
        listed = _journal_sizes(journal_folder)
        database.execute("BEGIN")
        schema_version, offsets = _read_offsets(database)
        shutil.rmtree(copies, ignore_errors=True)
        copied = _copy_journals(journal_folder, copies)
        if has_all_entries(listed, offsets, copied):
            return schema_version, copied
        database.execute("ROLLBACK")
        time.sleep(SNAPSHOT_PAUSE_SECONDS)
    raise CommandFailed(
        "The journals changed during each attempt to copy them. Try again when the gateway is less busy."
    )


def has_all_entries(listed: Mapping[str, int], offsets: Mapping[str, int], copied: Mapping[str, int]) -> bool:
    """Return whether the copies have every entry that the database lacks.

    `listed` has the sizes of the journals before the read transaction, `offsets` the bytes of each that the database
    has, and `copied` the sizes of the copies.
    """
    for name in listed.keys() | copied.keys():
        offset = offsets.get(name, 0)
        if listed.get(name) == 0 and offset:  # its entries were complete before the transaction
            continue
        if copied.get(name, -1) < max(listed.get(name, 0), offset):
            return False
    return True


def _read_offsets(database: sqlite3.Connection) -> tuple[int, dict[str, int]]:
    tables = {row[0] for row in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
    if "schema_version" not in tables:
        raise CommandFailed("The database is empty, or not a database of svc.")
    version = database.execute("SELECT MAX(version) FROM schema_version").fetchone()[0] or 0
    offsets = database.execute("SELECT name, taken FROM journals") if "journals" in tables else ()
    return int(version), {str(name): int(taken) for name, taken in offsets}


def _journal_sizes(folder: Path) -> dict[str, int]:
    sizes = {}
    with contextlib.suppress(FileNotFoundError):
        for name in os.listdir(folder):
            if name.endswith(JOURNAL_SUFFIX):
                with contextlib.suppress(FileNotFoundError):
                    sizes[name] = (folder / name).stat().st_size
    return sizes


def _copy_journals(folder: Path, copies: Path) -> dict[str, int]:
    copies.mkdir(mode=0o700)
    copied = {}
    for name in _journal_sizes(folder):
        with contextlib.suppress(FileNotFoundError):  # ingested just now: `has_all_entries` decides
            shutil.copyfile(folder / name, copies / name)
            copied[name] = (copies / name).stat().st_size
    return copied


@contextlib.contextmanager
def _open_sqlite(path: Path) -> Iterator[sqlite3.Connection]:
    """Open an existing database. Raises CommandFailed, also for errors of the block."""
    connection = None
    try:
        uri = f"file:{quote(str(path.absolute()))}?mode=rw"
        connection = sqlite3.connect(uri, uri=True, timeout=DATABASE_BUSY_TIMEOUT_SECONDS, isolation_level=None)
        yield connection
    except sqlite3.Error as error:
        raise CommandFailed(f"The database {path} cannot be backed up: {error}.") from error
    finally:
        if connection is not None:
            connection.close()


def _copy_sqlite(source: sqlite3.Connection, path: Path, on_progress: OnBackupProgress) -> None:
    """Copy the state that the open transaction of `source` sees, and check the copy.

    Other writers do not restart the copy, because the read transaction of `source` does not see their changes.
    """
    page_bytes = source.execute("PRAGMA page_size").fetchone()[0]
    os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
    target = sqlite3.connect(path, isolation_level=None)
    try:
        target.execute("PRAGMA synchronous = OFF")  # the archive is synced
        source.backup(
            target,
            pages=BACKUP_STEP_PAGES,
            progress=lambda _, remaining, total: on_progress(
                "database", (total - remaining) * page_bytes, total * page_bytes
            ),
        )
        target.execute("PRAGMA journal_mode = DELETE")
    except sqlite3.OperationalError as error:
        if error.sqlite_errorcode & 0xFF == sqlite3.SQLITE_FULL or is_disk_full(path.parent):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path)) from error
        raise
    finally:
        target.close()
    check_sqlite(path)


def check_sqlite(path: Path) -> None:
    """Check a SQLite file that no process writes. Raises CommandFailed if it is damaged."""
    try:
        with contextlib.closing(sqlite3.connect(f"file:{quote(str(path.absolute()))}?immutable=1", uri=True)) as copy:
            result = copy.execute("PRAGMA integrity_check(1)").fetchone()[0]
    except sqlite3.Error as error:
        result = error
    if result != "ok":
        raise CommandFailed(f"The copy of the database is damaged ({result}). Check the database: svc doctor")


def read_schema_state(path: Path) -> SchemaState:
    """Return the schema versions of a SQLite file that no process writes. Raises CommandFailed."""
    try:
        with contextlib.closing(
            sqlite3.connect(f"file:{quote(str(path.absolute()))}?immutable=1", uri=True)
        ) as database:
            recorded, _ = _read_offsets(database)
            has_changes = database.execute("SELECT 1 FROM sqlite_master WHERE name = 'schema_changes'").fetchone()
            changes = database.execute("SELECT version, oldest FROM schema_changes") if has_changes else ()
            return derive_schema_state(recorded, {int(version): int(oldest) for version, oldest in changes})
    except (sqlite3.Error, TypeError, ValueError) as error:
        raise CommandFailed(f"The database of the backup is not one of svc: {error}.") from error


def _copy_records(root: Path, work: Path, on_progress: OnBackupProgress) -> Path | None:
    """Copy the records of a registry folder. Returns None if it has none."""
    records, target = root / ".registry" / "records.sqlite", work / "records.sqlite"
    if not records.is_file():
        return None
    target.unlink(missing_ok=True)
    with _open_sqlite(records) as database:
        database.execute("BEGIN")
        database.execute("SELECT name FROM sqlite_master").fetchall()
        _copy_sqlite(database, target, on_progress)
    return target
