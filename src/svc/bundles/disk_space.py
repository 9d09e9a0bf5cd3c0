"""Translate disk-full errors of the operating system."""

from __future__ import annotations

import errno
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager

from svc.errors import InsufficientStorage

_DISK_FULL_ERRNOS = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


@contextmanager
def translate_disk_full_errors(message: str = "The registry's disk is full.") -> Iterator[None]:
    """Raise InsufficientStorage for a disk-full, quota or file size error in the context."""
    try:
        yield
    except OSError as error:
        if error.errno in _DISK_FULL_ERRNOS:
            raise InsufficientStorage(message) from error
        raise
    except sqlite3.OperationalError as error:
        if error.sqlite_errorcode == sqlite3.SQLITE_FULL:
            raise InsufficientStorage(message) from error
        raise
