"""Handles small reads of several connections together, and then sends what was written.

    read, read, read ──> handle, handle, handle ──> send, send, send

A request runs through hundreds of functions, and the kernel through as many for each read and write. One after the
other, they displace each other from the processor's caches. In batches, each finds its code there.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Final, Protocol

MAX_READS_PER_BATCH: Final = 32
"""Reads that are handled before their writes are sent. More would delay the first write, and save no more CPU."""

log = logging.getLogger("svc.gateway")


class BatchedReader(Protocol):
    """A connection whose reads are handled in batches."""

    def handle_read(self, data: bytes, /) -> None:
        """Handle received data. The connection may have been closed since."""

    def abort(self) -> None:
        """Close the connection after an internal error in `handle_read`."""


class BatchedWriter(Protocol):
    """A writer with data that waits for the end of a batch."""

    def flush(self) -> None:
        """Send the waiting data."""


class IoBatch:
    """The reads of one event loop that have not been handled, and the writes of the current batch.

    The loop handles the reads of a turn in the same turn, before it reads again. So `connection_lost` always follows
    the connection's last `handle_read`. `eof_received` may precede it, and must call `handle` first.
    """

    __slots__ = ("_loop", "_requests", "_responses", "is_handling", "writers")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._responses: list[tuple[BatchedReader, bytes]] = []
        self._requests: list[tuple[BatchedReader, bytes]] = []
        self.writers: list[BatchedWriter] = []
        """Writers with data that waits for the end of the batch."""
        self.is_handling = False
        """Whether a batch is being handled, so that writes may wait for its end."""

    def add(self, reader: BatchedReader, data: bytes, is_request: bool) -> None:
        """Add a read. Nothing else may be read from the connection before `handle`.

        Requests of clients are handled after the responses of providers, which free connections.
        """
        (self._requests if is_request else self._responses).append((reader, data))
        count = len(self._responses) + len(self._requests)
        if count >= MAX_READS_PER_BATCH:
            self.handle()
        elif count == 1:
            self._loop.call_soon(self.handle)

    def handle(self) -> None:
        """Handle all reads now, and send what they wrote."""
        if self.is_handling or not (self._responses or self._requests):
            return
        reads, self._responses = self._responses, []
        reads += self._requests
        self._requests.clear()
        self.is_handling = True
        for reader, data in reads:
            try:
                reader.handle_read(data)
            except Exception:  # an internal error must not affect the other connections
                log.exception("error while handling a read")
                reader.abort()
        self.is_handling = False
        writers, self.writers = self.writers, []
        for writer in writers:
            writer.flush()
