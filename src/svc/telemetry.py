"""What an operator reads: log lines, written from a thread so that a slow terminal or disk never stalls the loop."""

from __future__ import annotations

import logging
import queue
import sys
import threading
from typing import BinaryIO

KEY, CODE = "svc.key", "svc.code"
"""Where a request's ASGI scope says, for the access log, whose it is (a `security.Key`), and the code of its error."""
BUFFERED_BYTES = 16 * 1024 * 1024
"""What waits for a slow reader; what comes on top is dropped, and counted."""


class LineWriter:
    """Writes lines in batches from its own thread. `close` writes what is left."""

    def __init__(self, out: BinaryIO) -> None:
        self._out = out
        self._lines: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="log-writer", daemon=True)
        self.dropped = 0
        self._put = 0
        """Bytes so far, counted by those who write; `_written` by the thread, so neither needs a lock."""
        self._written = 0
        self._thread.start()

    def write(self, batch: bytes) -> None:
        """Whole lines, newlines included."""
        if self._put + len(batch) - self._written <= BUFFERED_BYTES:
            self._put += len(batch)
            self._lines.put(batch)
        else:
            self.dropped += batch.count(b"\n")

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
                self.dropped += batch.count(b"\n")
            self._written += len(batch)


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
