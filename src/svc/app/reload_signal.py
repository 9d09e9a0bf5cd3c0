"""Handle SIGHUP: reload the configuration, or stop when the controlling terminal was closed.

A closed terminal sends SIGHUP too. The terminal can then no longer be opened, and the process stops.
"""

from __future__ import annotations

import asyncio
import errno
import os
import signal
from collections.abc import Callable
from types import FrameType
from typing import Self

from svc.app.stop_signals import SignalHandler

TTY_PATH = "/dev/tty"
RESOURCE_EXHAUSTED_ERRNOS = frozenset((errno.EMFILE, errno.ENFILE, errno.ENOMEM))


class ControllingTerminal:
    """The controlling terminal at the start of the process, if any."""

    def __init__(self) -> None:
        is_sighup_ignored = (
            signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
        )  # started by nohup: the process must outlive the terminal
        self._was_attached = not is_sighup_ignored and _can_open_tty()

    def is_hung_up(self) -> bool:
        """Return whether the controlling terminal has been closed."""
        return self._was_attached and not _can_open_tty()


def _can_open_tty() -> bool:
    try:
        os.close(os.open(TTY_PATH, os.O_RDONLY | os.O_NOCTTY | os.O_CLOEXEC))
    except OSError as error:
        return error.errno in RESOURCE_EXHAUSTED_ERRNOS  # says nothing about the terminal
    return True


class ReloadSignal:
    """A context manager that turns SIGHUP into a callback, or into SIGTERM if the terminal was closed.

    `set_callback` delivers a signal that came earlier.
    """

    def __init__(self) -> None:
        self._terminal = ControllingTerminal()
        self._is_reload_requested = False
        self._previous: SignalHandler = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._on_reload: Callable[[], object] | None = None

    def __enter__(self) -> Self:
        self._previous = signal.signal(signal.SIGHUP, self._on_signal)
        return self

    def __exit__(self, *_: object) -> None:
        signal.signal(signal.SIGHUP, self._previous)

    def set_callback(self, on_reload: Callable[[], object]) -> None:
        """Call `on_reload` in the running event loop for each SIGHUP."""
        self._loop, self._on_reload = asyncio.get_running_loop(), on_reload
        if self._is_reload_requested:
            on_reload()

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if self._terminal.is_hung_up():
            os.kill(os.getpid(), signal.SIGTERM)
        elif self._loop is None or self._on_reload is None:
            self._is_reload_requested = True
        elif not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._on_reload)
