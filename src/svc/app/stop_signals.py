"""Turn SIGINT and SIGTERM, and in a worker SIGUSR2, into a stop request, from the start of a server to its end.

The handlers never raise. An exception in an event loop callback or in a finalizer is only logged, and the process
would continue.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Coroutine
from types import FrameType
from typing import Any, Self

RETIRE_SIGNAL = signal.SIGUSR2
"""A supervisor sends it to a worker that has a successor. Live sessions may go on, until the worker gets SIGTERM."""
STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM)
SignalHandler = Callable[[int, FrameType | None], Any] | int | signal.Handlers | None


def restore_default_sigterm() -> None:
    """Let SIGTERM end the process until `StopSignals` handles it. An aborted start leaves nothing to clean up.

    A handler that raises is not an alternative. CPython's compiler drops an exception from a handler during constant
    folding, so a signal during an import would be lost.
    """
    signal.signal(signal.SIGTERM, signal.SIG_DFL)


class StopSignals:
    """A context in which a signal cancels the task of `run`, or calls the callback of the running server.

    `is_worker` adds RETIRE_SIGNAL.
    """

    def __init__(self, *, is_worker: bool = False) -> None:
        self.is_stop_requested = False
        self._signals = (*STOP_SIGNALS, RETIRE_SIGNAL) if is_worker else STOP_SIGNALS
        self._previous: dict[int, SignalHandler] = {}
        self._task: asyncio.Task[None] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._on_stop: Callable[[int], None] | None = None

    def __enter__(self) -> Self:
        self._previous = {number: signal.signal(number, self._on_signal) for number in self._signals}
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._previous.items():
            # A second SIGTERM must not end a process that has served to its end, and is closing its log.
            is_ending = number != signal.SIGINT and self.is_stop_requested
            signal.signal(number, signal.SIG_IGN if is_ending else handler)

    async def run(self, main: Coroutine[Any, Any, None]) -> None:
        """Await `main`. Returns early if a signal arrives before `main` has called `set_callback`."""
        self._loop = asyncio.get_running_loop()
        self._task = self._loop.create_task(main, name="server")
        if self.is_stop_requested:  # the signal arrived before the loop started
            self._task.cancel()
        try:
            await self._task
        except asyncio.CancelledError:
            if not self.is_stop_requested:
                raise

    def set_callback(self, on_stop: Callable[[int], None]) -> None:
        """Pass each signal to `on_stop`. A signal that has already arrived is passed immediately."""
        self._on_stop = on_stop
        if self.is_stop_requested:
            on_stop(signal.SIGTERM)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        is_first, self.is_stop_requested = not self.is_stop_requested, True
        if self._loop is not None and not self._loop.is_closed():  # closed: the process is ending already
            self._loop.call_soon_threadsafe(self._stop, number, is_first)

    def _stop(self, number: int, is_first: bool) -> None:
        if self._on_stop is not None:
            self._on_stop(number)
        elif is_first and self._task is not None:  # only once: do not cancel the task's cleanup
            self._task.cancel()
