"""Takes journals into the database, stretch by stretch, in a thread: this process's own, and those of the dead.

    every PAUSE s:  lines in memory -> own journal, from the last look's end on -> journals that nobody holds

The thread shares a core and the interpreter with the loop, so it works for a millisecond or two at a time, and rests
in between in proportion: answers are late by one stretch, never by what has piled up. What the loop has summed up
itself is not decoded: that would be most of the work.

Each entry gets in once, since the database keeps how many bytes of each journal it has, in one transaction with the
entries: who takes a journal asks for that before reading it, and adds only if nobody else has in between. That is all
that recovery needs, after a crash or a commit that was not heard of. A journal that is in is emptied, forgotten by the
database and deleted, in this order; whoever comes between two of these finds nothing to take.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path

from svc.gateway.journal import STRETCH_BYTES, SUFFIX, Journal
from svc.stores import lines
from svc.stores.base import Database, StoreDown, StoreUnsure
from svc.stores.batches import Stretch
from svc.stores.tally import Tally

log = logging.getLogger("svc.ledger")

PAUSE = 0.4
"""Seconds between two looks."""
LONG_PAUSE = 0.7
"""After a look that found something, and was QUICK: each costs a millisecond, however little it finds. An entry comes
after one look at most into what the next one takes, so it waits for two pauses and three looks: less than 2 s.
"""
QUICK = 0.1
"""Seconds of a look that a database beside us needs; behind a slower one PAUSE makes up for it."""
SHORT_PAUSE = 0.1
"""After a look that found more than a stretch."""
REST_DECODED = 6.0
"""So many times the CPU time of a stretch that it has decoded the thread rests; less and less as it falls behind."""
REST_SUMMED = 20.0
"""The same for a stretch that was summed up already, unless SPREAD says less."""
SPREAD = 0.5
"""Seconds, at most, over which what is summed up is taken: evenly, since some stretches one soon after the other would
take the core from a loop that needs nearly all of it.
"""
BEHIND = 1.5
"""Seconds behind, at which it does not rest any more."""
LATE = 10.0
"""Seconds behind, from which on it is said."""
PATIENCE = 1.0
"""After the start: so long the price list is waited for, when a model is offered whose price is not known without."""
PRUNE_PAUSE = 3600.0
DAY = 86400.0


class Intake:
    """Owns its database and its thread, from `start` to `close`. Without `journal` only the dead's are taken."""

    def __init__(
        self,
        folder: Path,
        database: Database,
        *,
        journal: Journal | None = None,
        retain_days: float = 0.0,
        mend: lines.Mend | None = None,
        ready: Callable[[], bool] = lambda: True,
    ) -> None:
        self.down = False
        """The database did not take the last stretch."""
        self.taken = 0
        self.broken_lines = 0
        self._folder = folder
        self._database = database
        self._journal = journal
        self._retain = retain_days * DAY
        self._mend = mend
        self._ready = ready
        self._path = Path()
        """Of this process's journal, as it was last taken from."""
        self._offset: int | None = None
        """So much of it is in; None when only the database knows."""
        self._unsure: list[bytes] = []
        """Lines that were in memory, and may be in the database. No journal may get them."""
        self.left_alone: frozenset[str] = frozenset()
        """Journals in the folder that cannot be opened: another user's. Their entries may be in nobody's ledger."""
        self._shut: set[str] = set()
        """Of them, what this look has found."""
        self._migrated = False
        self._much = False
        """There was more than a stretch to take."""
        self._prune_at = 0.0
        self._caught_up = self._ended = time.monotonic()
        """When the last look began, and when it ended, that took everything."""
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="ledger", daemon=True)

    @property
    def lag(self) -> float:
        """Seconds since everything was last taken."""
        return time.monotonic() - self._caught_up

    @property
    def late(self) -> bool:
        """New entries are not in the ledger, since the database does not answer or there is too much to take."""
        return self.lag > LATE

    def start(self) -> None:
        self._thread.start()

    def retain(self, days: float) -> None:
        """Keeps entries for so long from the next time on that old ones are forgotten."""
        self._retain = days * DAY

    def close(self) -> None:
        """Takes what is left, and ends; waits at most ten seconds. The journal is to be closed before."""
        self._stop.set()
        self._thread.join(timeout=10)

    def _run(self) -> None:
        patience = time.monotonic() + PATIENCE
        pause = PAUSE
        while not self._stop.wait(pause):
            taken, began = self.taken, time.monotonic()
            if self._ready() or began > patience:
                self._look()
            pause = self.pause(self.taken - taken, time.monotonic() - began)
        self._look()
        self._database.close()

    def pause(self, found: int, took: float) -> float:
        """Seconds to the next look, after one that found so much and took so long."""
        if self._much:
            return SHORT_PAUSE
        return LONG_PAUSE if found and took < QUICK else PAUSE

    def _look(self) -> None:
        self._much = False
        try:
            self.take_all()
        except StoreDown as error:
            self._failed(error.message)
        except Exception as error:
            log.exception("taking in the journal failed")
            self._failed(str(error))

    def _failed(self, reason: str) -> None:
        if not self.down:
            log.error("the ledger goes on in its journal: %s", reason)
        self.down = True
        if self._journal is not None:
            with contextlib.suppress(OSError):  # such as no descriptor left: this thread goes on, and tries again
                self._journal.waiting_bytes = _bytes_in(self._folder)

    def take_all(self) -> None:
        """Takes everything that can be taken now. Raises StoreDown."""
        began = time.monotonic()
        if not self._migrated:
            self._database.migrate()
            self._migrated = True
        if self._journal is not None:
            self._take_kept(self._journal)
            self._take_own(self._journal)
        self._shut = set()
        for name in _journals(self._folder):
            if self._journal is None or name != self._journal.path.name:
                self._take_dead(self._folder / name)
                if self._journal is not None:  # new entries do not wait for all that has piled up
                    self._take_own(self._journal)
        self.left_alone = frozenset(self._shut)
        if self.down:
            log.error("the database of the ledger answers again")
        self.down = False
        if self._journal is not None:
            self._journal.waiting_bytes = 0
        self._caught_up, self._ended = began, time.monotonic()
        self._prune()

    def _take_kept(self, journal: Journal) -> None:
        if self._unsure:
            self._append(b"".join(self._unsure))
            self._unsure = []
        kept = journal.kept()
        if not kept:
            return
        try:
            self._append(b"".join(kept))
        except StoreUnsure:
            self._unsure = kept
            raise
        except BaseException:
            journal.put_back(kept)
            raise

    def _take_own(self, journal: Journal) -> None:
        """What is new in its files: what is summed up by now, then what nobody sums up."""
        count = len(journal.tallies)
        for _ in range(count):
            tally = journal.tallies.popleft()
            began = time.thread_time()
            try:
                self._take_at(self._folder / tally.name, tally.start, tally)
            except StoreDown:  # for the next look; if there is no room any more, one of the newest is forgotten
                journal.tallies.appendleft(tally)
                raise
            if journal.tallies:
                self._much = True
                self._stop.wait(min((time.thread_time() - began) * REST_SUMMED, SPREAD / count))
        path, until = journal.path, journal.untaken
        if not journal.tallies:  # looked at last: else what was summed up just now would be decoded
            self._take_at(path, until, None)

    def _take_at(self, path: Path, until: int | None, tally: Tally | None) -> None:
        """What is new in a file of our own, up to there, then what is summed up; the file before it is ended first."""
        if path != self._path:
            before, self._path, self._offset = self._path, path, None
            if before.name:
                self._take_dead(before)
        try:
            file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:  # it was let go of just now, and another process was quick
            return
        try:
            offset, self._offset = self._offset, None
            offset = self._take(file, path.name, self._database.taken(path.name) if offset is None else offset, until)
            if tally is not None and offset == tally.start:
                offset = self._take_tallied(file, tally)
            self._offset = offset
        finally:
            os.close(file)

    def _take_tallied(self, file: int, tally: Tally) -> int | None:
        """Where its lines end; None if others have taken them."""
        data = os.pread(file, tally.end - tally.start, tally.start)
        return tally.start + len(data) if self._store(tally.name, tally.start, data, tally) else None

    def _take_dead(self, path: Path) -> None:
        try:
            file = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        except FileNotFoundError:  # another process was quicker
            self._database.forget(path.name)
            return
        except (PermissionError, IsADirectoryError) as error:  # what is behind it does not wait for it
            self._leave_alone(path.name, error)
            return
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:  # it is being written, or another process takes it
            os.close(file)
            return
        try:
            if self._take_whole(file, path.name):
                os.ftruncate(file, 0)
                os.fsync(file)  # else a loss of power could bring back what the database has forgotten
                self._database.forget(path.name)
                path.unlink(missing_ok=True)
        finally:
            os.close(file)

    def _leave_alone(self, name: str, error: OSError) -> None:
        self._shut.add(name)
        if name not in self.left_alone:
            log.error("the journal %s is left alone, only its owner can take it: %s", name, error.strerror)

    def _take_whole(self, file: int, name: str) -> bool:
        """False if a process that has died was still heard by the database: the next look tells how far it got."""
        size = os.fstat(file).st_size
        if not size:  # all of it was taken; to ask for its place now would be to note it again
            return True
        end = self._take(file, name, self._database.taken(name) if _by_place(name) else 0)
        if end is not None and end < size:
            self.broken_lines += 1
            log.warning("the last line of the journal %s is cut off: its writer died in the middle of it", name)
        return end is not None

    def _take(self, file: int, name: str, offset: int, until: int | None = None) -> int | None:
        """Takes whole lines from `offset` to `until`, or all. Where they end; None if others have taken them."""
        while until is None or offset < until:
            data = os.pread(file, STRETCH_BYTES if until is None else min(STRETCH_BYTES, until - offset), offset)
            end = data.rfind(b"\n") + 1
            if len(data) == STRETCH_BYTES:
                end = end or STRETCH_BYTES  # no line of ours is as long
            if not end:
                return offset
            began = time.thread_time()
            if not self._store(name, offset, data[:end]):
                return None
            offset += end
            if len(data) < STRETCH_BYTES:  # all that was there; what has come since is the next look's
                return offset
            self._rest(time.thread_time() - began)
        return offset

    def _rest(self, took: float) -> None:
        self._much = True
        behind = time.monotonic() - self._ended
        self._stop.wait(took * REST_DECODED * max(0.0, 1.0 - behind / BEHIND))

    def _store(self, name: str, start: int, data: bytes, tally: Tally | None = None) -> bool:
        if not _by_place(name):
            self._append(data)
            return True
        found = self._read(data, tally)
        took = self._database.take(name, start, start + len(data), found)
        if took:
            self.taken += found.count
            self._count_broken(found.broken)
        return took

    def _read(self, data: bytes, tally: Tally | None) -> Stretch:
        if tally is not None:
            with contextlib.suppress(ValueError):
                return lines.read_tallied(data, tally)
        return lines.read(data, self._mend)

    def _append(self, data: bytes) -> None:
        entries, broken = lines.read_entries(data, self._mend)
        self.taken += self._database.append(entries)
        self._count_broken(broken)

    def _count_broken(self, count: int) -> None:
        self.broken_lines += count
        if count:
            log.error("broken lines of the journal, left out: %d", count)

    def _prune(self) -> None:
        """Forgets some entries that are too old: with the first look, and an hour after the last of them or a fault."""
        if self._retain and time.monotonic() >= self._prune_at:
            self._prune_at = time.monotonic() + PRUNE_PAUSE
            if self._database.prune(time.time() - self._retain):
                self._prune_at = 0.0


def _by_place(name: str) -> bool:
    """False for a journal of a version that did not keep how much of it was taken: each entry is looked for."""
    return name.count("-") > 1


def take_left_behind(folder: Path, database: Database) -> None:
    """Takes the journals that no running gateway writes. Raises StoreDown."""
    if folder.is_dir():
        Intake(folder, database).take_all()


def wait_for_orphans(folder: Path, seconds: float) -> None:
    """Until no process writes a journal there: workers whose supervisor was killed go on for a moment. Not for ever."""
    deadline = time.monotonic() + seconds
    while any(_is_held(folder / name) for name in _journals(folder)) and time.monotonic() < deadline:
        time.sleep(0.02)


def _is_held(path: Path) -> bool:
    try:
        file = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except OSError:  # it is in by now, or is somebody else's
        return False
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return True
    finally:
        os.close(file)
    return False


def _journals(folder: Path) -> list[str]:
    """Their names, the oldest first. By `os`: a glob takes a tenth of what a look does."""
    try:
        return sorted(name for name in os.listdir(folder) if name.endswith(SUFFIX))
    except FileNotFoundError:
        return []


def _bytes_in(folder: Path) -> int:
    total = 0
    for name in _journals(folder):
        try:
            total += (folder / name).stat().st_size
        except FileNotFoundError:
            continue
    return total
