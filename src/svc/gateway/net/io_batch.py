"""Handles small reads of several connections together, step by step, and then sends what was written.

    read, read, read ──> handle, handle, handle ──> step, step, step ──> ... ──> send, send, send

A request runs through hundreds of functions, and the kernel through as many for each read and write. One after the
other, they displace each other from the processor's caches. In batches, each finds its code there. A step is a part of
the work whose code fits in these caches.
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


class BatchedWork(Protocol):
    """Work that continues in steps."""

    def run_step(self) -> None:
        """Run the next step. Something else may have ended the work since it was added."""


class BatchedWriter(Protocol):
    """A writer with data that waits for the end of a batch."""

    def flush(self) -> None:
        """Send the waiting data."""


class IoBatch:
    """The reads of one event loop that have not been handled, and the steps and writes of the current batch.

    The loop handles the reads of a turn in the same turn. So `connection_lost` always follows the connection's last
    `handle_read`. The loop may call `eof_received` before the batch is handled, which therefore calls `handle` first.
    It may also read more from the connection, which must not overtake the first read. Nothing else of the loop runs
    between two steps.
    """

    __slots__ = ("_loop", "_requests", "_responses", "_waiting_work", "is_handling", "writers")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._responses: list[tuple[BatchedReader, bytes]] = []
        self._requests: list[tuple[BatchedReader, bytes]] = []
        self._waiting_work: list[BatchedWork] = []
        """The work whose next step has not run."""
        self.writers: list[BatchedWriter] = []
        """Writers with data that waits for the end of the batch."""
        self.is_handling = False
        """Whether a batch is being handled, so that writes may wait for its end."""

    def add(self, reader: BatchedReader, data: bytes, *, is_request: bool) -> None:
        """Add a read. Reads of one connection are handled in order.

        Requests of clients are handled after the responses of providers, which free connections.
        """
        (self._requests if is_request else self._responses).append((reader, data))
        count = len(self._responses) + len(self._requests)
        if count >= MAX_READS_PER_BATCH:
            self.handle()
        elif count == 1:
            self._loop.call_soon(self.handle)

    def schedule_step(self, work: BatchedWork) -> None:
        """Run the next step of some work: after the present step of the batch's other work, or now without a batch."""
        if self.is_handling:
            self._waiting_work.append(work)
        else:
            work.run_step()

    def handle(self) -> None:
        """Handle all reads now, with the steps that follow, and send what they wrote."""
        if self.is_handling or not (self._responses or self._requests):
            return
        reads, self._responses = self._responses, []
        reads += self._requests
        self._requests.clear()
        self.is_handling = True
        try:
            for reader, data in reads:
                try:
                    reader.handle_read(data)
                except Exception:  # an internal error must not affect the other connections
                    log.exception("error while handling a read")
                    self._abort(reader)
            self._run_steps()
        finally:
            self.is_handling = False
            self._flush_writers()

    def _abort(self, reader: BatchedReader) -> None:
        try:
            reader.abort()
        except Exception:  # it must not affect the other connections
            log.exception("error while closing a connection")

    def _run_steps(self) -> None:
        """Run the first step of all work, then the second of all, and so on."""
        while self._waiting_work:
            round_of_work, self._waiting_work = self._waiting_work, []
            for work in round_of_work:
                try:
                    work.run_step()
                except Exception:  # it must not affect the other requests
                    log.exception("error in a step of %r", work)

    def _flush_writers(self) -> None:
        writers, self.writers = self.writers, []
        for writer in writers:
            try:
                writer.flush()
            except Exception:  # it must not affect the other connections
                log.exception("error while sending")
