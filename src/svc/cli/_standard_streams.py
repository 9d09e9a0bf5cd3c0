"""Prepare the standard streams: open those that the parent process has closed, and accept any text for output."""

from __future__ import annotations

import io
import os
import sys
from typing import Final

OUTPUT_STREAMS: Final = {1: "stdout", 2: "stderr"}
"""The names of the streams by descriptor."""


def open_closed_streams() -> None:
    """Open /dev/null in place of each closed stream, as cron jobs with `>&-` leave them.

    Otherwise `print` fails, and the next file that the process opens gets the descriptor, with all that libraries and
    child processes write to it.
    """
    for descriptor in (0, *OUTPUT_STREAMS):
        if not _is_open(descriptor):
            # Standard input as well for writing: a read fails, since empty input would hide the mistake.
            null = os.open(os.devnull, os.O_WRONLY)
            os.dup2(null, descriptor)  # child processes inherit it
            if null != descriptor:
                os.close(null)
            else:
                os.set_inheritable(descriptor, True)
    for name in OUTPUT_STREAMS.values():
        if getattr(sys, name) is None:  # Python found the descriptor closed at its start
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115 open until the process ends


def accept_any_text() -> None:
    """Let `print` succeed for characters that the encoding of the locale lacks: they become question marks.

    In UTF-8, names of files that are not UTF-8 are written with their own bytes.
    """
    stream = sys.stdout
    if isinstance(stream, io.TextIOWrapper) and stream.errors == "strict":
        is_utf8 = stream.encoding.lower().replace("-", "") == "utf8"
        stream.reconfigure(errors="surrogateescape" if is_utf8 else "replace")


def _is_open(descriptor: int) -> bool:
    try:
        os.fstat(descriptor)
    except OSError:
        return False
    return True
