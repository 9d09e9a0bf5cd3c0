"""The journal on a full disk, and the ingestion of journals."""

from __future__ import annotations

import contextlib
import errno
import os
import resource
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from svc.gateway.accounting import ingest
from svc.gateway.accounting.ingest import JournalIngester, ingest_orphans
from svc.gateway.accounting.journal import JOURNAL_ROTATE_BYTES, SEGMENT_BYTES, Journal
from svc.stores.database.base import LedgerEntry
from svc.stores.database.segment import JournalSegment
from svc.stores.database.sqlite import SqliteDatabase


def line(id: str) -> bytes:
    entry = LedgerEntry(
        time="2026-03-04T10:20:30.456Z",
        request_id=id,
        key_id="k",
        key_name="n",
        endpoint="/v1/chat/completions",
        attempts=1,
        status="ok",
        http_status=200,
        latency_ms=1.0,
    )
    return msgspec.json.encode(entry) + b"\n"


@pytest.fixture
def database(tmp_path: Path) -> Iterator[SqliteDatabase]:
    found = SqliteDatabase(tmp_path / "svc.db")
    found.migrate()
    yield found
    found.close()


@pytest.fixture
def journal(tmp_path: Path) -> Iterator[Journal]:
    found = Journal(tmp_path / "journal", max_waiting_bytes=10**9)
    found.start_new_file()
    yield found
    found.close()


def ids(database: SqliteDatabase) -> set[str]:
    return {entry.request_id for entry in database.list_entries()}


def test_journal_full_disk_then_space_writes_all_lines(
    journal: Journal, database: SqliteDatabase, tmp_path: Path
) -> None:
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (len(line("r00")) * 3 + 10, before[1]))  # the fourth line is truncated
    try:
        for number in range(10):
            journal.append(line(f"r{number:02d}"))
        assert journal.is_full
        assert journal.path.read_bytes() == b"".join(line(f"r{number:02d}") for number in range(3))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    journal.recover()
    assert not journal.is_full
    assert journal.lost_lines == 0
    journal.append(line("last"))
    journal.close()
    ingest_orphans(tmp_path / "journal", database)
    assert ids(database) == {*(f"r{number:02d}" for number in range(10)), "last"}
    assert list((tmp_path / "journal").iterdir()) == []


def test_journal_full_disk_without_rotation_keeps_written_lines(
    journal: Journal, database: SqliteDatabase, tmp_path: Path
) -> None:
    """Without a free descriptor the journal cannot rotate and grows beyond its limit."""
    files, size = resource.getrlimit(resource.RLIMIT_NOFILE), resource.getrlimit(resource.RLIMIT_FSIZE)
    first = journal.path
    count = JOURNAL_ROTATE_BYTES // len(line("r00000")) + 10
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (3, files[1]))
        for number in range(count):
            journal.append(line(f"r{number:05d}"))
        resource.setrlimit(resource.RLIMIT_NOFILE, files)
        resource.setrlimit(resource.RLIMIT_FSIZE, (journal.path.stat().st_size + 10, size[1]))
        journal.append(line("cut"))
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, files)
        resource.setrlimit(resource.RLIMIT_FSIZE, size)
    assert journal.path == first
    assert journal.is_full
    assert first.read_bytes().count(b"\n") == count
    journal.recover()
    JournalIngester(tmp_path / "journal", database, journal=journal).ingest_all()
    assert len(database.list_entries(limit=2 * count)) == count + 1


def test_ingest_truncated_and_malformed_lines_skips_only_those(database: SqliteDatabase, tmp_path: Path) -> None:
    folder = tmp_path / "journal"
    folder.mkdir()
    (folder / "1-1-a.journal").write_bytes(line("a") + b"{malformed\n\xff\xfe\n\n" + line("b") + line("torn")[:-20])
    (folder / "2-1-a.journal").write_bytes(b"")
    ingester = JournalIngester(folder, database)
    ingester.ingest_all()
    assert ids(database) == {"a", "b"}
    assert (ingester.ingested_count, ingester.broken_lines) == (2, 4)
    assert list(folder.iterdir()) == []


@pytest.mark.parametrize("kind", ["no permission", "directory"])
def test_ingest_unreadable_journal_is_skipped_and_others_are_ingested(
    database: SqliteDatabase,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    kind: str,
) -> None:
    folder = tmp_path / "journal"
    unreadable = folder / "1-1-a.journal"
    unreadable.mkdir(parents=True)
    (folder / "2-1-a.journal").write_bytes(line("a"))
    real_open = os.open

    def fail_open(path: Any, *rest: Any) -> int:  # root may open every file
        if path == unreadable:
            raise PermissionError(errno.EACCES, "Permission denied")
        return real_open(path, *rest)

    if kind == "no permission":
        monkeypatch.setattr(os, "open", fail_open)
    ingester = JournalIngester(folder, database)
    ingester.ingest_all()
    ingester.ingest_all()
    assert ids(database) == {"a"}
    assert ingester.unreadable_journals == {unreadable.name}
    assert caplog.text.count("1-1-a.journal cannot be opened") == 1
    unreadable.rename(folder / "kept")
    ingester.ingest_all()
    assert ingester.unreadable_journals == set()


def test_ingest_orphans_journal_being_written_is_skipped(
    journal: Journal, database: SqliteDatabase, tmp_path: Path
) -> None:
    journal.append(line("a"))
    ingest_orphans(tmp_path / "journal", database)
    assert journal.path.exists()
    assert ids(database) == set()


def test_ingest_own_journal_is_ingested_incrementally(
    journal: Journal, database: SqliteDatabase, tmp_path: Path
) -> None:
    ingester = JournalIngester(tmp_path / "journal", database, journal=journal)
    journal.append(line("a"))
    ingester.ingest_all()
    journal.append(line("b"))
    journal.start_new_file()
    journal.append(line("c"))
    ingester.ingest_all()
    assert ids(database) == {"a", "b", "c"}
    assert ingester.ingested_count == 3
    assert list((tmp_path / "journal").iterdir()) == [journal.path]


class RotatingDatabase(SqliteDatabase):
    """The journal rotates while this database ingests the previous file."""

    journal: Journal | None = None

    def ingest(self, journal: str, start: int, end: int, segment: JournalSegment) -> bool:
        if self.journal is not None:
            self.journal.append(line("late"))
            self.journal.start_new_file()
            self.journal = None
        return super().ingest(journal, start, end, segment)


def test_ingest_journal_rotated_during_ingest_adds_all_lines(journal: Journal, tmp_path: Path) -> None:
    with contextlib.closing(RotatingDatabase(tmp_path / "svc.db")) as database:
        database.migrate()
        ingester = JournalIngester(tmp_path / "journal", database, journal=journal)
        journal.append(line("a"))
        first = journal.path
        database.journal = journal
        ingester.ingest_all()
        assert not first.exists()
        journal.append(line("b"))
        ingester.ingest_all()
        assert ids(database) == {"a", "late", "b"}
        assert ingester.ingested_count == 3
        assert list((tmp_path / "journal").iterdir()) == [journal.path]


class WritingDatabase(SqliteDatabase):
    """A request completes while this database ingests the journals of a dead process."""

    def __init__(self, path: Path, journal: Journal) -> None:
        super().__init__(path)
        self.journal = journal
        self.order: list[str] = []

    def ingest(self, journal: str, start: int, end: int, segment: JournalSegment) -> bool:
        self.order += [batch.id for batch in segment.batches]
        if self.order == ["dead0"]:
            self.journal.append(line("new"))
        return super().ingest(journal, start, end, segment)


def test_ingest_new_entries_precede_remaining_orphan_journals(journal: Journal, tmp_path: Path) -> None:
    for number in range(3):
        (tmp_path / "journal" / f"{number}-1-a.journal").write_bytes(line(f"dead{number}"))
    with contextlib.closing(WritingDatabase(tmp_path / "svc.db", journal)) as database:
        database.migrate()
        JournalIngester(tmp_path / "journal", database, journal=journal).ingest_all()
        assert database.order == ["dead0", "new", "dead1", "dead2"]


@pytest.mark.parametrize("torn", [False, True])
def test_ingest_long_orphan_journal_adds_all_entries(database: SqliteDatabase, tmp_path: Path, torn: bool) -> None:
    folder = tmp_path / "journal"
    folder.mkdir()
    whole = b"".join(line(f"r{number:05d}") for number in range(3000))
    assert len(whole) > 2 * SEGMENT_BYTES
    (folder / "1-1-a.journal").write_bytes(whole + (line("torn")[:-1] if torn else b""))
    ingester = JournalIngester(folder, database)
    ingester.ingest_all()
    assert (ingester.ingested_count, ingester.broken_lines) == (3000, int(torn))
    assert list(folder.iterdir()) == []


def test_ingest_backlog_pauses_while_running_and_not_at_close(journal: Journal, tmp_path: Path) -> None:
    """The thread pauses between batches, but not after `close`."""
    path = tmp_path / "svc.db"
    ingester = JournalIngester(tmp_path / "journal", SqliteDatabase(path), journal=journal)
    ingester.start()
    for number in range(6000):
        journal.append(line(f"r{number:05d}"))
    deadline = time.monotonic() + 10
    while ingester.ingested_count < 3000 and time.monotonic() < deadline:
        time.sleep(0.02)
    for number in range(6000, 9000):
        journal.append(line(f"r{number:05d}"))
    journal.close()
    ingester.close()
    assert ingester.ingested_count == 9000
    with contextlib.closing(SqliteDatabase(path)) as found:
        assert len(found.list_entries(limit=10_000)) == 9000


def test_ingest_entries_beyond_retention_are_deleted_at_first_run(tmp_path: Path, database: SqliteDatabase) -> None:
    for number in range(3):
        database.insert_entries([msgspec.json.decode(line(f"r{number}"), type=LedgerEntry)])
    JournalIngester(tmp_path / "journal", database, retain_days=100_000).ingest_all()
    assert len(ids(database)) == 3
    JournalIngester(tmp_path / "journal", database, retain_days=1).ingest_all()
    assert ids(database) == set()
    assert [each.requests for each in database.aggregate_usage("key")] == [3]


def test_journal_line_after_close_is_written_to_new_file(
    journal: Journal, database: SqliteDatabase, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    journal.append(line("before"))
    journal.close()
    journal.append(line("after"))
    assert journal.take_buffered_lines() == []
    assert not journal.is_full
    assert journal.lost_lines == 0
    ingest_orphans(tmp_path / "journal", database)
    assert ids(database) == {"before", "after"}
    assert "full" not in caplog.text


def test_journal_buffered_lines_are_written_at_close_when_disk_has_space(
    journal: Journal, database: SqliteDatabase, tmp_path: Path
) -> None:
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, before[1]))
    try:
        journal.append(line("kept"))
        assert journal.is_full
        assert journal.full_reason == "its disk is full"
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    journal.close()
    journal.write_buffered_lines()
    assert journal.lost_lines == 0
    ingest_orphans(tmp_path / "journal", database)
    assert ids(database) == {"kept"}


def test_journal_buffered_lines_on_full_disk_at_close_are_counted_and_logged(
    journal: Journal, caplog: pytest.LogCaptureFixture
) -> None:
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, before[1]))
    try:
        journal.append(line("one"))
        journal.append(line("two"))
        journal.close()
        journal.write_buffered_lines()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert journal.lost_lines == 2
    assert "entries at shutdown" in caplog.text
    assert "its disk is full" in caplog.text


def test_journal_write_error_logs_the_reason(journal: Journal, caplog: pytest.LogCaptureFixture) -> None:
    os.close(journal._descriptor)
    file = os.open(journal.path, os.O_RDONLY)  # reuses the closed descriptor's number
    assert file == journal._descriptor
    journal.append(line("kept"))
    assert "Bad file descriptor" in caplog.text
    assert "disk" not in caplog.text
    assert journal.take_buffered_lines() == [line("kept")]


@pytest.mark.parametrize("known_at_start", [[], [True] * 3])
def test_ingest_prices_late_after_start_or_reload_entry_has_its_cost(
    database: SqliteDatabase, tmp_path: Path, known_at_start: list[bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ingest, "PRICE_WAIT_SECONDS", ingest.SCAN_PAUSE_SECONDS * 3.5)
    folder = tmp_path / "journal"
    folder.mkdir()
    known = iter([*known_at_start, False, False, False])  # one for each pause
    arrived, stored = threading.Event(), threading.Event()

    def are_prices_known() -> bool:
        is_known = next(known, None)
        if is_known is None:
            arrived.set()
        elif not is_known and not stored.is_set():
            (folder / "1-1.journal").write_bytes(line("early"))
        return is_known is not False

    def fill_cost(entry: LedgerEntry) -> LedgerEntry:
        stored.set()
        return msgspec.structs.replace(entry, prompt_tokens=1, cost_usd=0.5 if arrived.is_set() else None)

    ingester = JournalIngester(
        folder, SqliteDatabase(tmp_path / "svc.db"), fill_missing_cost=fill_cost, prices_ready=are_prices_known
    )
    ingester.start()
    assert stored.wait(20)
    ingester.close()
    assert [(entry.request_id, entry.cost_usd) for entry in database.list_entries()] == [("early", 0.5)]


def ingest_until_failed(folder: Path, database: Path, scans: int) -> JournalIngester:
    """Start an ingester, and wait until so many scans have begun."""
    begun = threading.Semaphore(0)

    def count_scan() -> bool:
        begun.release()
        return True

    ingester = JournalIngester(folder, SqliteDatabase(database), prices_ready=count_scan)
    ingester.start()
    for _ in range(scans):
        assert begun.acquire(timeout=20)
    return ingester


def test_ingest_error_of_the_disk_is_logged_once_without_traceback(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = tmp_path / "journal"
    folder.mkdir()
    (folder / "1-1.journal").symlink_to("1-1.journal")  # os.open fails, as without a free descriptor
    ingest_until_failed(folder, tmp_path / "svc.db", scans=3).close()
    (record,) = [record for record in caplog.records if record.name == "svc.ledger"]
    assert record.exc_info is None
    assert record.getMessage() == (
        "the journal cannot be read, entries wait in the journal: "
        f"Too many levels of symbolic links: {folder / '1-1.journal'}"
    )


def test_ingest_error_without_a_path_and_its_end_are_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    folder = tmp_path / "journal"
    folder.mkdir()
    os.mkfifo(folder / "1-1.journal")  # os.ftruncate fails, and its error has no path
    ingester = ingest_until_failed(folder, tmp_path / "svc.db", scans=2)
    (folder / "1-1.journal").unlink()
    ingester.close()
    assert [record.getMessage() for record in caplog.records if record.name == "svc.ledger"] == [
        "the journal cannot be read, entries wait in the journal: Invalid argument",
        "entries of the journal reach the ledger database again",
    ]
