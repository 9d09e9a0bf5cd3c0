"""Limits the reads of all connections in one turn of the event loop.

libuv reads up to 32 times in a row from one connection. A read that fills its buffer therefore pauses the connection.
Each later turn of the loop resumes a few of the paused connections.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Final, Protocol

MAX_RESUMED_READERS_PER_TURN: Final = 8
"""Paused connections that continue in one turn. Each reads at most one buffer."""

MAX_LARGE_READ_BYTES_PER_TURN: Final = 256 * 1024
"""Bytes of large reads per turn. Beyond them, the other connections read only LIMITED_READ_BYTES each."""
MIN_LARGE_READ_BYTES: Final = 4 * 1024
LIMITED_READ_BYTES: Final = 2 * 1024


class DeferredReader(Protocol):
    """A paused connection."""

    def on_turn(self) -> None:
        """Continue reading. The connection may be closed, or paused for another reason."""


class ReadScheduler:
    """The paused connections of one event loop."""

    __slots__ = ("_large_read_bytes", "_loop", "_queue", "is_budget_spent")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._queue: deque[DeferredReader] = deque()
        self._large_read_bytes = 0
        """Bytes of large reads in this turn of the loop."""
        self.is_budget_spent = False
        """Whether this turn's reads are now limited to LIMITED_READ_BYTES."""

    def record_large_read(self, size: int) -> None:
        """Count a read of MIN_LARGE_READ_BYTES or more."""
        if not self._large_read_bytes:
            self._loop.call_soon(self._reset_budget)
        self._large_read_bytes += size
        self.is_budget_spent = self._large_read_bytes >= MAX_LARGE_READ_BYTES_PER_TURN

    def _reset_budget(self) -> None:
        self._large_read_bytes = 0
        self.is_budget_spent = False

    def schedule(self, connection: DeferredReader) -> None:
        """Call the connection's `on_turn` in a later turn of the loop. The connection must not be queued already."""
        if not self._queue:
            self._loop.call_soon(self._resume_next)
        self._queue.append(connection)

    def _resume_next(self) -> None:
        try:
            for _ in range(min(MAX_RESUMED_READERS_PER_TURN, len(self._queue))):
                self._queue.popleft().on_turn()
        finally:  # after an exception, too: otherwise the queued connections would wait forever
            if self._queue:
                self._loop.call_soon(self._resume_next)
