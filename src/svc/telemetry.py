"""Write log lines from a thread, so that a slow terminal or disk never blocks the event loop.

A server writes only JSON lines to standard error: the access log, and log records in this form:
{"level":"warning","time":"2027-01-31T10:00:00.123Z","logger":"svc.gateway","message":"…","exception":"…"}
With the format "text", both are lines for people:
2027-01-31T10:00:00.123Z WARNING svc.gateway … exception="…"
"""

from __future__ import annotations

import json
import logging
import os
import queue
import re
import signal
import sys
import threading
import warnings
from datetime import UTC, datetime
from typing import Any, Final, Literal, TextIO

from svc.line_output import LineOutput, LinesLost, SharedStream

SCOPE_API_KEY, SCOPE_ERROR_CODE, SCOPE_ERROR_MESSAGE = "svc.key", "svc.code", "svc.message"
"""Keys of the ASGI scope for observers: the request's `ApiKey`, and the code and the message of its error."""
MAX_BUFFERED_LOG_BYTES = 16 * 1024 * 1024
"""Maximum bytes that wait for a slow reader. Further lines are dropped and counted."""

LogFormat = Literal["json", "text"]
_CHILD_VARIABLE: Final = "_SVC_LOG"
"""Tells a child process the level and the format, as in `warning,json`."""


class LineWriter:
    """Writes JSON lines in batches from a thread, in `log_format`. `close` writes the remaining lines."""

    def __init__(self, out: LineOutput, log_format: LogFormat = "json") -> None:
        self._out = out
        self._is_text = log_format == "text"
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

    def reopen(self) -> None:
        """Let the thread open a RotatedFile again if it was renamed. A signal handler may call this."""
        self._queue.put(b"")

    def close(self) -> None:
        """Wait up to two seconds for the remaining lines."""
        self._queue.put(None)
        self._thread.join(timeout=2)

    def _run(self) -> None:
        while (batch := self._queue.get()) is not None:
            try:
                self._out.write(_format_as_text(batch) if self._is_text else batch)
                self._out.flush()
            except LinesLost as error:
                self.dropped_lines += error.count
            except OSError:  # such as a full disk, or a closed standard error: there is no place to report it
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


class TextFormatter(JsonFormatter):
    """Formats each record as one line for people."""

    def format(self, record: logging.LogRecord) -> str:
        return _format_text_line(super().format(record))


def _format_as_text(lines: bytes) -> bytes:
    """Return JSON lines as lines for people."""
    text = lines.decode("utf-8", "backslashreplace")
    return "".join([_format_text_line(line) + "\n" for line in text.split("\n")[:-1]]).encode(
        "utf-8", "backslashreplace"
    )


_TEXT_CONTROL_CHARACTERS: Final = re.compile("[\x00-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
_BARE_TEXT_VALUE: Final = re.compile(r'[^\s"=\\]+')
"""A value that needs no quotes."""


def _format_text_line(line: str) -> str:
    """Return `time LEVEL logger message key=value`. A line of the access log has no level, logger and message."""
    try:
        fields = json.loads(line)
    except ValueError:
        return line
    start = [fields.pop(name, default) for name, default in _TEXT_LINE_START]
    time, level, logger, message = [_escape_control_characters(str(value)) for value in start]
    values = [f" {name}={_format_text_value(value)}" for name, value in fields.items() if value is not None]
    return f"{time} {level.upper()} {logger} {message}{''.join(values)}"


_TEXT_LINE_START: Final = (("time", "-"), ("level", "info"), ("logger", "svc.access"), ("message", "response"))


def _format_text_value(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    if not _BARE_TEXT_VALUE.fullmatch(text):
        text = json.dumps(text, ensure_ascii=False)
    return _escape_control_characters(text)


def _escape_control_characters(text: str) -> str:
    return _TEXT_CONTROL_CHARACTERS.sub(lambda found: _TEXT_ESCAPES.get(found[0], f"\\u{ord(found[0]):04x}"), text)


_TEXT_ESCAPES: Final = {"\n": r"\n", "\r": r"\r", "\t": r"\t"}


def _encode_line(line: dict[str, str]) -> str:
    return _UNSAFE_LOG_CHARACTERS.sub(
        lambda found: f"\\u{ord(found[0]):04x}", json.dumps(line, ensure_ascii=False, separators=(",", ":"))
    )


def log_early(message: str, level: str = "warning") -> None:
    """Write one log line immediately, before `configure` is called, in the format of `use_format`."""
    line = _encode_line(_log_fields(datetime.now(UTC).timestamp(), level, "svc", message))
    sys.stderr.write((_format_text_line(line) if _process_log.format == "text" else line) + "\n")
    sys.stderr.flush()


class _LineWriterHandler(logging.Handler):
    def __init__(self, writer: LineWriter) -> None:
        super().__init__()
        self._writer = writer

    def emit(self, record: logging.LogRecord) -> None:
        self._writer.write((self.format(record) + "\n").encode("utf-8", "backslashreplace"))


class _ProcessLog:
    """The level and the format of this process's log, for its child processes."""

    level: str = "warning"
    format: LogFormat = "json"


_process_log: Final = _ProcessLog()


def use_format(level: str, log_format: LogFormat) -> None:
    """Set the format of `log_early`, and the level and format of child processes."""
    _process_log.level, _process_log.format = level, log_format


def child_environment() -> dict[str, str]:
    """Return the variable by which `configure_child` gets the level and the format of this process."""
    return {_CHILD_VARIABLE: f"{_process_log.level},{_process_log.format}"}


def configure(level: str = "warning", log_format: LogFormat = "json") -> LineWriter:
    """Send all log records and warnings to standard error through a LineWriter, which the caller closes."""
    use_format(level, log_format)
    writer = LineWriter(SharedStream(sys.stderr.fileno()), log_format)
    handler = _LineWriterHandler(writer)
    handler.setFormatter(JsonFormatter())
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
    warnings.showwarning = _log_warning
    return writer


def configure_child() -> None:
    """Configure the level and format of the server for its child process, without a thread."""
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)  # it reopens files, and this process has none
    level, _, log_format = os.environ.get(_CHILD_VARIABLE, "").partition(",")
    use_format(level or "warning", "text" if log_format == "text" else "json")
    handler = logging.StreamHandler()
    handler.setFormatter(TextFormatter() if log_format == "text" else JsonFormatter())
    logging.basicConfig(level=_process_log.level.upper(), handlers=[handler], force=True)
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
