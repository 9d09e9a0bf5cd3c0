"""Bounds the work that connections cause in one turn of the event loop.

libuv reads up to 32 times in a row from a connection that has more to read. A read that filled its
buffer ends the connection's turn. The connection is paused and waits here. Each turn of the loop resumes a few of them.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Final, Protocol

READS_PER_TURN: Final = 8
"""Connections that read on in one turn, each as much as its buffer holds: some 20 ms for the smallest chunks."""

BYTES_PER_TURN: Final = 256 * 1024
"""Bytes of large reads, beyond which a read brings LITTLE: many connections may have data for the first time."""
LARGE: Final = 4 * 1024
LITTLE: Final = 2 * 1024


class Waiting(Protocol):
    """A connection that was paused."""

    def read_on(self) -> None:
        """Its turn has come. It may be closed by now, or paused for another reason."""


class Turns:
    """The connections of one event loop that wait to read."""

    __slots__ = ("_loop", "_queue", "_spent", "is_spent")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._queue: deque[Waiting] = deque()
        self._spent = 0
        """Bytes of large reads in this turn."""
        self.is_spent = False
        """Enough was read in this turn: those that have not read yet read little."""

    def spend(self, size: int) -> None:
        """Counts a large read."""
        if not self._spent:
            self._loop.call_soon(self._begin)
        self._spent += size
        self.is_spent = self._spent >= BYTES_PER_TURN

    def _begin(self) -> None:
        self._spent = 0
        self.is_spent = False

    def wait(self, connection: Waiting) -> None:
        """Lets it read on in a later turn. It must not wait already."""
        if not self._queue:
            self._loop.call_soon(self._next)
        self._queue.append(connection)

    def _next(self) -> None:
        try:
            for _ in range(min(READS_PER_TURN, len(self._queue))):
                self._queue.popleft().read_on()
        finally:  # also when one fails, or all that wait would wait for good
            if self._queue:
                self._loop.call_soon(self._next)
