"""The state folder, `SVC_HOME`: its owner's alone, since keys, what was spent, and addresses lie in it."""

from __future__ import annotations

import os
import stat
from pathlib import Path


def prepare_state_dir(home: Path) -> None:
    """Makes the folder when it is missing; closes it, and a database in it, to everybody else. Raises OSError.

    A folder that is not ours, is shared by its nature (`/tmp`), or is a person's own home is left as it is.
    """
    home.mkdir(parents=True, exist_ok=True, mode=0o700)
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
    except FileNotFoundError:  # SQLite removes its side files when the last one closes
        return
