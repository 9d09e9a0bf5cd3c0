"""The folders of this user's state, which the variables SVC_HOME and SVC_REGISTRY_ROOT name."""

from __future__ import annotations

import os
from pathlib import Path

from svc.stores.state_dir import check_is_folder


def find_home() -> Path:
    """Return the state folder, `SVC_HOME`, which may not exist. Raises UsageError if it is not a folder."""
    return check_is_folder(Path(os.environ.get("SVC_HOME") or "~/.svc").expanduser())


def find_registry_root() -> Path:
    """Return the folder of models and bundles, `SVC_REGISTRY_ROOT`."""
    return Path(os.environ.get("SVC_REGISTRY_ROOT") or find_home() / "registry").expanduser()
