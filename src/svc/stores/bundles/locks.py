"""Paths of lock files, and folders that survive a power failure."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

MAX_MKDIR_ATTEMPTS = 100


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
