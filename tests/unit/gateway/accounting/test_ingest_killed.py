"""A process is killed (SIGKILL) at every step of taking a journal; whoever comes next leaves each entry there once."""

from __future__ import annotations

import contextlib
import signal
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from svc.gateway.accounting.ingest import JournalIngester, ingest_orphans
from svc.gateway.accounting.journal import SEGMENT_BYTES, Journal
from svc.stores.database.base import LedgerEntry
from svc.stores.database.segment import JournalSegment
from svc.stores.database.sqlite import SqliteDatabase

COUNT = 1200
TAKER = """
import os, signal, sys
from pathlib import Path
from svc.gateway.accounting import ingest
from svc.stores.database.sqlite import SqliteDatabase

folder, step, number = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
passed = 0

def die(at):
    global passed
    passed += at == step
    if passed == number:
        os.kill(os.getpid(), signal.SIGKILL)

def dying(before, after, call):
    def wrapped(*args, **kwargs):
        die(before)
        done = call(*args, **kwargs)
        die(after)
        return done
    return wrapped

class Dying(SqliteDatabase):
    committed_offset = dying("to ask", "asked", SqliteDatabase.committed_offset)
    ingest = dying("to take", "taken", SqliteDatabase.ingest)
    _insert_batches = dying("to add", "added", SqliteDatabase._insert_batches)
    _upsert_sums = dying("to sum", "summed", SqliteDatabase._upsert_sums)
    delete_journal = dying("to forget", "forgotten", SqliteDatabase.delete_journal)

os.ftruncate = dying("to empty", "emptied", os.ftruncate)
Path.unlink = dying("to delete", "deleted", Path.unlink)
database = Dying(folder / "svc.db")
database.migrate()
ingest.ingest_orphans(folder / "journal", database)
"""


def line(number: int) -> bytes:
    entry = LedgerEntry(
        time=f"2026-03-04T10:20:{number % 60:02}.456Z",
        request_id=f"req_{1:016x}{number:08x}",
        key_id="k",
        key_name="n",
        endpoint="/v1/chat/completions",
        attempts=1,
        status="ok",
        http_status=200,
        latency_ms=1.0,
    )
    return msgspec.json.encode(entry) + b"\n"


def check(folder: Path, count: int) -> None:
    """Every entry once, and nothing is left over."""
    with contextlib.closing(SqliteDatabase(folder / "svc.db")) as database:
        database.migrate()
        ingest_orphans(folder / "journal", database)
        found = [entry.request_id for entry in database.list_entries(limit=10_000)]
        assert len(found) == len(set(found)) == count
        assert [each.requests for each in database.aggregate_usage("key")] == [count]
        assert database._run_statement("SELECT name FROM journals").fetchall() == [("",)]
    assert list((folder / "journal").iterdir()) == []


@pytest.mark.parametrize(
    ("step", "number"),
    [
        ("to ask", 1),
        ("asked", 1),
        ("to take", 1),
        ("added", 1),
        ("summed", 2),
        ("taken", 1),
        ("taken", 3),
        ("to empty", 1),
        ("emptied", 1),
        ("forgotten", 1),
        ("deleted", 1),
        ("asked", 2),
    ],
)
def test_killed_while_it_takes(tmp_path: Path, step: str, number: int) -> None:
    folder = tmp_path / "journal"
    folder.mkdir()
    data = b"".join(line(each) for each in range(COUNT))
    assert SEGMENT_BYTES < len(data) < 3 * SEGMENT_BYTES
    (folder / "1-1-a.journal").write_bytes(data)
    (folder / "2-1-a.journal").write_bytes(line(COUNT))
    done = subprocess.run([sys.executable, "-c", TAKER, str(tmp_path), step, str(number)], timeout=30, check=False)
    assert done.returncode == -signal.SIGKILL
    check(tmp_path, COUNT + 1)


def test_killed_while_it_takes_its_own(tmp_path: Path) -> None:
    """What is in stays in, and the rest follows."""
    journal = Journal(tmp_path / "journal", max_waiting_bytes=10**9)
    journal.start_new_file()
    with contextlib.closing(SqliteDatabase(tmp_path / "svc.db")) as database:
        intake = JournalIngester(tmp_path / "journal", database, journal=journal)
        for number in range(COUNT):
            journal.append(line(number))
            if number % 250 == 0:
                intake.ingest_all()
        assert intake.ingested_count == 1001
    journal.append(line(COUNT)[:-9])  # it dies in the middle of a line
    journal.close()
    check(tmp_path, COUNT)


class Forgetful(SqliteDatabase):
    """Of a process that dies before it has the journal forgotten."""

    def delete_journal(self, journal: str) -> None:
        raise ChildProcessError


class Late(SqliteDatabase):
    """Others take the journal between our reading of it and our adding, or before we ask how much of it is in."""

    def __init__(self, path: Path, journal: Journal, late: str) -> None:
        super().__init__(path)
        self.first = journal.path
        self._journal: Journal | None = journal
        self._late = late

    def committed_offset(self, journal: str) -> int:
        if self._late == "asks":
            self._others()
        return super().committed_offset(journal)

    def ingest(self, journal: str, start: int, end: int, segment: JournalSegment) -> bool:
        if self._late != "asks":
            self._others()
        return super().ingest(journal, start, end, segment)

    def _others(self) -> None:
        if self._journal is None:
            return
        self._journal.start_new_file()
        self._journal = None
        with contextlib.closing(SqliteDatabase(self._path)) as other:
            ingest_orphans(self.first.parent, other)
        if self._late == "adds, and others die":
            self.first.touch()
            with contextlib.closing(Forgetful(self._path)) as other, pytest.raises(ChildProcessError):
                ingest_orphans(self.first.parent, other)


@pytest.mark.parametrize("late", ["adds", "adds, and others die", "asks"])
def test_one_that_is_late_adds_nothing(tmp_path: Path, late: str) -> None:
    journal = Journal(tmp_path / "journal", max_waiting_bytes=10**9)
    journal.start_new_file()
    for number in range(10):
        journal.append(line(number))
    with contextlib.closing(Late(tmp_path / "svc.db", journal, late)) as database:
        intake = JournalIngester(tmp_path / "journal", database, journal=journal)
        intake.ingest_all()
        journal.append(line(10))
        intake.ingest_all()
        assert intake.ingested_count == 1
        assert not database.first.exists()
        assert (
            len(database._run_statement("SELECT name FROM journals").fetchall()) == 2
        )  # the present one's, and the lock
    journal.close()
    check(tmp_path, 11)
