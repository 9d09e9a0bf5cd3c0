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

from svc.gateway.accounting.journal import JOURNAL_SUFFIX, SEGMENT_BYTES, Journal
from svc.stores.database import journal_lines
from svc.stores.database.base import CommitOutcomeUnknown, Database, StoreUnavailable
from svc.stores.database.segment import JournalSegment
from svc.stores.database.segment_summary import SegmentSummary

log = logging.getLogger("svc.ledger")

SCAN_PAUSE_SECONDS = 0.4
"""Seconds between two looks."""
LONG_SCAN_PAUSE_SECONDS = 0.7
"""After a look that found something, and was QUICK: each costs a millisecond, however little it finds. An entry comes
after one look at most into what the next one takes, so it waits for two pauses and three looks: less than 2 s.
"""
QUICK_SCAN_SECONDS = 0.1
"""Seconds of a look that a database beside us needs; behind a slower one PAUSE makes up for it."""
SHORT_SCAN_PAUSE_SECONDS = 0.1
"""After a look that found more than a stretch."""
DECODED_REST_FACTOR = 6.0
"""So many times the CPU time of a stretch that it has decoded the thread rests; less and less as it falls behind."""
SUMMARIZED_REST_FACTOR = 20.0
"""The same for a stretch that was summed up already, unless SPREAD says less."""
MAX_INGEST_SPREAD_SECONDS = 0.5
"""Seconds, at most, over which what is summed up is taken: evenly, since some stretches one soon after the other would
take the core from a loop that needs nearly all of it.
"""
NO_REST_LAG_SECONDS = 1.5
"""Seconds behind, at which it does not rest any more."""
LATE_LAG_SECONDS = 10.0
"""Seconds behind, from which on it is said."""
PRICE_WAIT_SECONDS = 1.0
"""After the start: so long the price list is waited for, when a model is offered whose price is not known without."""
PRUNE_INTERVAL_SECONDS = 3600.0
RETENTION_DAY_SECONDS = 86400.0


class JournalIngester:
    """Owns its database and its thread, from `start` to `close`. Without `journal` only the dead's are taken."""

    def __init__(
        self,
        folder: Path,
        database: Database,
        *,
        journal: Journal | None = None,
        retain_days: float = 0.0,
        fill_missing_cost: journal_lines.FillPrice | None = None,
        prices_ready: Callable[[], bool] = lambda: True,
    ) -> None:
        self.is_down = False
        """The database did not take the last stretch."""
        self.ingested_count = 0
        self.broken_lines = 0
        self._folder = folder
        self._database = database
        self._journal = journal
        self._retention_seconds = retain_days * RETENTION_DAY_SECONDS
        self._fill_missing_cost = fill_missing_cost
        self._prices_ready = prices_ready
        self._own_path = Path()
        """Of this process's journal, as it was last taken from."""
        self._own_offset: int | None = None
        """So much of it is in; None when only the database knows."""
        self._unconfirmed_lines: list[bytes] = []
        """Lines that were in memory, and may be in the database. No journal may get them."""
        self.unreadable_journals: frozenset[str] = frozenset()
        """Journals in the folder that cannot be opened: another user's. Their entries may be in nobody's ledger."""
        self._unreadable_in_scan: set[str] = set()
        """Of them, what this look has found."""
        self._is_migrated = False
        self._has_backlog = False
        """There was more than a stretch to take."""
        self._prune_at = 0.0
        self._caught_up_at = self._last_scan_ended_at = time.monotonic()
        """When the last look began, and when it ended, that took everything."""
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="ledger", daemon=True)

    @property
    def lag_seconds(self) -> float:
        """Seconds since everything was last taken."""
        return time.monotonic() - self._caught_up_at

    @property
    def is_late(self) -> bool:
        """New entries are not in the ledger, since the database does not answer or there is too much to take."""
        return self.lag_seconds > LATE_LAG_SECONDS

    def start(self) -> None:
        self._thread.start()

    def set_retention_days(self, days: float) -> None:
        """Keeps entries for so long from the next time on that old ones are forgotten."""
        self._retention_seconds = days * RETENTION_DAY_SECONDS

    def close(self) -> None:
        """Takes what is left, and ends; waits at most ten seconds. The journal is to be closed before."""
        self._stop.set()
        self._thread.join(timeout=10)

    def _run(self) -> None:
        price_deadline = time.monotonic() + PRICE_WAIT_SECONDS
        pause = SCAN_PAUSE_SECONDS
        while not self._stop.wait(pause):
            ingested_before, began = self.ingested_count, time.monotonic()
            if self._prices_ready() or began > price_deadline:
                self._scan()
            pause = self.next_pause_seconds(self.ingested_count - ingested_before, time.monotonic() - began)
        self._scan()
        self._database.close()

    def next_pause_seconds(self, ingested: int, scan_seconds: float) -> float:
        """Seconds to the next look, after one that found so much and took so long."""
        if self._has_backlog:
            return SHORT_SCAN_PAUSE_SECONDS
        return LONG_SCAN_PAUSE_SECONDS if ingested and scan_seconds < QUICK_SCAN_SECONDS else SCAN_PAUSE_SECONDS

    def _scan(self) -> None:
        self._has_backlog = False
        try:
            self.ingest_all()
        except StoreUnavailable as error:
            self._record_failure(error.message)
        except Exception as error:
            log.exception("taking in the journal failed")
            self._record_failure(str(error))

    def _record_failure(self, reason: str) -> None:
        if not self.is_down:
            log.error("the ledger goes on in its journal: %s", reason)
        self.is_down = True
        if self._journal is not None:
            with contextlib.suppress(OSError):  # such as no descriptor left: this thread goes on, and tries again
                self._journal.waiting_bytes = _journal_bytes(self._folder)

    def ingest_all(self) -> None:
        """Takes everything that can be taken now. Raises StoreDown."""
        began = time.monotonic()
        if not self._is_migrated:
            self._database.migrate()
            self._is_migrated = True
        if self._journal is not None:
            self._ingest_buffered_lines(self._journal)
            self._ingest_own_journal(self._journal)
        self._unreadable_in_scan = set()
        for name in _journal_names(self._folder):
            if self._journal is None or name != self._journal.path.name:
                self._ingest_orphan(self._folder / name)
                if self._journal is not None:  # new entries do not wait for all that has piled up
                    self._ingest_own_journal(self._journal)
        self.unreadable_journals = frozenset(self._unreadable_in_scan)
        if self.is_down:
            log.error("the database of the ledger answers again")
        self.is_down = False
        if self._journal is not None:
            self._journal.waiting_bytes = 0
        self._caught_up_at, self._last_scan_ended_at = began, time.monotonic()
        self._prune()

    def _ingest_buffered_lines(self, journal: Journal) -> None:
        if self._unconfirmed_lines:
            self._append_entries(b"".join(self._unconfirmed_lines))
            self._unconfirmed_lines = []
        buffered = journal.take_buffered_lines()
        if not buffered:
            return
        try:
            self._append_entries(b"".join(buffered))
        except CommitOutcomeUnknown:
            self._unconfirmed_lines = buffered
            raise
        except BaseException:
            journal.restore_buffered_lines(buffered)
            raise

    def _ingest_own_journal(self, journal: Journal) -> None:
        """What is new in its files: what is summed up by now, then what nobody sums up."""
        count = len(journal.summaries)
        for _ in range(count):
            summary = journal.summaries.popleft()
            began = time.thread_time()
            try:
                self._ingest_own_file(self._folder / summary.journal_name, summary.start, summary)
            except StoreUnavailable:  # for the next look; if there is no room any more, one of the newest is forgotten
                journal.summaries.appendleft(summary)
                raise
            if journal.summaries:
                self._has_backlog = True
                self._stop.wait(
                    min((time.thread_time() - began) * SUMMARIZED_REST_FACTOR, MAX_INGEST_SPREAD_SECONDS / count)
                )
        path, until = journal.path, journal.sealed_until
        if not journal.summaries:  # looked at last: else what was summed up just now would be decoded
            self._ingest_own_file(path, until, None)

    def _ingest_own_file(self, path: Path, until: int | None, summary: SegmentSummary | None) -> None:
        """What is new in a file of our own, up to there, then what is summed up; the file before it is ended first."""
        if path != self._own_path:
            previous, self._own_path, self._own_offset = self._own_path, path, None
            if previous.name:
                self._ingest_orphan(previous)
        try:
            file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:  # it was let go of just now, and another process was quick
            return
        try:
            offset, self._own_offset = self._own_offset, None
            offset = self._ingest_range(
                file, path.name, self._database.committed_offset(path.name) if offset is None else offset, until
            )
            if summary is not None and offset == summary.start:
                offset = self._ingest_summarized(file, summary)
            self._own_offset = offset
        finally:
            os.close(file)

    def _ingest_summarized(self, file: int, summary: SegmentSummary) -> int | None:
        """Where its lines end; None if others have taken them."""
        data = os.pread(file, summary.end - summary.start, summary.start)
        return (
            summary.start + len(data)
            if self._store_segment(summary.journal_name, summary.start, data, summary)
            else None
        )

    def _ingest_orphan(self, path: Path) -> None:
        try:
            file = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        except FileNotFoundError:  # another process was quicker
            self._database.delete_journal(path.name)
            return
        except (PermissionError, IsADirectoryError) as error:  # what is behind it does not wait for it
            self._mark_unreadable(path.name, error)
            return
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:  # it is being written, or another process takes it
            os.close(file)
            return
        try:
            if self._ingest_whole_file(file, path.name):
                os.ftruncate(file, 0)
                os.fsync(file)  # else a loss of power could bring back what the database has forgotten
                self._database.delete_journal(path.name)
                path.unlink(missing_ok=True)
        finally:
            os.close(file)

    def _mark_unreadable(self, name: str, error: OSError) -> None:
        self._unreadable_in_scan.add(name)
        if name not in self.unreadable_journals:
            log.error("the journal %s is left alone, only its owner can take it: %s", name, error.strerror)

    def _ingest_whole_file(self, file: int, name: str) -> bool:
        """False if a process that has died was still heard by the database: the next look tells how far it got."""
        size = os.fstat(file).st_size
        if not size:  # all of it was taken; to ask for its place now would be to note it again
            return True
        end = self._ingest_range(file, name, self._database.committed_offset(name) if _tracks_offset(name) else 0)
        if end is not None and end < size:
            self.broken_lines += 1
            log.warning("the last line of the journal %s is cut off: its writer died in the middle of it", name)
        return end is not None

    def _ingest_range(self, file: int, name: str, offset: int, until: int | None = None) -> int | None:
        """Takes whole lines from `offset` to `until`, or all. Where they end; None if others have taken them."""
        while until is None or offset < until:
            data = os.pread(file, SEGMENT_BYTES if until is None else min(SEGMENT_BYTES, until - offset), offset)
            end = data.rfind(b"\n") + 1
            if len(data) == SEGMENT_BYTES:
                end = end or SEGMENT_BYTES  # no line of ours is as long
            if not end:
                return offset
            began = time.thread_time()
            if not self._store_segment(name, offset, data[:end]):
                return None
            offset += end
            if len(data) < SEGMENT_BYTES:  # all that was there; what has come since is the next look's
                return offset
            self._throttle(time.thread_time() - began)
        return offset

    def _throttle(self, cpu_seconds: float) -> None:
        self._has_backlog = True
        lag = time.monotonic() - self._last_scan_ended_at
        self._stop.wait(cpu_seconds * DECODED_REST_FACTOR * max(0.0, 1.0 - lag / NO_REST_LAG_SECONDS))

    def _store_segment(self, name: str, start: int, data: bytes, summary: SegmentSummary | None = None) -> bool:
        if not _tracks_offset(name):
            self._append_entries(data)
            return True
        segment = self._read_segment(data, summary)
        was_stored = self._database.ingest(name, start, start + len(data), segment)
        if was_stored:
            self.ingested_count += segment.entry_count
            self._count_broken(segment.broken_lines)
        return was_stored

    def _read_segment(self, data: bytes, summary: SegmentSummary | None) -> JournalSegment:
        if summary is not None:
            with contextlib.suppress(ValueError):
                return journal_lines.parse_summarized_segment(data, summary)
        return journal_lines.parse_segment(data, self._fill_missing_cost)

    def _append_entries(self, data: bytes) -> None:
        entries, broken = journal_lines.parse_entries(data, self._fill_missing_cost)
        self.ingested_count += self._database.insert_entries(entries)
        self._count_broken(broken)

    def _count_broken(self, count: int) -> None:
        self.broken_lines += count
        if count:
            log.error("broken lines of the journal, left out: %d", count)

    def _prune(self) -> None:
        """Forgets some entries that are too old: with the first look, and an hour after the last of them or a fault."""
        if self._retention_seconds and time.monotonic() >= self._prune_at:
            self._prune_at = time.monotonic() + PRUNE_INTERVAL_SECONDS
            if self._database.prune_entries(time.time() - self._retention_seconds):
                self._prune_at = 0.0


def _tracks_offset(name: str) -> bool:
    """False for a journal of a version that did not keep how much of it was taken: each entry is looked for."""
    return name.count("-") > 1


def ingest_orphans(folder: Path, database: Database) -> None:
    """Takes the journals that no running gateway writes. Raises StoreDown."""
    if folder.is_dir():
        JournalIngester(folder, database).ingest_all()


def wait_for_journal_writers(folder: Path, seconds: float) -> None:
    """Until no process writes a journal there: workers whose supervisor was killed go on for a moment. Not for ever."""
    deadline = time.monotonic() + seconds
    while any(_is_locked(folder / name) for name in _journal_names(folder)) and time.monotonic() < deadline:
        time.sleep(0.02)


def _is_locked(path: Path) -> bool:
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


def _journal_names(folder: Path) -> list[str]:
    """Their names, the oldest first. By `os`: a glob takes a tenth of what a look does."""
    try:
        return sorted(name for name in os.listdir(folder) if name.endswith(JOURNAL_SUFFIX))
    except FileNotFoundError:
        return []


def _journal_bytes(folder: Path) -> int:
    total = 0
    for name in _journal_names(folder):
        try:
            total += (folder / name).stat().st_size
        except FileNotFoundError:
            continue
    return total
