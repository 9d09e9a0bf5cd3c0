"""The state folder of this user, which the variable SVC_HOME names."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from svc.errors import UsageError


def find_state_folder(environ: Mapping[str, str]) -> Path:
    """Return `SVC_HOME`, else `~/.svc`. It may not exist. Raises UsageError if the user has no home folder."""
    try:
        return Path(environ.get("SVC_HOME") or "~/.svc").expanduser()
    except RuntimeError as error:
        raise UsageError("There is no home folder. Set SVC_HOME to a folder that this user may write to.") from error
