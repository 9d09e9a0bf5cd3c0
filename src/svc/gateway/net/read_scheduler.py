"""Bounds the work that connections cause in one turn of the event loop.

libuv reads up to 32 times in a row from a connection that has more to read. A read that filled its
buffer ends the connection's turn. The connection is paused and waits here. Each turn of the loop resumes a few of them.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Final, Protocol

MAX_RESUMED_READERS_PER_TURN: Final = 8
"""Connections that read on in one turn, each as much as its buffer holds: some 20 ms for the smallest chunks."""

MAX_LARGE_READ_BYTES_PER_TURN: Final = 256 * 1024
"""Bytes of large reads, beyond which a read brings LITTLE: many connections may have data for the first time."""
MIN_LARGE_READ_BYTES: Final = 4 * 1024
LIMITED_READ_BYTES: Final = 2 * 1024


class DeferredReader(Protocol):
    """A connection that was paused."""

    def on_turn(self) -> None:
        """Its turn has come. It may be closed by now, or paused for another reason."""


class ReadScheduler:
    """The connections of one event loop that wait to read."""

    __slots__ = ("_large_read_bytes", "_loop", "_queue", "is_budget_spent")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._queue: deque[DeferredReader] = deque()
        self._large_read_bytes = 0
        """Bytes of large reads in this turn."""
        self.is_budget_spent = False
        """Enough was read in this turn: those that have not read yet read little."""

    def record_large_read(self, size: int) -> None:
        """Counts a large read."""
        if not self._large_read_bytes:
            self._loop.call_soon(self._reset_budget)
        self._large_read_bytes += size
        self.is_budget_spent = self._large_read_bytes >= MAX_LARGE_READ_BYTES_PER_TURN

    def _reset_budget(self) -> None:
        self._large_read_bytes = 0
        self.is_budget_spent = False

    def schedule(self, connection: DeferredReader) -> None:
        """Lets it read on in a later turn. It must not wait already."""
        if not self._queue:
            self._loop.call_soon(self._resume_next)
        self._queue.append(connection)

    def _resume_next(self) -> None:
        try:
            for _ in range(min(MAX_RESUMED_READERS_PER_TURN, len(self._queue))):
                self._queue.popleft().on_turn()
        finally:  # also when one fails, or all that wait would wait for good
            if self._queue:
                self._loop.call_soon(self._resume_next)
