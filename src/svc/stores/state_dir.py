"""The state folder, `SVC_HOME`. Only its owner has access, since it contains keys, spending and addresses."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

from svc.errors import UsageError


def check_is_folder(home: Path) -> Path:
    """Return the path. Raises UsageError if something that is not a folder exists there."""
    if home.exists() and not home.is_dir():
        raise UsageError(f"SVC_HOME is not a folder: {home}")
    return home


def prepare_state_dir(home: Path) -> None:
    """Create the folder if it is missing, and restrict it and its databases to their owner.

    Raises OSError, and UsageError if it is not a folder or cannot be created.
    The mode of a folder stays unchanged if it has another owner, is sticky (`/tmp`), or is the home directory.
    """
    check_is_folder(home)
    try:
        home.mkdir(parents=True, exist_ok=True, mode=0o700)
    except OSError as error:
        advice = (
            "Free space on the disk, or set SVC_HOME to a folder on another one."
            if error.errno in (errno.ENOSPC, errno.EDQUOT)
            else "Set SVC_HOME to a folder that this user may write to."
        )
        raise UsageError(f"The state folder {home} cannot be created: {error.strerror}. {advice}") from error
    if _may_restrict_mode(home):
        _restrict_mode(home, 0o700)
    for path in home.glob("svc.db*"):
        _restrict_mode(path, 0o600)


def _may_restrict_mode(folder: Path) -> bool:
    is_shared = folder.stat().st_mode & stat.S_ISVTX
    return not is_shared and folder.resolve() != Path(os.environ.get("HOME", "/")).resolve()


def _restrict_mode(path: Path, mode: int) -> None:
    try:
        status = path.stat()
        if status.st_uid == os.geteuid() and stat.S_IMODE(status.st_mode) & ~mode:
            path.chmod(mode)
    except FileNotFoundError:  # SQLite deletes the WAL files when the last connection closes
        return
