"""Keep `svc restore` away from a registry folder that a process uses.

$SVC_HOME/registry.lock   flock: shared by each process that uses $SVC_HOME/registry, exclusive for `svc restore`

The lock file is beside the folder, because a restore replaces the folder as a whole. The kernel releases the locks of
a process that exits.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from svc.bundles.archive import ArchiveLimits
from svc.errors import CommandFailed
from svc.stores.bundles.folder import FolderStore

RESTORED_FOLDER_NAME: Final = "registry"
"""`svc restore` replaces only a folder of this name in `SVC_HOME`."""
FOLDER_LOCK_NAME: Final = f"{RESTORED_FOLDER_NAME}.lock"


@contextlib.contextmanager
def open_folder(root: Path, limits: ArchiveLimits | None = None) -> Iterator[FolderStore]:
    """Open a folder of bundles, and keep `svc restore` away meanwhile. Raises CommandFailed during a restore."""
    with hold_folder_use(root), FolderStore(root, limits) as store:
        yield store


@contextlib.contextmanager
def hold_folder_use(root: Path) -> Iterator[None]:
    """Mark the folder as in use by this process. Raises CommandFailed while `svc restore` replaces it."""
    with contextlib.ExitStack() as stack:
        for path in _lock_paths(root):
            try:
                path.parent.mkdir(parents=True, exist_ok=True)
                file = os.open(path, os.O_RDONLY | os.O_CREAT | os.O_CLOEXEC, 0o644)
            except OSError:  # a user who cannot write to the parent folder cannot replace the folder either
                continue
            stack.callback(os.close, file)
            try:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                raise CommandFailed(f"svc restore replaces {root} now. Try again when it has finished.") from None
            except OSError:  # a file system without locks
                continue
        yield


@contextlib.contextmanager
def hold_folder_replacement(home: Path) -> Iterator[None]:
    """Keep all users away from the registry folder in `home`. Raises CommandFailed if a process uses the folder."""
    file = os.open(home / FOLDER_LOCK_NAME, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise CommandFailed(
                f"A registry uses {home / RESTORED_FOLDER_NAME}: `svc registry serve`, or another command. "
                "Stop it first, or set SVC_HOME to another folder."
            ) from None
        yield
    finally:
        os.close(file)


def _lock_paths(root: Path) -> list[Path]:
    """Return the lock files of a root. A link and its target can both be a folder that a restore replaces."""
    root = root.expanduser()
    return sorted({path.with_name(FOLDER_LOCK_NAME) for path in _spellings(root) if path.name == RESTORED_FOLDER_NAME})


def _spellings(root: Path) -> tuple[Path, Path]:
    absolute = Path(os.path.abspath(root))
    return absolute.parent.resolve() / absolute.name, absolute.resolve()
