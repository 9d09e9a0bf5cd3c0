"""Restore a backup into the state folder, after checking every file of it.

    extract to a folder inside SVC_HOME -> check -> move the old state to before-restore-… -> move the new state in

The caller holds the locks of the folder, so that no gateway starts in between.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import msgspec

from svc.app.backup import OnBackupProgress, check_sqlite, read_schema_state
from svc.bundles.disk_space import translate_disk_full_errors
from svc.errors import CommandFailed, UsageError
from svc.stores import backup_archive
from svc.stores.backup_archive import BackupManifest
from svc.stores.bundles.locks import fsync_dir
from svc.stores.database.migrations import latest_schema_version

OLD_STATE_PREFIX: Final = "before-restore-"
REPLACED_NAMES: Final = ("svc.db-wal", "svc.db-shm", "journal")
"""Files that belong to the old database. They are moved away even if the backup does not have them."""


class RestoreResult(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a restore."""

    manifest: BackupManifest
    old_state: str | None
    """The folder with the old state, or None if there was none."""


def restore_backup(archive: Path, home: Path, *, overwrite: bool, on_progress: OnBackupProgress) -> RestoreResult:
    """Replace the state in `home` by that of the backup. Any failure leaves the old state in place.

    Raises CommandFailed for an archive that is not a complete backup, UsageError if there is a state and `overwrite`
    is false, InsufficientStorage if the disk of `home` is full, and OSError.
    """
    if not archive.is_file():
        raise UsageError(f"There is no backup {archive}.")
    disk_full = f"The disk of {home.absolute()} is full, so nothing was restored."
    with translate_disk_full_errors(disk_full), _staging_folder(home) as staging:
        with archive.open("rb") as file:
            manifest = backup_archive.extract_backup(
                file, staging, lambda done, total: on_progress("restore", done, total)
            )
        _check_database(staging / "svc.db", manifest)
        restored = sorted(os.listdir(staging))
        replaced = [name for name in {*restored, *REPLACED_NAMES} if _has_content(home / name)]
        if replaced and not overwrite:
            raise UsageError(
                f"{home} already contains {', '.join(sorted(replaced))}. "
                f"With --force, they are moved to {OLD_STATE_PREFIX}…, and replaced."
            )
        for parent, _, _ in os.walk(staging):
            fsync_dir(Path(parent))
        old_state = _replace_state(home, staging, restored)
    return RestoreResult(manifest=manifest, old_state=None if old_state is None else str(old_state))


def _check_database(path: Path, manifest: BackupManifest) -> None:
    check_sqlite(path)
    state, known = read_schema_state(path), latest_schema_version()
    if state.recorded != manifest.schema_version:
        raise CommandFailed("The backup is damaged: its database has another schema version than its manifest.")
    if state.oldest > known:
        raise CommandFailed(
            f"The backup is of a newer version of svc ({manifest.svc_version[:40]}, database schema {state.applied}) "
            f"than this program, which knows schema {known}. It needs a program that knows schema {state.oldest}: "
            f"restore it with that version of svc or a later one."
        )


def _has_content(path: Path) -> bool:
    return any(path.iterdir()) if path.is_dir() and not path.is_symlink() else os.path.lexists(path)


def _replace_state(home: Path, staging: Path, restored: list[str]) -> Path | None:
    """Move the old state away and the new one in. If anything fails or interrupts, move everything back."""
    now = datetime.now(UTC).strftime("%Y%m%dT%H%M%SZ")
    old_state = home / f"{OLD_STATE_PREFIX}{now}-{secrets.token_hex(2)}"
    old_names = sorted(name for name in {*restored, *REPLACED_NAMES} if os.path.lexists(home / name))
    moves = [(home / name, old_state / name) for name in old_names]
    has_old_state = bool(moves)
    # The database comes last: after a crash in between, `svc restore` finds no complete state and can run again.
    moves += [(staging / name, home / name) for name in sorted(restored, key=lambda name: name == "svc.db")]
    done: list[tuple[Path, Path]] = []
    try:
        if has_old_state:
            old_state.mkdir(mode=0o700)
        for source, target in moves:
            done.append((source, target))
            os.rename(source, target)
        fsync_dir(home)
    except BaseException:
        for source, target in reversed(done):
            if not os.path.lexists(source):
                os.rename(target, source)
        with contextlib.suppress(OSError):
            old_state.rmdir()
        raise
    return old_state if has_old_state else None


@contextlib.contextmanager
def _staging_folder(home: Path) -> Iterator[Path]:
    """Create a folder for the new state, and delete it at the end. Deletes those of killed processes first.

    The locks of the state folder allow one restore at a time.
    """
    prefix = ".restore-"
    for path in home.glob(f"{prefix}*"):
        shutil.rmtree(path, ignore_errors=True)
    staging = home / f"{prefix}{secrets.token_hex(4)}"
    staging.mkdir(mode=0o700)
    try:
        yield staging
    finally:
        shutil.rmtree(staging, ignore_errors=True)
