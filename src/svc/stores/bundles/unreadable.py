"""Report a folder of bundles that cannot be read."""

from __future__ import annotations

import functools
import logging
from pathlib import Path

from svc.errors import SvcError

log = logging.getLogger("svc.registry")

MAX_REMEMBERED_WARNINGS = 64


def warn_unreadable(root: Path, error: SvcError | OSError) -> None:
    """Log that the bundles of the folder are not available. Each cause is logged once, since requests repeat it."""
    details = f"{error.message} ({error.reason})" if isinstance(error, SvcError) and error.reason else str(error)
    _log_once(root, details)


@functools.lru_cache(MAX_REMEMBERED_WARNINGS)
def _log_once(root: Path, details: str) -> None:
    log.warning("bundles of %s are not available: %s", root, details)
