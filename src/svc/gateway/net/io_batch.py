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

    __slots__ = ("_loop", "_requests", "_responses", "_writers", "is_handling")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._responses: list[tuple[BatchedReader, bytes]] = []
        self._requests: list[tuple[BatchedReader, bytes]] = []
        self._writers: list[BatchedWriter] = []
        self.is_handling = False
        """Whether a batch is being handled, so that writes may wait for its end."""

    def add_response(self, reader: BatchedReader, data: bytes) -> None:
        """Add a read from a provider. Nothing else may be read from the connection before `handle`."""
        self._responses.append((reader, data))
        self._schedule()

    def add_request(self, reader: BatchedReader, data: bytes) -> None:
        """Add a read from a client. They are handled after those from providers, which free connections."""
        self._requests.append((reader, data))
        self._schedule()

    def _schedule(self) -> None:
        count = len(self._responses) + len(self._requests)
        if count >= MAX_READS_PER_BATCH:
            self.handle()
        elif count == 1:
            self._loop.call_soon(self.handle)

    def add_writer(self, writer: BatchedWriter) -> None:
        """Flush the writer at the end of the batch."""
        self._writers.append(writer)

    def handle(self) -> None:
        """Handle all reads now, and send what they wrote."""
        if self.is_handling or not (self._responses or self._requests):
            return
        responses, self._responses = self._responses, []
        requests, self._requests = self._requests, []
        self.is_handling = True
        try:
            for reader, data in responses:
                _handle_read(reader, data)
            for reader, data in requests:
                _handle_read(reader, data)
        finally:
            self.is_handling = False
            writers, self._writers = self._writers, []
            for writer in writers:
                writer.flush()


def _handle_read(reader: BatchedReader, data: bytes) -> None:
    try:
        reader.handle_read(data)
    except Exception:  # an internal error must not affect the other connections
        log.exception("error while handling a read")
        reader.abort()
