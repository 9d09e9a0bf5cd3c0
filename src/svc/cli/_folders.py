"""The folders of this user's state, which the variables SVC_HOME and SVC_REGISTRY_ROOT name."""

from __future__ import annotations

import os
from pathlib import Path

from svc.state_folder import find_state_folder
from svc.stores.state_dir import check_is_folder


def find_home() -> Path:
    """Return the state folder, which may not exist. Raises UsageError if it is not a folder, or not known."""
    return check_is_folder(find_state_folder(os.environ))


def find_registry_root() -> Path:
    """Return the folder of models and bundles, `SVC_REGISTRY_ROOT`."""
    return Path(os.environ.get("SVC_REGISTRY_ROOT") or find_home() / "registry").expanduser()
