"""The journal: one line a finished answer, appended before the answer's last byte leaves. A file for each process.

    <folder>/<time>-<pid>-<random>.journal     held locked (flock) by the process that writes it
      written ── ROTATE_BYTES ──> a new one is begun; let go of when all that is summed up of it is in
      let go of, or its writer died (the kernel frees the lock) ──> taken into the database by anyone, and deleted

No name comes twice, on no machine: by it a database that several share knows how much of each it has.

What was appended survives the death of the process at any moment, since the kernel has it; a loss of power may cost
the last seconds. Nothing here reads a journal, or knows a database: that is `intake`. For it the lines are summed up as
they are written, some hundred at a time; what nobody summed up it reads itself.
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
"""Summed up together, and taken at once: some 900 lines, one transaction."""
MAX_SEGMENT_SUMMARIES: Final = 96
"""Kept while the database takes nothing: two seconds of a whole core, or 65 MB if each line is another key's."""
MAX_BUFFERED_LINES: Final = 20_000
"""Lines kept in memory while the disk takes none."""
JOURNAL_SUFFIX: Final = ".journal"
DISK_FULL_ERRNOS: Final = frozenset((errno.ENOSPC, errno.EDQUOT, errno.EFBIG))
_os_write: Final = os.write  # looked up once: on the hot path


class _OpenJournalFile:
    """An open file, closed and let go of by the last who has this: its journal, or what is summed up of it."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def __del__(self) -> None:
        os.close(self._descriptor)


class Journal:
    """Owned by one event loop, which alone appends; a thread takes what is kept and says how much waits on disk."""

    def __init__(self, folder: Path, *, max_waiting_bytes: int, summarizes: bool = True) -> None:
        """`summarizes`: lines are summed up as they are written; else the ingester reads all of them."""
        self.path = Path()
        """The file that is being written."""
        self.lost_lines = 0
        """Lines for which there was no room anywhere."""
        self.waiting_bytes = 0
        """On disk, of all journals here, not yet in the database; the intake keeps it up to date."""
        self._folder = folder
        self.max_waiting_bytes = max_waiting_bytes
        self.summaries: deque[SegmentSummary] = deque(maxlen=MAX_SEGMENT_SUMMARIES)
        """Of what was written, and can be taken; in order. The intake takes them out."""
        self._summary: SegmentSummary | None = None
        self._summarizes = summarizes
        self._descriptor = -1
        self._file_handle: _OpenJournalFile | None = None
        self._size = 0
        self._rotate_at = JOURNAL_ROTATE_BYTES
        self._buffered_lines: deque[bytes] = deque()
        self._buffer_lock = threading.Lock()
        self.is_full = False
        """The disk, or what may be used of it, is full: lines are kept in memory."""
        self.full_reason = ""
        """Why it is, for messages."""
        self._full_logged = False
        """That it is; once is enough."""
        self._is_closed = False

    def start_new_file(self) -> None:
        """Begins a file; raises OSError."""
        self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        file = -1
        while file < 0:
            path = self._folder / f"{time.time_ns():020d}-{os.getpid()}-{secrets.token_hex(4)}{JOURNAL_SUFFIX}"
            file = _create_locked_file(path)
        self.seal_segment()
        self._descriptor, self._file_handle, self._size, self.path = file, _OpenJournalFile(file), 0, path
        self._rotate_at = JOURNAL_ROTATE_BYTES

    def append(self, line: bytes, record: RequestRecord | None = None) -> None:
        """Adds a line, its newline included, that `record` made. Never raises: what the disk does not take is kept in
        memory.
        """
        if self.is_full:
            self._buffer_line(line)
            return
        written = self._write(line)
        if written != len(line):
            self._handle_failed_write(written, line)
            return
        if record is None or not self._summarizes:
            self.seal_segment()
        else:
            self._add_to_summary(record, written)
        self._size += written
        if self._size >= self._rotate_at:
            self._rotate()

    def _add_to_summary(self, record: RequestRecord, size: int) -> None:
        summary = self._summary
        if summary is None:
            summary = self._summary = SegmentSummary(self.path.name, self._size, self._file_handle)
        usage, usd = record.bill.usage, record.bill.cost_usd
        summary.add_line(size, record.key, record.model, record.provider, record.time, record.request_id, usage, usd)
        if summary.end - summary.start >= SEGMENT_BYTES:
            self.seal_segment()

    def seal_segment(self) -> None:
        """What was written since the last time can be taken."""
        if self._summary is not None:
            self.summaries.append(self._summary)
            self._summary = None

    def seal_segment_if_idle(self) -> None:
        """As `seal`, if none waits. Else it grows: small stretches cost the intake what large ones do."""
        if not self.summaries:
            self.seal_segment()

    @property
    def sealed_until(self) -> int:
        """From the intake's thread: so far into the present file, nothing waits to be summed up."""
        size, summary = self._size, self._summary  # in this order: what is begun in between begins there, or later
        return size if summary is None else summary.start

    def _write(self, line: bytes) -> int:
        try:
            return _os_write(self._descriptor, line)
        except OSError as error:
            self.full_reason = _describe_disk_error(error)
            return 0

    def _rotate(self) -> None:
        self._rotate_at = (
            self._size + JOURNAL_ROTATE_BYTES
        )  # if no other can be begun, this one goes on for as long again
        if self.waiting_bytes > self.max_waiting_bytes:
            self.is_full = True
            self.full_reason = "more entries wait for the database than [ledger] journal_max allows"
        try:
            self.start_new_file()
        except OSError as error:
            log.warning("no new journal can be begun: %s", error)

    def _handle_failed_write(self, written: int, line: bytes) -> None:
        if self._is_closed:
            self._write_separate_file([line])
            return
        self.is_full = True
        if written:  # a part of it went in, and nothing was raised: there was no room for the rest
            self.full_reason = "its disk is full"
        if not self._full_logged:
            log.error("the journal in %s cannot be written: %s", self._folder, self.full_reason)
        self._full_logged = True
        if written:  # no half lines
            with contextlib.suppress(OSError):
                os.ftruncate(self._descriptor, os.fstat(self._descriptor).st_size - written)
        self._buffer_line(line)

    def _buffer_line(self, line: bytes) -> None:
        with self._buffer_lock:
            if len(self._buffered_lines) >= MAX_BUFFERED_LINES:
                self.lost_lines += 1
            else:
                self._buffered_lines.append(line)

    def take_buffered_lines(self) -> list[bytes]:
        """From the intake's thread: the lines in memory, which it takes over."""
        with self._buffer_lock:
            lines = list(self._buffered_lines)
            self._buffered_lines.clear()
        return lines

    def restore_buffered_lines(self, lines: list[bytes]) -> None:
        """From the intake's thread: the database did not take them either."""
        with self._buffer_lock:
            self._buffered_lines.extendleft(reversed(lines))
            while len(self._buffered_lines) > MAX_BUFFERED_LINES:
                self._buffered_lines.pop()
                self.lost_lines += 1

    def recover(self) -> None:
        """Tries the disk again; called now and then by the loop while `full`."""
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
            log.warning("the journal is written again")
            self._full_logged = False

    def close(self) -> None:
        """Ends the file; anyone can take what is in it once all that is summed up of it is in.

        The ledger lets no request in by now. A line that still comes gets a file of its own.
        """
        self.seal_segment()
        self._descriptor, self._file_handle = -1, None
        self._is_closed, self.is_full = True, False

    def write_buffered_lines(self) -> None:
        """After `close`, and once no intake takes them any more: the lines in memory, for who comes next."""
        if lines := self.take_buffered_lines():
            self._write_separate_file(lines)

    def _write_separate_file(self, lines: list[bytes]) -> None:
        """Into a file of their own, which is let go of at once."""
        data = b"".join(lines)
        try:
            self.start_new_file()
            written = _os_write(self._descriptor, data)
        except OSError as error:
            self.full_reason = _describe_disk_error(error)
            written = 0
        if written < len(data):
            whole = data[:written].count(b"\n")
            self.lost_lines += len(lines) - whole
            log.error(
                "entries lost at the end of the journal in %s: %d: %s", self._folder, self.lost_lines, self.full_reason
            )
        self._descriptor, self._file_handle = -1, None


def _describe_disk_error(error: OSError) -> str:
    return "its disk is full" if error.errno in DISK_FULL_ERRNOS else str(error.strerror or error)


def _create_locked_file(path: Path) -> int:
    """A new file, locked by us; -1 if an intake has taken it for a dead one's in between. Raises OSError."""
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    with contextlib.suppress(OSError):
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.fstat(file).st_nlink:
            return file
    os.close(file)
    return -1
