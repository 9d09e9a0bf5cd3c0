"""Open the standard streams that the parent process has closed, as cron jobs with `>&-` do."""

from __future__ import annotations

import os
import sys
from typing import Final

STANDARD_STREAMS: Final = (("stdin", "r"), ("stdout", "w"), ("stderr", "w"))
"""Name and mode of the streams of descriptors 0, 1 and 2."""


def open_closed_streams() -> None:
    """Open /dev/null in place of each closed stream.

    Otherwise `print` fails, and the next file that the process opens gets the descriptor, with all that libraries and
    child processes write to it.
    """
    for descriptor, (name, mode) in enumerate(STANDARD_STREAMS):
        if not _is_open(descriptor):
            null = os.open(os.devnull, os.O_RDWR)
            os.dup2(null, descriptor)  # child processes inherit it
            if null != descriptor:
                os.close(null)
            else:
                os.set_inheritable(descriptor, True)
        if getattr(sys, name) is None:  # Python found the descriptor closed at its start
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))  # noqa: SIM115 open until the process ends


def _is_open(descriptor: int) -> bool:
    try:
        os.fstat(descriptor)
    except OSError:
        return False
    return True
