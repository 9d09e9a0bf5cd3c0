"""Lock files between processes with flock: the kernel releases the locks of a process that exits."""

from __future__ import annotations

import fcntl
import hashlib
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from svc.errors import CommandFailed

MAX_MKDIR_ATTEMPTS = 100


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


def striped_lock_path(folder: Path, key: str) -> Path:
    """Return one of 256 lock files, selected by the key."""
    return folder / f"{hashlib.sha256(key.encode()).hexdigest()[:2]}.lock"


def fsync_dir(folder: Path) -> None:
    """Sync a folder, so that its entries survive a power failure."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def make_durable_dirs(root: Path, target: Path) -> None:
    """Create the folders from `root` to `target` durably. Raises FileNotFoundError."""
    for attempt in range(1, MAX_MKDIR_ATTEMPTS + 1):
        try:
            _make_missing_dirs(root, target)
            return
        except FileNotFoundError:  # `gc` removed an empty folder concurrently
            if attempt == MAX_MKDIR_ATTEMPTS:
                raise


def _make_missing_dirs(root: Path, target: Path) -> None:
    missing = []
    folder = target
    while folder != root and not folder.is_dir():
        missing.append(folder)
        folder = folder.parent
    for folder in reversed(missing):
        folder.mkdir(exist_ok=True)
        fsync_dir(folder.parent)
