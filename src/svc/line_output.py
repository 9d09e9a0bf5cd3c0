"""Outputs for complete lines that several processes share: standard error, and a file that may be rotated."""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import select
import stat
from collections.abc import Iterator
from io import FileIO
from pathlib import Path
from typing import Protocol

log = logging.getLogger("svc")


class LineOutput(Protocol):
    """Takes complete lines."""

    def write(self, data: bytes, /) -> object:
        """Write complete lines. Raises LinesLost if the last ones are lost, and OSError if all are."""

    def flush(self) -> object:
        """Pass the lines on to the operating system."""


class LinesLost(OSError):
    """The last `count` lines of a write are lost."""

    def __init__(self, count: int) -> None:
        super().__init__(f"{count} lines are lost")
        self.count = count


class SharedStream:
    """A descriptor that other processes write to as well, such as standard error of several workers."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._unfinished = b""
        """The rest of a line whose beginning is written. It is written before all others."""

    def write(self, data: bytes, /) -> None:
        """Write complete lines, so that lines of other processes do not come between their parts. Raises LinesLost."""
        if stat.S_ISREG(os.fstat(self._descriptor).st_mode):
            self._write_to_file(data)
        else:
            write_in_atomic_chunks(self._descriptor, data)

    def flush(self) -> None:
        """Do nothing, because writes are not buffered."""

    def _write_to_file(self, data: bytes) -> None:
        if self._unfinished:
            self._unfinished = self._unfinished[os.write(self._descriptor, self._unfinished) :]
            if self._unfinished:
                raise LinesLost(data.count(b"\n"))
        written = os.write(self._descriptor, data)
        if written < len(data):  # the disk is full
            end = data.find(b"\n", written - 1) + 1 if written else 0
            self._unfinished = data[written:end]
            raise LinesLost(data.count(b"\n", end))


class RotatedFile:
    """A file that another program may rename or remove. The next write then opens a new file with the same name.

    Several processes may append to it. It ends with a complete line, also if its disk is full.
    """

    def __init__(self, path: Path) -> None:
        """Open the file, so that a wrong path is an error at the start. Raises OSError."""
        self._path = path
        self._file = self._open()
        self._is_failing = False

    def write(self, data: bytes, /) -> None:
        """Append complete lines, and log the first failure and its end. Raises LinesLost and OSError."""
        try:
            self._write_lines(data)
        except OSError as error:
            if not self._is_failing:
                self._is_failing = True
                reason = "its disk is full" if isinstance(error, LinesLost) else error.strerror or str(error)
                log.error("%s cannot be written, so its lines are dropped: %s", self._path, reason)
            raise
        if self._is_failing:
            self._is_failing = False
            log.warning("%s can be written again", self._path)

    def _write_lines(self, data: bytes) -> None:
        if not self._is_current():
            self._file.close()
            self._file = self._open()
        descriptor = self._file.fileno()
        if stat.S_ISREG(os.fstat(descriptor).st_mode):
            with _locked(descriptor):
                _append(descriptor, data)
        else:
            write_in_atomic_chunks(descriptor, data)

    def flush(self) -> None:
        """Do nothing, because writes are not buffered."""

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def _open(self) -> FileIO:
        return FileIO(self._path, "a")

    def _is_current(self) -> bool:
        if self._file.closed:  # the last attempt to open it failed
            return False
        opened = os.fstat(self._file.fileno())
        try:
            found = self._path.stat()
        except FileNotFoundError:
            return False
        return (opened.st_dev, opened.st_ino) == (found.st_dev, found.st_ino)


def write_in_atomic_chunks(descriptor: int, data: bytes) -> None:
    """Write complete lines to a pipe, a socket or a terminal. Raises OSError.

    A pipe mixes the writes of several processes if they are longer than PIPE_BUF, and a socket if they are longer than
    its buffers. So lines are grouped up to that length, and only a longer line can be mixed with others.
    """
    start = 0
    while start < len(data):
        end = data.rfind(b"\n", start, start + select.PIPE_BUF) + 1
        if not end:
            end = data.find(b"\n", start) + 1 or len(data)
        _write_all(descriptor, data[start:end])
        start = end


def _write_all(descriptor: int, data: bytes) -> None:
    while data:
        try:
            data = data[os.write(descriptor, data) :]
        except BlockingIOError:  # another process made the shared pipe or terminal non-blocking
            waiting = select.poll()
            waiting.register(descriptor, select.POLLOUT)
            waiting.poll()


@contextlib.contextmanager
def _locked(descriptor: int) -> Iterator[None]:
    """Exclude the other processes that have opened the file. Some file systems have no locks."""
    with contextlib.suppress(OSError):
        fcntl.flock(descriptor, fcntl.LOCK_EX)
    try:
        yield
    finally:
        with contextlib.suppress(OSError):
            fcntl.flock(descriptor, fcntl.LOCK_UN)


def _append(descriptor: int, data: bytes) -> None:
    """Append complete lines to a file. If only a part fits, remove the part of the last line. Raises LinesLost."""
    written = os.write(descriptor, data)
    if written < len(data):
        complete = data.rfind(b"\n", 0, written) + 1
        size = os.fstat(descriptor).st_size - (written - complete)
        if size >= 0:  # otherwise another program has truncated the file
            os.ftruncate(descriptor, size)
        raise LinesLost(data.count(b"\n", complete))
