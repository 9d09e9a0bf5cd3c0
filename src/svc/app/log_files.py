"""Reopen log files on SIGUSR1, so that logrotate can rename them and signal the process."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterator
from types import FrameType

from svc.telemetry import LineWriter

_file_writers: list[LineWriter] = []
"""The writers of log files. Standard error is not among them."""


@contextlib.contextmanager
def reopen_on_signal() -> Iterator[None]:
    """Handle SIGUSR1. Afterwards the signal is ignored: it must not end a process that is about to exit."""
    previous = signal.signal(signal.SIGUSR1, _on_signal)
    try:
        yield
    finally:
        is_default = previous in (signal.SIG_DFL, signal.SIG_IGN, None)
        signal.signal(signal.SIGUSR1, previous if is_default else signal.SIG_IGN)


@contextlib.contextmanager
def reopened(writer: LineWriter) -> Iterator[None]:
    """Let SIGUSR1 reopen the file of this writer."""
    _file_writers.append(writer)
    try:
        yield
    finally:
        _file_writers.remove(writer)


def _on_signal(number: int, frame: FrameType | None) -> None:
    for writer in _file_writers:
        writer.reopen()
