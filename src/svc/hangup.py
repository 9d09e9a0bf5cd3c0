"""SIGHUP: re-read the configuration, or end with the terminal that the command was started in.

A terminal that is closed sends SIGHUP as well. Then it cannot be opened any more, and the process is told to stop.
"""

from __future__ import annotations

import asyncio
import errno
import os
import signal
from collections.abc import Callable
from types import FrameType
from typing import Self

from svc.stopping import Handler

TERMINAL = "/dev/tty"
EXHAUSTED = frozenset((errno.EMFILE, errno.ENFILE, errno.ENOMEM))


class Terminal:
    """The controlling terminal that the process has at its start, if any."""

    def __init__(self) -> None:
        ignored = signal.getsignal(signal.SIGHUP) is signal.SIG_IGN  # as by nohup: it is to outlive the terminal
        self._had_one = not ignored and _can_open()

    def is_gone(self) -> bool:
        """Whether there was a terminal, and is none any more."""
        return self._had_one and not _can_open()


def _can_open() -> bool:
    try:
        os.close(os.open(TERMINAL, os.O_RDONLY | os.O_NOCTTY | os.O_CLOEXEC))
    except OSError as error:
        return error.errno in EXHAUSTED  # which says nothing about the terminal
    return True


class HangupSignal:
    """While the context is, SIGHUP does not end the process. One that comes before `use` is kept until then."""

    def __init__(self) -> None:
        self._terminal = Terminal()
        self._requested = False
        self._previous: Handler = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._on_reload: Callable[[], object] | None = None

    def __enter__(self) -> Self:
        self._previous = signal.signal(signal.SIGHUP, self._on_signal)
        return self

    def __exit__(self, *_: object) -> None:
        signal.signal(signal.SIGHUP, self._previous)

    def use(self, on_reload: Callable[[], object]) -> None:
        """From now on SIGHUP calls `on_reload` in the running event loop."""
        self._loop, self._on_reload = asyncio.get_running_loop(), on_reload
        if self._requested:
            on_reload()

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if self._terminal.is_gone():
            os.kill(os.getpid(), signal.SIGTERM)
        elif self._loop is None or self._on_reload is None:
            self._requested = True
        elif not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._on_reload)
