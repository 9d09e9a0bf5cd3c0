"""Write log lines from a thread, so that a slow terminal or disk never blocks the event loop.

A server writes only JSON lines to standard error: the access log, and log records in this form:
{"level":"warning","time":"2027-01-31T10:00:00.123Z","logger":"svc.gateway","message":"…","exception":"…"}
"""

from __future__ import annotations

import json
import logging
import queue
import re
import sys
import threading
import warnings
from datetime import UTC, datetime
from typing import BinaryIO, Final, TextIO

SCOPE_API_KEY, SCOPE_ERROR_CODE = "svc.key", "svc.code"
"""Keys of the ASGI scope for the access log: the request's `ApiKey`, and its error code."""
MAX_BUFFERED_LOG_BYTES = 16 * 1024 * 1024
"""Maximum bytes that wait for a slow reader. Further lines are dropped and counted."""


class LineWriter:
    """Writes lines in batches from a thread. `close` writes the remaining lines."""

    def __init__(self, out: BinaryIO) -> None:
        self._out = out
        self._queue: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="log-writer", daemon=True)
        self.dropped_lines = 0
        self._queued_bytes = 0
        """Total bytes, updated by callers only. The thread alone updates `_written_bytes`, so neither needs a lock."""
        self._written_bytes = 0
        self._thread.start()

    def write(self, lines: bytes) -> None:
        """Queue complete lines, each with its newline."""
        if self._queued_bytes + len(lines) - self._written_bytes <= MAX_BUFFERED_LOG_BYTES:
            self._queued_bytes += len(lines)
            self._queue.put(lines)
        else:
            self.dropped_lines += lines.count(b"\n")

    def close(self) -> None:
        """Wait up to two seconds for the remaining lines."""
        self._queue.put(None)
        self._thread.join(timeout=2)

    def _run(self) -> None:
        while (batch := self._queue.get()) is not None:
            try:
                self._out.write(batch)
                self._out.flush()
            except OSError:  # standard error is closed, so there is no place to report it
                self.dropped_lines += batch.count(b"\n")
            self._written_bytes += len(batch)


_UNSAFE_LOG_CHARACTERS: Final = re.compile("[\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
"""Characters that end lines or change text direction in some viewers. JSON escapes the other control characters."""


class JsonFormatter(logging.Formatter):
    """Formats each record as one JSON object."""

    def format(self, record: logging.LogRecord) -> str:
        line = _log_fields(record.created, record.levelname, record.name, record.getMessage())
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return _encode_line(line)


def _log_fields(created: float, level: str, logger: str, message: str) -> dict[str, str]:
    timestamp = datetime.fromtimestamp(created, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    return {"level": level.lower(), "time": timestamp, "logger": logger, "message": message}


def _encode_line(line: dict[str, str]) -> str:
    return _UNSAFE_LOG_CHARACTERS.sub(
        lambda found: f"\\u{ord(found[0]):04x}", json.dumps(line, ensure_ascii=False, separators=(",", ":"))
    )


def log_early(message: str, level: str = "warning") -> None:
    """Write one log line immediately, before `configure` is called."""
    sys.stderr.write(_encode_line(_log_fields(datetime.now(UTC).timestamp(), level, "svc", message)) + "\n")
    sys.stderr.flush()


class _LineWriterHandler(logging.Handler):
    def __init__(self, writer: LineWriter) -> None:
        super().__init__()
        self._writer = writer

    def emit(self, record: logging.LogRecord) -> None:
        self._writer.write((self.format(record) + "\n").encode("utf-8", "backslashreplace"))


def configure(level: str = "WARNING") -> LineWriter:
    """Send all log records and warnings to standard error through a LineWriter, which the caller closes."""
    writer = LineWriter(sys.stderr.buffer)
    handler = _LineWriterHandler(writer)
    handler.setFormatter(JsonFormatter())
    logging.basicConfig(level=level, handlers=[handler], force=True)
    warnings.showwarning = _log_warning
    return writer


def configure_child(level: str = "WARNING") -> None:
    """Configure the same format for a child process of a server, without a thread."""
    handler = logging.StreamHandler()
    handler.setFormatter(JsonFormatter())
    logging.basicConfig(level=level, handlers=[handler], force=True)
    warnings.showwarning = _log_warning


def _log_warning(
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,
    file: TextIO | None = None,
    line: str | None = None,
) -> None:
    logging.getLogger("svc.warnings").warning("%s: %s", category.__name__, message)
