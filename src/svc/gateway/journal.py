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

from svc.gateway.record import Record
from svc.stores.tally import Tally

log = logging.getLogger("svc.ledger")

ROTATE_BYTES: Final = 4 * 1024 * 1024
STRETCH_BYTES: Final = 512 * 1024
"""Summed up together, and taken at once: some 900 lines, one transaction."""
MAX_TALLIES: Final = 96
"""Kept while the database takes nothing: two seconds of a whole core, or 65 MB if each line is another key's."""
MAX_KEPT: Final = 20_000
"""Lines kept in memory while the disk takes none."""
SUFFIX: Final = ".journal"
NO_ROOM: Final = frozenset((errno.ENOSPC, errno.EDQUOT, errno.EFBIG))
_write: Final = os.write  # looked up once: on the hot path


class _Held:
    """An open file, closed and let go of by the last who has this: its journal, or what is summed up of it."""

    def __init__(self, file: int) -> None:
        self._file = file

    def __del__(self) -> None:
        os.close(self._file)


class Journal:
    """Owned by one event loop, which alone appends; a thread takes what is kept and says how much waits on disk."""

    def __init__(self, folder: Path, *, limit: int) -> None:
        self.path = Path()
        """The file that is being written."""
        self.lost = 0
        """Lines for which there was no room anywhere."""
        self.waiting_bytes = 0
        """On disk, of all journals here, not yet in the database; the intake keeps it up to date."""
        self._folder = folder
        self.limit = limit
        self.tallies: deque[Tally] = deque(maxlen=MAX_TALLIES)
        """Of what was written, and can be taken; in order. The intake takes them out."""
        self._tally: Tally | None = None
        self._file = -1
        self._held: _Held | None = None
        self._size = 0
        self._rotate_at = ROTATE_BYTES
        self._kept: deque[bytes] = deque()
        self._guard = threading.Lock()
        self.full = False
        """The disk, or what may be used of it, is full: lines are kept in memory."""
        self.reason = ""
        """Why it is, for messages."""
        self._said = False
        """That it is; once is enough."""
        self._closed = False

    def open(self) -> None:
        """Begins a file; raises OSError."""
        self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        file = -1
        while file < 0:
            path = self._folder / f"{time.time_ns():020d}-{os.getpid()}-{secrets.token_hex(4)}{SUFFIX}"
            file = _claim(path)
        self.seal()
        self._file, self._held, self._size, self.path = file, _Held(file), 0, path
        self._rotate_at = ROTATE_BYTES

    def append(self, line: bytes, record: Record | None = None) -> None:
        """Adds a line, its newline included, that `record` made. Never raises: what the disk does not take is kept in
        memory.
        """
        if self.full:
            self._keep(line)
            return
        written = self._write(line)
        if written != len(line):
            self._fail(written, line)
            return
        if record is None:
            self.seal()
        else:
            self._note(record, written)
        self._size += written
        if self._size >= self._rotate_at:
            self._rotate()

    def _note(self, record: Record, size: int) -> None:
        tally = self._tally
        if tally is None:
            tally = self._tally = Tally(self.path.name, self._size, self._held)
        usage, usd = record.bill.usage, record.bill.usd
        tally.note(size, record.key, record.model, record.provider, record.time, record.request_id, usage, usd)
        if tally.end - tally.start >= STRETCH_BYTES:
            self.seal()

    def seal(self) -> None:
        """What was written since the last time can be taken."""
        if self._tally is not None:
            self.tallies.append(self._tally)
            self._tally = None

    def seal_next(self) -> None:
        """As `seal`, if none waits. Else it grows: small stretches cost the intake what large ones do."""
        if not self.tallies:
            self.seal()

    @property
    def untaken(self) -> int:
        """From the intake's thread: so far into the present file, nothing waits to be summed up."""
        size, tally = self._size, self._tally  # in this order: what is begun in between begins there, or later
        return size if tally is None else tally.start

    def _write(self, line: bytes) -> int:
        try:
            return _write(self._file, line)
        except OSError as error:
            self.reason = _reason(error)
            return 0

    def _rotate(self) -> None:
        self._rotate_at = self._size + ROTATE_BYTES  # if no other can be begun, this one goes on for as long again
        if self.waiting_bytes > self.limit:
            self.full = True
            self.reason = "more entries wait for the database than [ledger] journal_max allows"
        try:
            self.open()
        except OSError as error:
            log.warning("no new journal can be begun: %s", error)

    def _fail(self, written: int, line: bytes) -> None:
        if self._closed:
            self._write_apart([line])
            return
        self.full = True
        if written:  # a part of it went in, and nothing was raised: there was no room for the rest
            self.reason = "its disk is full"
        if not self._said:
            log.error("the journal in %s cannot be written: %s", self._folder, self.reason)
        self._said = True
        if written:  # no half lines
            with contextlib.suppress(OSError):
                os.ftruncate(self._file, os.fstat(self._file).st_size - written)
        self._keep(line)

    def _keep(self, line: bytes) -> None:
        with self._guard:
            if len(self._kept) >= MAX_KEPT:
                self.lost += 1
            else:
                self._kept.append(line)

    def kept(self) -> list[bytes]:
        """From the intake's thread: the lines in memory, which it takes over."""
        with self._guard:
            lines = list(self._kept)
            self._kept.clear()
        return lines

    def put_back(self, lines: list[bytes]) -> None:
        """From the intake's thread: the database did not take them either."""
        with self._guard:
            self._kept.extendleft(reversed(lines))
            while len(self._kept) > MAX_KEPT:
                self._kept.pop()
                self.lost += 1

    def recover(self) -> None:
        """Tries the disk again; called now and then by the loop while `full`."""
        if self.waiting_bytes > self.limit:
            return
        lines = self.kept()
        try:
            self.open()
        except OSError:
            self.put_back(lines)
            return
        self.full = False
        for line in lines:
            self.append(line)
        if not self.full:
            log.warning("the journal is written again")
            self._said = False

    def close(self) -> None:
        """Ends the file; anyone can take what is in it once all that is summed up of it is in.

        The ledger lets no request in by now. A line that still comes gets a file of its own.
        """
        self.seal()
        self._file, self._held = -1, None
        self._closed, self.full = True, False

    def write_kept(self) -> None:
        """After `close`, and once no intake takes them any more: the lines in memory, for who comes next."""
        if lines := self.kept():
            self._write_apart(lines)

    def _write_apart(self, lines: list[bytes]) -> None:
        """Into a file of their own, which is let go of at once."""
        data = b"".join(lines)
        try:
            self.open()
            written = _write(self._file, data)
        except OSError as error:
            self.reason = _reason(error)
            written = 0
        if written < len(data):
            whole = data[:written].count(b"\n")
            self.lost += len(lines) - whole
            log.error("entries lost at the end of the journal in %s: %d: %s", self._folder, self.lost, self.reason)
        self._file, self._held = -1, None


def _reason(error: OSError) -> str:
    return "its disk is full" if error.errno in NO_ROOM else str(error.strerror or error)


def _claim(path: Path) -> int:
    """A new file, locked by us; -1 if an intake has taken it for a dead one's in between. Raises OSError."""
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    with contextlib.suppress(OSError):
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.fstat(file).st_nlink:
            return file
    os.close(file)
    return -1
