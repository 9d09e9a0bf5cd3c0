"""A lock between processes with flock: the kernel releases the locks of a process that exits."""

from __future__ import annotations

import errno
import fcntl
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from svc.errors import CommandFailed

_NO_LOCKS_ERRORS: Final = (errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS)
"""Errors of `flock` on a file system without locks, such as some network file systems."""


@contextmanager
def hold_lock(
    path: Path, *, timeout_seconds: float = 600.0, on_wait: Callable[[], None] | None = None
) -> Iterator[None]:
    """Hold an exclusive lock on the file. `on_wait` is called once if another process holds it.

    Raises CommandFailed after `timeout_seconds`.
    """
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        _acquire(fd, path, timeout_seconds, on_wait)
        yield
    finally:
        os.close(fd)


def _acquire(fd: int, path: Path, timeout_seconds: float, on_wait: Callable[[], None] | None) -> None:
    deadline = time.monotonic() + timeout_seconds
    pause = 0.0005
    while True:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            if on_wait is not None:
                on_wait()
                on_wait = None
            if time.monotonic() > deadline:
                raise CommandFailed(
                    f"Another process has held {path} for {timeout_seconds:g} s. Check whether it hangs."
                ) from None
            time.sleep(pause)
            pause = min(pause * 2, 0.1)


def create_locked(path: Path) -> int:
    """Create and lock a file, and return its descriptor. A cleanup may remove it before it is locked: then retry.

    On a file system without locks, the file is not locked. `remove_abandoned` removes nothing there.
    """
    while True:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.stat(path).st_ino == os.fstat(fd).st_ino:
                return fd
        except (BlockingIOError, FileNotFoundError):  # a cleanup holds the lock, or has removed the file
            pass
        except OSError as error:
            if error.errno in _NO_LOCKS_ERRORS:
                return fd
            os.close(fd)
            raise
        os.close(fd)


def is_abandoned(path: Path) -> bool:
    """Return whether the file exists and no process holds its lock."""
    with _lock_if_free(path) as locked:
        return locked


def remove_abandoned(path: Path) -> bool:
    """Remove the file while holding its lock, so that no process can open it in between."""
    with _lock_if_free(path) as locked:
        if locked:
            try:
                path.unlink(missing_ok=True)
            except OSError:
                return False
        return locked


@contextmanager
def _lock_if_free(path: Path) -> Iterator[bool]:
    """Hold the lock of an existing file, and yield True. Yield False if the file cannot be locked at once."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        yield False
        return
    try:
        yield _lock_now(fd)
    finally:
        os.close(fd)


def _lock_now(fd: int) -> bool:
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True
