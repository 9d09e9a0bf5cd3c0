"""Errors of the operating system about disks: full, read-only, or another one."""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Iterator
from pathlib import Path

from svc.errors import InsufficientStorage, InternalError

MIN_FREE_DISK_BYTES = 64 * 1024
"""A disk with less free space counts as full: the WAL and shared-memory files of SQLite need more."""
_DISK_FULL_ERRNOS = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


@contextlib.contextmanager
def translate_disk_full_errors(message: str = "The registry's disk is full.") -> Iterator[None]:
    """Raise InsufficientStorage for a disk-full, quota or file size error in the context."""
    try:
        yield
    except OSError as error:
        if error.errno in _DISK_FULL_ERRNOS:
            raise InsufficientStorage(message) from error
        raise


@contextlib.contextmanager
def translate_write_errors() -> Iterator[None]:
    """Raise InsufficientStorage for a full disk, and InternalError for a registry folder that cannot be written."""
    try:
        with translate_disk_full_errors():
            yield
    except OSError as error:
        if not is_unwritable(error):
            raise
        problem = InternalError("The registry's folder cannot be written: check its owner and its permissions.")
        problem.reason = f"{error.filename}: {error.strerror}" if error.filename else str(error.strerror)
        raise problem from error


@contextlib.contextmanager
def add_path_to_errors(path: Path) -> Iterator[None]:
    """Set the path of an OSError in the context that has none. The error of a write to a full disk has none."""
    try:
        yield
    except OSError as error:
        if error.filename is None:
            error.filename = str(path)
        raise


def is_disk_full(folder: Path) -> bool:
    """Return whether the disk of the folder has less space than SQLite needs, which then reports an I/O error."""
    with contextlib.suppress(OSError):
        disk = os.statvfs(folder)
        return disk.f_blocks > 0 and disk.f_bavail * disk.f_frsize < MIN_FREE_DISK_BYTES
    return False


def is_unwritable(error: OSError) -> bool:
    """Return whether the disk is full, or this process may not change the file or folder."""
    return error.errno in (*_DISK_FULL_ERRNOS, errno.EACCES, errno.EPERM, errno.EROFS)


def move_on_disk(source: Path, target: Path) -> None:
    """Rename a file or folder of a registry. Raises InternalError if `target` is on another disk."""
    try:
        os.rename(source, target)
    except OSError as error:
        if error.errno != errno.EXDEV:
            raise
        problem = InternalError(
            "The bundle's folder is a link to another disk than the registry's. Move the whole registry to that disk, "
            "and set SVC_REGISTRY_ROOT."
        )
        problem.reason = str(target)
        raise problem from error
