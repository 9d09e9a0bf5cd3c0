"""The journal on a disk that fills up, and the taking in of what lies there."""

from __future__ import annotations

import contextlib
import errno
import os
import resource
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

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


def test_a_disk_that_is_full_and_then_is_not(journal: Journal, database: SqliteDatabase, tmp_path: Path) -> None:
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (len(line("r00")) * 3 + 10, before[1]))  # the fourth is cut within
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


def test_a_full_disk_takes_nothing_that_was_written_before(
    journal: Journal, database: SqliteDatabase, tmp_path: Path
) -> None:
    """A file that could not be followed by another one goes on, and is longer then than a file ought to be."""
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


def test_torn_and_broken_lines_cost_only_themselves(database: SqliteDatabase, tmp_path: Path) -> None:
    folder = tmp_path / "journal"
    folder.mkdir()
    (folder / "1-1-a.journal").write_bytes(line("a") + b"{nonsense\n\xff\xfe\n\n" + line("b") + line("torn")[:-20])
    (folder / "2-1-a.journal").write_bytes(b"")
    intake = JournalIngester(folder, database)
    intake.ingest_all()
    assert ids(database) == {"a", "b"}
    assert (intake.ingested_count, intake.broken_lines) == (2, 4)
    assert list(folder.iterdir()) == []


@pytest.mark.parametrize("kind", ["another user's", "a folder"])
def test_what_cannot_be_opened_keeps_nothing_else_from_the_ledger(
    database: SqliteDatabase,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    kind: str,
) -> None:
    folder = tmp_path / "journal"
    strange = folder / "1-1-a.journal"
    strange.mkdir(parents=True)
    (folder / "2-1-a.journal").write_bytes(line("a"))
    real = os.open

    def refuse(path: Any, *rest: Any) -> int:  # root, who may run this, is refused nothing
        if path == strange:
            raise PermissionError(errno.EACCES, "Permission denied")
        return real(path, *rest)

    if kind == "another user's":
        monkeypatch.setattr(os, "open", refuse)
    intake = JournalIngester(folder, database)
    intake.ingest_all()
    intake.ingest_all()
    assert ids(database) == {"a"}
    assert intake.unreadable_journals == {strange.name}
    assert caplog.text.count("1-1-a.journal is left alone") == 1
    strange.rename(folder / "kept")
    intake.ingest_all()
    assert intake.unreadable_journals == set()


def test_a_journal_that_is_being_written_is_left_alone(
    journal: Journal, database: SqliteDatabase, tmp_path: Path
) -> None:
    journal.append(line("a"))
    ingest_orphans(tmp_path / "journal", database)
    assert journal.path.exists()
    assert ids(database) == set()


def test_its_own_journal_is_taken_bit_by_bit(journal: Journal, database: SqliteDatabase, tmp_path: Path) -> None:
    intake = JournalIngester(tmp_path / "journal", database, journal=journal)
    journal.append(line("a"))
    intake.ingest_all()
    journal.append(line("b"))
    journal.start_new_file()
    journal.append(line("c"))
    intake.ingest_all()
    assert ids(database) == {"a", "b", "c"}
    assert intake.ingested_count == 3
    assert list((tmp_path / "journal").iterdir()) == [journal.path]


class Turning(SqliteDatabase):
    """The journal begins a new file while this takes in the one before."""

    journal: Journal | None = None

    def ingest(self, journal: str, start: int, end: int, segment: JournalSegment) -> bool:
        if self.journal is not None:
            self.journal.append(line("late"))
            self.journal.start_new_file()
            self.journal = None
        return super().ingest(journal, start, end, segment)


def test_a_journal_that_is_let_go_of_while_it_is_taken(journal: Journal, tmp_path: Path) -> None:
    with contextlib.closing(Turning(tmp_path / "svc.db")) as database:
        database.migrate()
        intake = JournalIngester(tmp_path / "journal", database, journal=journal)
        journal.append(line("a"))
        first = journal.path
        database.journal = journal
        intake.ingest_all()
        assert not first.exists()
        journal.append(line("b"))
        intake.ingest_all()
        assert ids(database) == {"a", "late", "b"}
        assert intake.ingested_count == 3
        assert list((tmp_path / "journal").iterdir()) == [journal.path]


class Busy(SqliteDatabase):
    """A request is answered while this takes in what a dead process left behind."""

    def __init__(self, path: Path, journal: Journal) -> None:
        super().__init__(path)
        self.journal = journal
        self.order: list[str] = []

    def ingest(self, journal: str, start: int, end: int, segment: JournalSegment) -> bool:
        self.order += [batch.id for batch in segment.batches]
        if self.order == ["dead0"]:
            self.journal.append(line("new"))
        return super().ingest(journal, start, end, segment)


def test_new_entries_do_not_wait_for_all_that_has_piled_up(journal: Journal, tmp_path: Path) -> None:
    for number in range(3):
        (tmp_path / "journal" / f"{number}-1-a.journal").write_bytes(line(f"dead{number}"))
    with contextlib.closing(Busy(tmp_path / "svc.db", journal)) as database:
        database.migrate()
        JournalIngester(tmp_path / "journal", database, journal=journal).ingest_all()
        assert database.order == ["dead0", "new", "dead1", "dead2"]


@pytest.mark.parametrize("torn", [False, True])
def test_a_long_journal_of_the_dead_is_taken_whole(database: SqliteDatabase, tmp_path: Path, torn: bool) -> None:
    folder = tmp_path / "journal"
    folder.mkdir()
    whole = b"".join(line(f"r{number:05d}") for number in range(3000))
    assert len(whole) > 2 * SEGMENT_BYTES
    (folder / "1-1-a.journal").write_bytes(whole + (line("torn")[:-1] if torn else b""))
    intake = JournalIngester(folder, database)
    intake.ingest_all()
    assert (intake.ingested_count, intake.broken_lines) == (3000, int(torn))
    assert list(folder.iterdir()) == []


def test_what_piled_up_is_taken_between_rests_and_without_them_at_the_end(journal: Journal, tmp_path: Path) -> None:
    """The thread rests between batches, but not once it is told to end."""
    path = tmp_path / "svc.db"
    intake = JournalIngester(tmp_path / "journal", SqliteDatabase(path), journal=journal)
    intake.start()
    for number in range(6000):
        journal.append(line(f"r{number:05d}"))
    deadline = time.monotonic() + 10
    while intake.ingested_count < 3000 and time.monotonic() < deadline:
        time.sleep(0.02)
    for number in range(6000, 9000):
        journal.append(line(f"r{number:05d}"))
    journal.close()
    intake.close()
    assert intake.ingested_count == 9000
    with contextlib.closing(SqliteDatabase(path)) as found:
        assert len(found.list_entries(limit=10_000)) == 9000


def test_old_entries_are_forgotten_from_the_first_look_on(tmp_path: Path, database: SqliteDatabase) -> None:
    for number in range(3):
        database.insert_entries([msgspec.json.decode(line(f"r{number}"), type=LedgerEntry)])
    JournalIngester(tmp_path / "journal", database, retain_days=100_000).ingest_all()
    assert len(ids(database)) == 3
    JournalIngester(tmp_path / "journal", database, retain_days=1).ingest_all()
    assert ids(database) == set()
    assert [each.requests for each in database.aggregate_usage("key")] == [3]


def test_line_after_close_is_written_to_a_file_of_its_own(
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


def test_lines_in_memory_are_written_when_the_disk_has_room_at_the_end(
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


def test_lines_that_find_no_room_at_the_end_are_counted_and_logged(
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
    assert "entries lost at the end of the journal" in caplog.text
    assert "its disk is full" in caplog.text


def test_journal_that_cannot_be_written_names_the_reason(journal: Journal, caplog: pytest.LogCaptureFixture) -> None:
    os.close(journal._descriptor)
    file = os.open(journal.path, os.O_RDONLY)  # takes the number of the one that was closed
    assert file == journal._descriptor
    journal.append(line("kept"))
    assert "Bad file descriptor" in caplog.text
    assert "disk" not in caplog.text
    assert journal.take_buffered_lines() == [line("kept")]
