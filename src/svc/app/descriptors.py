"""Raise the limit of open files, and report when it is reached. A stream uses two descriptors."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import resource
from collections.abc import AsyncIterator

MAX_FILE_DESCRIPTORS = 1 << 20
"""Maximum that one process can use. Some systems have no limit."""
CHECK_INTERVAL_SECONDS = 1.0

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


@contextlib.asynccontextmanager
async def report_exhaustion() -> AsyncIterator[None]:
    """Log an error when no descriptor is free. The event loop then closes new connections, and reports nothing."""
    task = asyncio.create_task(_check_repeatedly(), name="descriptors")
    try:
        yield
    finally:
        task.cancel()


async def _check_repeatedly() -> None:
    was_free = True
    while True:
        await asyncio.sleep(CHECK_INTERVAL_SECONDS)
        is_free = _is_descriptor_free()
        if was_free and not is_free:
            limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
            log.error(
                "no file descriptor is free, so new connections are closed without a response. "
                "Raise the hard limit of open files, which is %d",
                limit,
            )
        elif is_free and not was_free:
            log.warning("file descriptors are free again")
        was_free = is_free


def _is_descriptor_free() -> bool:
    try:
        os.close(os.dup(2))
    except OSError:
        return False
    return True
