"""The journal: one line per completed request, appended before the last byte of the response is sent.

    <folder>/<time>-<pid>-<random>.journal     one file per process, locked by its writer (flock)
      open ── JOURNAL_ROTATE_BYTES ──> a new file; unlocked when the database has all summarized lines
      unlocked, or its writer died (the kernel releases the lock) ──> any process ingests and deletes it

File names are unique over machines: a shared database stores by name how many bytes of each file it has.

Appended lines survive the death of the process, because the kernel has them. A loss of power can lose the last
seconds. `ingest` reads journals and writes to the database. This module prepares that: it summarizes lines in segments
while it writes them. `ingest` parses lines without a summary.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import logging
import os
import secrets
import threading
import time
from collections import deque
from pathlib import Path
from typing import Final

from svc.gateway.accounting.record import RequestRecord
from svc.stores.database.segment_summary import SegmentSummary

log = logging.getLogger("svc.ledger")

JOURNAL_ROTATE_BYTES: Final = 4 * 1024 * 1024
SEGMENT_BYTES: Final = 512 * 1024
"""The size of a segment, which is summarized and ingested in one transaction: about 900 lines."""
MAX_SEGMENT_SUMMARIES: Final = 96
"""The maximum number of summaries while the database is unavailable. They use up to 65 MB, if each line has another
key."""
MAX_BUFFERED_LINES: Final = 20_000
"""The maximum number of lines in memory while the disk is not writable."""
JOURNAL_SUFFIX: Final = ".journal"
DISK_FULL_ERRNOS: Final = frozenset((errno.ENOSPC, errno.EDQUOT, errno.EFBIG))
_END_OF_LINE: Final = b"}\n"
"""The end of a record's line. `encode_record` leaves it out, because the access log has one more field."""
_os_write: Final = os.write  # a global, because the hot path saves the attribute lookup


class _OpenJournalFile:
    """An open file with a lock. It is closed when its journal and its summaries no longer refer to it."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def __del__(self) -> None:
        os.close(self._descriptor)


class Journal:
    """The journal of one process. Only the event loop appends. The ingester's thread takes lines and summaries."""

    def __init__(self, folder: Path, *, max_waiting_bytes: int, summarizes: bool = True) -> None:
        """`summarizes`: lines are summarized as they are written. Otherwise the ingester parses all of them."""
        self.path = Path()
        """The current file."""
        self.lost_lines = 0
        """Lines that were lost because disk and memory were full."""
        self.waiting_bytes = 0
        """Bytes of all journals in the folder that are not in the database. The ingester updates it."""
        self._folder = folder
        self.max_waiting_bytes = max_waiting_bytes
        self.summaries: deque[SegmentSummary] = deque(maxlen=MAX_SEGMENT_SUMMARIES)
        """Summaries of sealed segments, in order. The ingester removes them."""
        self._summary: SegmentSummary | None = None
        """The summary of the current segment. None before its first line."""
        self._summarizes = summarizes
        self._descriptor = -1
        self._file_handle: _OpenJournalFile | None = None
        self._size = 0
        self._rotate_at = JOURNAL_ROTATE_BYTES
        self._buffered_lines: deque[bytes] = deque()
        self._buffer_lock = threading.Lock()
        self.is_full = False
        """Whether the disk or the configured part of it is full. If so, lines are kept in memory."""
        self.full_reason = ""
        """The reason of `is_full`, for messages."""
        self._full_logged = False
        """Whether the current failure has been logged."""
        self._is_closed = False

    def start_new_file(self) -> None:
        """Create a file, and write to it from now on. Raises OSError."""
        self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        file = -1
        while file < 0:
            path = self._folder / f"{time.time_ns():020d}-{os.getpid()}-{secrets.token_hex(4)}{JOURNAL_SUFFIX}"
            file = _create_locked_file(path)
        self.seal_segment()
        self._descriptor, self._file_handle, self._size, self.path = file, _OpenJournalFile(file), 0, path
        self._rotate_at = JOURNAL_ROTATE_BYTES

    def append(self, line: bytes) -> None:
        """Append a line, including its newline, without a summary: the ingester parses it.

        Never raises: if a write fails, memory keeps the line.
        """
        if self.is_full:
            self._buffer_line(line)
            return
        written = self._write(line)
        if written != len(line):
            self._handle_failed_write([line], written, written)
            return
        self.seal_segment()
        self._size += written
        if self._size >= self._rotate_at:
            self._rotate()

    def append_records(self, records: list[RequestRecord]) -> None:
        """Append the lines of encoded records, in one write. Never raises: memory keeps what cannot be written."""
        lines = [record.line + _END_OF_LINE for record in records]
        if self.is_full:
            for line in lines:
                self._buffer_line(line)
            return
        data = lines[0] if len(lines) == 1 else b"".join(lines)
        written = self._write(data)
        line_count = len(lines) if written == len(data) else data[:written].count(b"\n")
        complete_bytes = 0
        for record, line in zip(records[:line_count], lines, strict=False):
            size = len(line)
            if self._summarizes:
                self._add_to_summary(record, size)
            self._size += size
            complete_bytes += size
        if line_count < len(lines):
            self._handle_failed_write(lines[line_count:], written, written - complete_bytes)
        elif self._size >= self._rotate_at:
            self._rotate()

    def _add_to_summary(self, record: RequestRecord, size: int) -> None:
        summary = self._summary
        if summary is None:
            summary = self._summary = SegmentSummary(self.path.name, self._size, self._file_handle)
        usage, usd = record.bill.usage, record.bill.cost_usd
        is_error = record.status == "error" or record.status == "cut"
        summary.add_line(
            size, record.key, record.model, record.provider, record.time, record.request_id, usage, usd, is_error
        )
        if summary.end - summary.start >= SEGMENT_BYTES:
            self.seal_segment()

    def seal_segment(self) -> None:
        """Hand the current segment to the ingester."""
        if self._summary is not None:
            self.summaries.append(self._summary)
            self._summary = None

    def seal_segment_if_idle(self) -> None:
        """Seal the current segment if no other waits. A small segment costs the ingester as much as a large one."""
        if not self.summaries:
            self.seal_segment()

    @property
    def sealed_until(self) -> int:
        """The offset in the current file up to which no open segment exists. The ingester's thread reads it."""
        # In this order: a segment that starts in between starts at `size` or later.
        size, summary = self._size, self._summary
        return size if summary is None else summary.start

    def _write(self, line: bytes) -> int:
        try:
            return _os_write(self._descriptor, line)
        except OSError as error:
            self.full_reason = _describe_disk_error(error)
            return 0

    def _rotate(self) -> None:
        self._rotate_at = self._size + JOURNAL_ROTATE_BYTES  # the next rotation, if no new file can be created
        if self.waiting_bytes > self.max_waiting_bytes:
            self.is_full = True
            self.full_reason = "more entries wait for the database than [ledger] journal_max allows"
        try:
            self.start_new_file()
        except OSError as error:
            log.warning("a new journal cannot be created: %s", error)

    def _handle_failed_write(self, lines: list[bytes], written: int, incomplete: int) -> None:
        """Keep the lines that were not written. `incomplete` are the bytes of the first of them that were."""
        if self._is_closed:
            self._write_separate_file(lines)
            return
        self.is_full = True
        if written:  # a partial write without an error means that the disk is full
            self.full_reason = "its disk is full"
        if not self._full_logged:
            log.error("the journal in %s cannot be written: %s", self._folder, self.full_reason)
        self._full_logged = True
        if incomplete:
            with contextlib.suppress(OSError):
                os.ftruncate(self._descriptor, os.fstat(self._descriptor).st_size - incomplete)
        for line in lines:
            self._buffer_line(line)

    def _buffer_line(self, line: bytes) -> None:
        with self._buffer_lock:
            if len(self._buffered_lines) >= MAX_BUFFERED_LINES:
                self.lost_lines += 1
            else:
                self._buffered_lines.append(line)

    def take_buffered_lines(self) -> list[bytes]:
        """Remove and return the lines in memory. The ingester's thread calls it."""
        with self._buffer_lock:
            lines = list(self._buffered_lines)
            self._buffered_lines.clear()
        return lines

    def restore_buffered_lines(self, lines: list[bytes]) -> None:
        """Put lines back that the database did not accept. The ingester's thread calls it."""
        with self._buffer_lock:
            self._buffered_lines.extendleft(reversed(lines))
            while len(self._buffered_lines) > MAX_BUFFERED_LINES:
                self._buffered_lines.pop()
                self.lost_lines += 1

    def recover(self) -> None:
        """Try to write to the disk again. The ledger calls it regularly while `is_full`."""
        if self.waiting_bytes > self.max_waiting_bytes:
            return
        lines = self.take_buffered_lines()
        try:
            self.start_new_file()
        except OSError:
            self.restore_buffered_lines(lines)
            return
        self.is_full = False
        for line in lines:
            self.append(line)
        if not self.is_full:
            log.warning("the journal can be written again")
            self._full_logged = False

    def close(self) -> None:
        """Close the file. Any process may ingest it when the database has all summarized lines.

        The ledger accepts no requests at this point. A later line gets a file of its own.
        """
        self.seal_segment()
        self._descriptor, self._file_handle = -1, None
        self._is_closed, self.is_full = True, False

    def write_buffered_lines(self) -> None:
        """Write the lines in memory to a file for the next process. Call it after the end of the ingester."""
        if lines := self.take_buffered_lines():
            self._write_separate_file(lines)

    def _write_separate_file(self, lines: list[bytes]) -> None:
        """Write lines to a new file, and unlock it at once."""
        data = b"".join(lines)
        try:
            self.start_new_file()
            written = _os_write(self._descriptor, data)
        except OSError as error:
            self.full_reason = _describe_disk_error(error)
            written = 0
        if written < len(data):
            complete_lines = data[:written].count(b"\n")
            self.lost_lines += len(lines) - complete_lines
            log.error(
                "the journal in %s lost %d entries at shutdown: %s", self._folder, self.lost_lines, self.full_reason
            )
        self._descriptor, self._file_handle = -1, None


def _describe_disk_error(error: OSError) -> str:
    return "its disk is full" if error.errno in DISK_FULL_ERRNOS else str(error.strerror or error)


def _create_locked_file(path: Path) -> int:
    """Create and lock a file, and return its descriptor. Raises OSError.

    Return -1 if an ingester has deleted the file before the lock, because it looked like that of a dead process.
    """
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    with contextlib.suppress(OSError):
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.fstat(file).st_nlink:
            return file
    os.close(file)
    return -1
