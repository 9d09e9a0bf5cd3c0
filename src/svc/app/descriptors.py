"""How many files and sockets this process may have open: all that it is allowed to. A stream takes two."""

from __future__ import annotations

import logging
import resource

MAX_FILE_DESCRIPTORS = 1 << 20
"""Of use to one process; some systems name no limit at all."""

log = logging.getLogger("svc")


def raise_open_file_limit() -> int:
    """Lifts the soft limit, often 1024, up to the hard one, which is the administrator's; gives what holds then."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MAX_FILE_DESCRIPTORS if hard == resource.RLIM_INFINITY else min(hard, MAX_FILE_DESCRIPTORS)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
        except (OSError, ValueError) as error:  # a system whose own limit is lower
            log.warning("no more than %d files can be open at once: %s", soft, error)
            return soft
        return wanted
    return soft
