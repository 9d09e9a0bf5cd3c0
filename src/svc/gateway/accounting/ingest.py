"""Ingests journals into the database in a thread, in segments: the journal of this process, and orphaned journals.

    every SCAN_PAUSE_SECONDS:  lines in memory -> own journal from the last offset on -> unlocked journals

The thread shares a core and the GIL with the event loop. It works for 1 to 2 ms at a time and then pauses in
proportion. A response is therefore delayed by one segment at most. Summarized segments are not decoded, which saves
most of the work.

Each entry is stored once. In the transaction with the entries, the database stores how many bytes of the journal it
has. An ingester reads that offset first, and stores nothing if another process has changed it since. Recovery
after a crash, or after a commit with an unknown outcome, needs nothing else. A complete journal is truncated, removed
from the database, and deleted, in this order. Another process that arrives between these steps finds no entries.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import math
import os
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from svc.gateway.accounting.journal import JOURNAL_SUFFIX, SEGMENT_BYTES, Journal
from svc.stores.database import journal_lines
from svc.stores.database.base import CommitOutcomeUnknown, Database, StoreUnavailable
from svc.stores.database.segment import JournalSegment
from svc.stores.database.segment_summary import SegmentSummary

log = logging.getLogger("svc.ledger")

SCAN_PAUSE_SECONDS = 0.4
"""Seconds between two scans."""
LONG_SCAN_PAUSE_SECONDS = 0.7
"""Seconds after a quick scan that found entries. A scan costs a millisecond even for few entries.

An entry misses one scan at most, so it waits for up to two pauses and three scans: less than 2 s. PRICE_WAIT_SECONDS
may come before.
"""
QUICK_SCAN_SECONDS = 0.1
"""Duration of a scan, in seconds, with a nearby database. After a slower scan, the pause is SCAN_PAUSE_SECONDS."""
SHORT_SCAN_PAUSE_SECONDS = 0.1
"""Seconds after a scan that found more than one segment."""
DECODED_REST_FACTOR = 6.0
"""The pause after a decoded segment, as a multiple of its CPU time. It decreases with the lag."""
SUMMARIZED_REST_FACTOR = 20.0
"""The same for a summarized segment, unless MAX_INGEST_SPREAD_SECONDS makes the pause shorter."""
MAX_INGEST_SPREAD_SECONDS = 0.5
"""Seconds, at most, over which waiting summarized segments are spread.

Segments in quick succession would take CPU time that a busy event loop needs.
"""
NO_REST_LAG_SECONDS = 1.5
"""Lag in seconds at which the thread no longer pauses."""
LATE_LAG_SECONDS = 10.0
"""Lag in seconds at which `is_late` becomes true."""
PRICE_WAIT_SECONDS = 5.0
"""Seconds, at most, that entries wait for the price list, if a model has no configured or built-in price.

It arrives about a second after the start or the reload, and later on a busy machine. An entry that is stored before
it never gets a cost.
"""
PRUNE_INTERVAL_SECONDS = 3600.0
RETENTION_DAY_SECONDS = 86400.0
REPAIR_INTERVAL_SECONDS = 60.0
"""Seconds between two searches for entries of older programs, whose sums are incomplete."""
REPAIR_CPU_SECONDS = 0.02
"""CPU time of the repair of sums in one scan, with pauses of DECODED_REST_FACTOR."""
REPAIR_DELAY_SECONDS = 60.0
"""Seconds after the end of an hour until its sums are repaired: its last entries may be late."""


class JournalIngester:
    """Owns its database and its thread, from `start` to `close`. Without `journal`, ingests only orphaned journals."""

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
        """Whether the database failed at the last scan."""
        self.ingested_count = 0
        self.broken_lines = 0
        self._folder = folder
        self._database = database
        self._journal = journal
        self._retention_seconds = retain_days * RETENTION_DAY_SECONDS
        self._fill_missing_cost = fill_missing_cost
        self._prices_ready = prices_ready
        self._own_path = Path()
        """The file of this process's journal that was ingested last."""
        self._own_offset: int | None = None
        """Bytes of it in the database. None if the database has to be queried."""
        self._unconfirmed_lines: list[bytes] = []
        """Lines from memory whose commit had an unknown outcome. They must not go to a journal."""
        self.unreadable_journals: frozenset[str] = frozenset()
        """Journals in the folder that another user owns. Their entries may be missing in all ledgers."""
        self._unreadable_in_scan: set[str] = set()
        """Unreadable journals that the current scan has found."""
        self._logged_error = ""
        """The unexpected error of the last scan, whose traceback is in the log."""
        self._is_late_logged = False
        self._is_migrated = False
        self._has_backlog = False
        """Whether the current scan found more than one segment."""
        self._prune_at = 0.0
        self._repair_at = 0.0
        self._repair: Iterator[int] | None = None
        self._caught_up_at = self._last_scan_ended_at = time.monotonic()
        """The start and the end of the last complete scan (`time.monotonic`). A wait for prices moves the end."""
        self._deadline = math.inf
        """When orphaned journals are left to a later scan (`time.monotonic`)."""
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="ledger", daemon=True)

    @property
    def lag_seconds(self) -> float:
        """Seconds since the start of the last complete scan."""
        return time.monotonic() - self._caught_up_at

    @property
    def is_late(self) -> bool:
        """Whether the database lacks new entries, because it is unavailable or the backlog is too large."""
        return self.lag_seconds > LATE_LAG_SECONDS

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def set_retention_days(self, days: float) -> None:
        """Set how long entries are kept, from the next pruning on."""
        self._retention_seconds = days * RETENTION_DAY_SECONDS

    def close(self) -> None:
        """Ingest the remaining entries, and stop the thread. Waits 10 s at most. Close the journal first."""
        self._stop.set()
        self._thread.join(timeout=10)

    def _run(self) -> None:
        price_deadline = time.monotonic() + PRICE_WAIT_SECONDS
        pause = SCAN_PAUSE_SECONDS
        while not self._stop.wait(pause):
            ingested_before, started_at = self.ingested_count, time.monotonic()
            are_ready = self._prices_ready()
            if are_ready or started_at > price_deadline:
                self._scan()
            else:
                self._last_scan_ended_at = time.monotonic()
            if are_ready:  # a reload may add models whose prices are not known
                price_deadline = time.monotonic() + PRICE_WAIT_SECONDS
            pause = self.next_pause_seconds(self.ingested_count - ingested_before, time.monotonic() - started_at)
        self._scan()
        self._database.close()

    def next_pause_seconds(self, ingested: int, scan_seconds: float) -> float:
        """Return the seconds to the next scan, after one with `ingested` entries."""
        if self._has_backlog:
            return SHORT_SCAN_PAUSE_SECONDS
        return LONG_SCAN_PAUSE_SECONDS if ingested and scan_seconds < QUICK_SCAN_SECONDS else SCAN_PAUSE_SECONDS

    def _scan(self) -> None:
        self._has_backlog = False
        try:
            self.ingest_all()
        except StoreUnavailable as error:
            self._record_failure(error.message, "the ledger database is unavailable")
        except OSError as error:  # such as EMFILE
            reason = f"{error.strerror or error}{f': {error.filename}' if error.filename else ''}"
            self._record_failure(reason, "the journal cannot be read")
        except Exception as error:
            if self._logged_error != (text := repr(error)):  # a traceback for each scan would fill the disk of the log
                self._logged_error = text
                log.exception("ingesting the journal failed")
            self._record_failure(str(error), "ingesting the journal failed")

    def _record_failure(self, reason: str, problem: str) -> None:
        if not self.is_down:
            log.error("%s, entries wait in the journal: %s", problem, reason)
        self.is_down = True
        if self._journal is not None:
            with contextlib.suppress(OSError):  # such as EMFILE: the next scan tries again
                self._journal.waiting_bytes = _journal_bytes(self._folder)

    def ingest_all(self) -> None:
        """Ingest all available entries. Raises StoreUnavailable."""
        started_at = time.monotonic()
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
                if self._journal is not None:  # new entries do not wait for a backlog of orphaned journals
                    self._ingest_own_journal(self._journal)
        self.unreadable_journals = frozenset(self._unreadable_in_scan)
        self._log_lateness()
        self.is_down = False
        self._logged_error = ""
        if self._journal is not None:
            self._journal.waiting_bytes = 0
        self._caught_up_at, self._last_scan_ended_at = started_at, time.monotonic()
        self._prune()
        if self._journal is not None and not self._stop.is_set():
            self._repair_sums()

    def ingest_orphans(self, max_seconds: float) -> bool:
        """Ingest orphaned journals, newest first. Return whether the time was enough. Raises StoreUnavailable."""
        self._deadline = time.monotonic() + max_seconds
        self._database.migrate()
        for name in reversed(_journal_names(self._folder)):
            if time.monotonic() >= self._deadline:
                return False
            self._ingest_orphan(self._folder / name)
        return time.monotonic() < self._deadline

    def _log_lateness(self) -> None:
        """Log the first complete scan after a failure, and changes of `is_late`: a slow database raises no error."""
        if self.is_down:
            log.warning("entries of the journal reach the ledger database again")
        elif self.is_late and not self._is_late_logged:
            reason = "it is slow, or a backlog is large"
            log.warning("entries reach the ledger database %.0f s late: %s", self.lag_seconds, reason)
        elif self._is_late_logged and not self.is_late:
            log.warning("entries reach the ledger database in time again")
        self._is_late_logged = self.is_late and not self.is_down

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
        """Ingest the new entries of this process's journal: summarized segments first, then the other lines."""
        count = len(journal.summaries)
        for _ in range(count):
            summary = journal.summaries.popleft()
            started_at = time.thread_time()
            try:
                self._ingest_own_file(self._folder / summary.journal_name, summary.start, summary)
            except StoreUnavailable:  # the next scan retries it, unless a full queue drops its newest summary
                journal.summaries.appendleft(summary)
                raise
            if journal.summaries:
                self._has_backlog = True
                self._stop.wait(
                    min((time.thread_time() - started_at) * SUMMARIZED_REST_FACTOR, MAX_INGEST_SPREAD_SECONDS / count)
                )
        path, until = journal.path, journal.sealed_until
        if not journal.summaries:  # checked last: otherwise a segment sealed just now would be decoded
            self._ingest_own_file(path, until, None)

    def _ingest_own_file(self, path: Path, until: int | None, summary: SegmentSummary | None) -> None:
        """Ingest new lines of an own file up to the offset `until`, then a summarized segment.

        If the file is a new one, ingest the rest of the previous one first.
        """
        if path != self._own_path:
            previous, self._own_path, self._own_offset = self._own_path, path, None
            if previous.name:
                self._ingest_orphan(previous)
        try:
            file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:  # it was unlocked just now, and another process has ingested it
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
        """Ingest a segment, and return its end offset, or None if another process has ingested it."""
        data = os.pread(file, summary.end - summary.start, summary.start)
        return (
            summary.start + len(data)
            if self._store_segment(summary.journal_name, summary.start, data, summary)
            else None
        )

    def _ingest_orphan(self, path: Path) -> None:
        try:
            file = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        except FileNotFoundError:  # another process has ingested it
            self._database.delete_journal(path.name)
            return
        except (PermissionError, IsADirectoryError) as error:  # continue with the next journal
            self._mark_unreadable(path.name, error)
            return
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:  # another process writes or ingests it
            os.close(file)
            return
        try:
            if self._ingest_whole_file(file, path.name):
                os.ftruncate(file, 0)
                os.fsync(file)  # a loss of power must not restore lines whose offset the database has deleted
                self._database.delete_journal(path.name)
                path.unlink(missing_ok=True)
        finally:
            os.close(file)

    def _mark_unreadable(self, name: str, error: OSError) -> None:
        self._unreadable_in_scan.add(name)
        if name not in self.unreadable_journals:
            log.error("the journal %s cannot be opened, and is skipped: %s", name, error.strerror)

    def _ingest_whole_file(self, file: int, name: str) -> bool:
        """Ingest an orphaned journal. Return False if the time is over, or the database changed its offset in between.

        The latter happens if the database commits a transaction of a dead process. The next scan continues.
        """
        size = os.fstat(file).st_size
        if not size:  # it is ingested, and a query for its offset would add it to the database again
            return True
        end = self._ingest_range(file, name, self._database.committed_offset(name) if _tracks_offset(name) else 0)
        if end is not None and end < size:
            self.broken_lines += 1
            log.warning("the last line of the journal %s is truncated: its process died while writing", name)
        return end is not None

    def _ingest_range(self, file: int, name: str, offset: int, until: int | None = None) -> int | None:
        """Ingest complete lines from `offset` to `until`, or to the end of the file.

        Return the offset after the last line, or None if another process has ingested them or the time is over.
        """
        while until is None or offset < until:
            if time.monotonic() >= self._deadline:
                return None
            data = os.pread(file, SEGMENT_BYTES if until is None else min(SEGMENT_BYTES, until - offset), offset)
            end = data.rfind(b"\n") + 1
            if len(data) == SEGMENT_BYTES:
                end = end or SEGMENT_BYTES  # a valid line is shorter
            if not end:
                return offset
            started_at = time.thread_time()
            if not self._store_segment(name, offset, data[:end]):
                return None
            offset += end
            if len(data) < SEGMENT_BYTES:  # the end of the file: the next scan ingests later lines
                return offset
            self._throttle(time.thread_time() - started_at)
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
            log.error("invalid lines of the journal, skipped: %d", count)

    def _prune(self) -> None:
        """Delete a batch of old entries. After the last batch, pause for PRUNE_INTERVAL_SECONDS."""
        if self._retention_seconds and time.monotonic() >= self._prune_at:
            self._prune_at = time.monotonic() + PRUNE_INTERVAL_SECONDS
            if self._database.prune_entries(time.time() - self._retention_seconds):
                self._prune_at = 0.0

    def _repair_sums(self) -> None:
        """Continue to complete the sums of entries that an older program stored."""
        if self._repair is None:
            if time.monotonic() < self._repair_at:
                return
            self._repair = self._database.repair_sums(time.time() - REPAIR_DELAY_SECONDS)
        repair, self._repair = self._repair, None  # it ends with an error
        cpu_seconds = 0.0
        while cpu_seconds < REPAIR_CPU_SECONDS:
            started_at = time.thread_time()
            if next(repair, None) is None:
                self._repair_at = time.monotonic() + REPAIR_INTERVAL_SECONDS
                return
            duration = time.thread_time() - started_at
            cpu_seconds += duration
            if self._stop.wait(duration * DECODED_REST_FACTOR):
                return
        self._repair = repair


def _tracks_offset(name: str) -> bool:
    """Return False for a journal of an old version, without an offset in the database: each entry is looked up."""
    return name.count("-") > 1


def ingest_orphans(folder: Path, database: Database, *, max_seconds: float = math.inf) -> bool:
    """Ingest the journals that no running gateway writes. Return whether the time was enough.

    Raises StoreUnavailable.
    """
    return not folder.is_dir() or JournalIngester(folder, database).ingest_orphans(max_seconds)


def wait_for_journal_writers(folder: Path, seconds: float) -> None:
    """Wait until no process writes a journal in the folder, at most `seconds`.

    Workers whose supervisor was killed continue for a moment.
    """
    deadline = time.monotonic() + seconds
    while has_journal_writers(folder) and time.monotonic() < deadline:
        time.sleep(0.02)


def has_journal_writers(folder: Path) -> bool:
    """Return whether a process writes or ingests a journal in the folder."""
    return any(_is_locked(folder / name) for name in _journal_names(folder))


def _is_locked(path: Path) -> bool:
    try:
        file = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except OSError:  # deleted, or owned by another user
        return False
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return True
    finally:
        os.close(file)
    return False


def _journal_names(folder: Path) -> list[str]:
    """Return the names of journals, oldest first. A glob would be slower than `os.listdir`."""
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
