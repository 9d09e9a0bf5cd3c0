"""What an operator reads: log lines, written from a thread so that a slow terminal or disk never stalls the loop."""

from __future__ import annotations

import logging
import queue
import sys
import threading
from typing import BinaryIO

BUFFERED_LINES = 100_000
"""Lines that wait for a slow reader; further ones are dropped, and counted."""


class LineWriter:
    """Writes lines in batches from its own thread. `close` writes what is left."""

    def __init__(self, out: BinaryIO) -> None:
        self._out = out
        self._lines: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="log-writer", daemon=True)
        self._thread.start()
        self.dropped = 0

    def write(self, batch: bytes) -> None:
        """Whole lines, newlines included."""
        if self._lines.qsize() < BUFFERED_LINES:
            self._lines.put(batch)
        else:
            self.dropped += 1

    def close(self) -> None:
        """Waits at most two seconds for what is left."""
        self._lines.put(None)
        self._thread.join(timeout=2)

    def _run(self) -> None:
        while (batch := self._lines.get()) is not None:
            try:
                self._out.write(batch)
                self._out.flush()
            except OSError:  # nobody reads any more: there is no better place to say so
                self.dropped += 1


class _Handler(logging.Handler):
    def __init__(self, writer: LineWriter) -> None:
        super().__init__()
        self._writer = writer

    def emit(self, record: logging.LogRecord) -> None:
        self._writer.write((self.format(record) + "\n").encode("utf-8", "backslashreplace"))


def configure(level: str = "WARNING") -> LineWriter:
    """Sends every logger's lines to standard error through a LineWriter, which the caller closes."""
    writer = LineWriter(sys.stderr.buffer)
    handler = _Handler(writer)
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    logging.basicConfig(level=level, handlers=[handler], force=True)
    return writer
