"""Raise the limit of open files. A stream uses two descriptors."""

from __future__ import annotations

import logging
import resource

MAX_FILE_DESCRIPTORS = 1 << 20
"""Maximum that one process can use. Some systems have no limit."""

log = logging.getLogger("svc")


def raise_open_file_limit() -> int:
    """Raise the soft limit, often 1024, to the hard limit. Returns the new limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    requested = MAX_FILE_DESCRIPTORS if hard == resource.RLIM_INFINITY else min(hard, MAX_FILE_DESCRIPTORS)
    if soft != resource.RLIM_INFINITY and soft < requested:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (requested, hard))
        except (OSError, ValueError) as error:  # the system's limit is lower
            log.warning("the limit of open files stays at %d: %s", soft, error)
            return soft
        return requested
    return soft
