"""Takes journals into the database, in batches, in a thread: this process's own, and those whose writers have died.

    every PAUSE s:  lines in memory -> own journal, from the last look's end on -> journals that nobody holds

The thread shares a core and the interpreter with the loop, so it works in batches of a few milliseconds, and rests
between them in proportion: answers are late by one batch, never by what has piled up.

An entry that is there already is left alone (by its request id), so taking a journal twice does no harm; that is all
that recovery after a crash needs.
"""

from __future__ import annotations

import fcntl
import logging
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path

import msgspec

from svc.gateway.journal import SUFFIX, Journal
from svc.stores.base import Database, Entry, StoreDown

log = logging.getLogger("svc.ledger")

PAUSE = 0.4
"""Seconds between two looks: an entry can be queried within 2 s."""
SHORT_PAUSE = 0.1
"""After a look that found more than a batch."""
REST = 3.0
"""So many times the CPU time of a batch the thread rests after it; less and less as it falls behind."""
BEHIND = 1.5
"""Seconds behind, at which it does not rest any more."""
PATIENCE = 1.0
"""After the start: so long the price list is waited for, when a model is offered whose price is not known without."""
PRUNE_PAUSE = 3600.0
BATCH_BYTES = 256 * 1024
"""Read at once: some 500 entries, one transaction."""
DAY = 86400.0

_decode = msgspec.json.Decoder(Entry).decode

Mend = Callable[[Entry], Entry]
"""A last look at an entry before it is stored (its price may not have been known)."""


class Intake:
    """Owns its database and its thread, from `start` to `close`. Without `journal` only the dead's are taken."""

    def __init__(
        self,
        folder: Path,
        database: Database,
        *,
        journal: Journal | None = None,
        retain_days: float = 0.0,
        mend: Mend | None = None,
        ready: Callable[[], bool] = lambda: True,
    ) -> None:
        self.down = False
        """The database did not take the last batch."""
        self.taken = 0
        self.broken_lines = 0
        self.lag = 0.0
        """Seconds since everything was last taken."""
        self._folder = folder
        self._database = database
        self._journal = journal
        self._retain = retain_days * DAY
        self._mend = mend
        self._ready = ready
        self._path = Path()
        self._offset = 0
        self._migrated = False
        self._much = False
        """There was more than a batch to take."""
        self._prune_at = 0.0
        self._caught_up = time.monotonic()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="ledger", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        """Takes what is left, and ends; waits at most ten seconds. The journal is to be closed before."""
        self._stop.set()
        self._thread.join(timeout=10)

    def _run(self) -> None:
        patience = time.monotonic() + PATIENCE
        while not self._stop.wait(SHORT_PAUSE if self._much else PAUSE):
            if self._ready() or time.monotonic() > patience:
                self._look()
        self._look()
        self._database.close()

    def _look(self) -> None:
        self._much = False
        try:
            self.take_all()
        except StoreDown as error:
            self._failed(error.message)
        except Exception as error:
            log.exception("taking in the journal failed")
            self._failed(str(error))
        self.lag = time.monotonic() - self._caught_up

    def _failed(self, reason: str) -> None:
        if not self.down:
            log.error("the ledger goes on in its journal: %s", reason)
        self.down = True
        if self._journal is not None:
            self._journal.waiting_bytes = _bytes_in(self._folder)

    def take_all(self) -> None:
        """Takes everything that can be taken now. Raises StoreDown."""
        if not self._migrated:
            self._database.migrate()
            self._migrated = True
        if self._journal is not None:
            self._take_kept(self._journal)
            self._take_own(self._journal)
        for path in sorted(self._folder.glob(f"*{SUFFIX}")):
            if self._journal is None or path not in (self._journal.path, self._path):  # let go of just now: `_take_own`
                self._take_dead(path)
                if self._journal is not None:  # new entries do not wait for all that has piled up
                    self._take_own(self._journal)
        if self.down:
            log.error("the database of the ledger answers again")
        self.down = False
        if self._journal is not None:
            self._journal.waiting_bytes = 0
        self._caught_up = time.monotonic()
        self._prune()

    def _take_kept(self, journal: Journal) -> None:
        lines = journal.kept()
        try:
            self._store(lines)
        except BaseException:
            journal.put_back(lines)
            raise

    def _take_own(self, journal: Journal) -> None:
        """The end of the present file, and before it that of the one that was let go of since."""
        path = journal.path
        if path != self._path:
            if self._offset:  # nobody has to find out which of its entries are there already
                self._take(self._path, self._offset, whole=True)
                self._path.unlink(missing_ok=True)
            self._path, self._offset = path, 0
        self._offset = self._take(path, self._offset, whole=False)

    def _take_dead(self, path: Path) -> None:
        try:
            file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:  # another process was quicker
            return
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:  # it is being written, or another process takes it
            os.close(file)
            return
        try:
            self._take(path, 0, whole=True)
            path.unlink(missing_ok=True)
        finally:
            os.close(file)

    def _take(self, path: Path, offset: int, *, whole: bool) -> int:
        """Takes the file's lines from `offset`; the offset after the last whole one."""
        try:
            with path.open("rb") as file:
                while True:
                    file.seek(offset)
                    data = file.read(BATCH_BYTES)
                    end = data.rfind(b"\n") + 1
                    rest = data[end:]
                    if not end:
                        break
                    began = time.thread_time()
                    self._store(data[:end].split(b"\n")[:-1])
                    offset += end
                    if len(data) < BATCH_BYTES:  # all that was there; what has come since is the next look's
                        break
                    self._rest(time.thread_time() - began)
        except FileNotFoundError:
            return offset
        if whole and rest:
            self.broken_lines += 1
            log.warning("the last line of the journal %s is cut off: its writer died in the middle of it", path.name)
        return offset

    def _rest(self, took: float) -> None:
        self._much = True
        behind = time.monotonic() - self._caught_up
        self._stop.wait(took * REST * max(0.0, 1.0 - behind / BEHIND))

    def _store(self, lines: list[bytes]) -> None:
        entries = [entry for line in lines if (entry := self._read(line)) is not None]
        if entries:
            self.taken += self._database.append(entries)

    def _read(self, line: bytes) -> Entry | None:
        try:
            entry = _decode(line)
        except (msgspec.MsgspecError, UnicodeDecodeError):
            self.broken_lines += 1
            log.error("a line of the journal is broken, and left out")
            return None
        return self._mend(entry) if self._mend is not None else entry

    def _prune(self) -> None:
        """Forgets a batch of entries that are too old: with the first look, and after the last of them each hour."""
        due = self._retain and time.monotonic() >= self._prune_at
        if due and not self._database.prune(time.time() - self._retain):
            self._prune_at = time.monotonic() + PRUNE_PAUSE


def take_left_behind(folder: Path, database: Database) -> None:
    """Takes the journals that no running gateway writes. Raises StoreDown."""
    if folder.is_dir():
        Intake(folder, database).take_all()


def _bytes_in(folder: Path) -> int:
    total = 0
    for path in folder.glob(f"*{SUFFIX}"):
        try:
            total += path.stat().st_size
        except FileNotFoundError:
            continue
    return total
