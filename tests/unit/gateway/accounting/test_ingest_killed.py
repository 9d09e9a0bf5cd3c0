"""A process is killed (SIGKILL) at each step of ingesting a journal. The next process adds each entry once."""

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
INGEST_SCRIPT = """
import os, signal, sys
from pathlib import Path
from svc.gateway.accounting import ingest
from svc.stores.database.sqlite import SqliteDatabase

folder, step, number = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
passed = 0

def kill_at(at):
    global passed
    passed += at == step
    if passed == number:
        os.kill(os.getpid(), signal.SIGKILL)

def killable(before, after, call):
    def wrapped(*args, **kwargs):
        kill_at(before)
        done = call(*args, **kwargs)
        kill_at(after)
        return done
    return wrapped

class KillableDatabase(SqliteDatabase):
    committed_offset = killable("before query", "after query", SqliteDatabase.committed_offset)
    ingest = killable("before ingest", "after ingest", SqliteDatabase.ingest)
    _insert_batches = killable("before insert", "after insert", SqliteDatabase._insert_batches)
    _upsert_sums = killable("before sums", "after sums", SqliteDatabase._upsert_sums)
    delete_journal = killable("before delete", "after delete", SqliteDatabase.delete_journal)

os.ftruncate = killable("before truncate", "after truncate", os.ftruncate)
Path.unlink = killable("before unlink", "after unlink", Path.unlink)
database = KillableDatabase(folder / "svc.db")
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


def assert_ingested_once(folder: Path, count: int) -> None:
    """Assert that the database has every entry once and that no journal is left."""
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
        ("before query", 1),
        ("after query", 1),
        ("before ingest", 1),
        ("after insert", 1),
        ("after sums", 2),
        ("after ingest", 1),
        ("after ingest", 3),
        ("before truncate", 1),
        ("after truncate", 1),
        ("after delete", 1),
        ("after unlink", 1),
        ("after query", 2),
    ],
)
def test_ingest_killed_at_each_step_adds_every_entry_once(tmp_path: Path, step: str, number: int) -> None:
    folder = tmp_path / "journal"
    folder.mkdir()
    data = b"".join(line(each) for each in range(COUNT))
    assert SEGMENT_BYTES < len(data) < 3 * SEGMENT_BYTES
    (folder / "1-1-a.journal").write_bytes(data)
    (folder / "2-1-a.journal").write_bytes(line(COUNT))
    done = subprocess.run(
        [sys.executable, "-c", INGEST_SCRIPT, str(tmp_path), step, str(number)], timeout=30, check=False
    )
    assert done.returncode == -signal.SIGKILL
    assert_ingested_once(tmp_path, COUNT + 1)


def test_ingest_own_journal_interrupted_adds_every_entry_once(tmp_path: Path) -> None:
    """Entries in the database are kept, and the remaining ones are added."""
    journal = Journal(tmp_path / "journal", max_waiting_bytes=10**9)
    journal.start_new_file()
    with contextlib.closing(SqliteDatabase(tmp_path / "svc.db")) as database:
        ingester = JournalIngester(tmp_path / "journal", database, journal=journal)
        for number in range(COUNT):
            journal.append(line(number))
            if number % 250 == 0:
                ingester.ingest_all()
        assert ingester.ingested_count == 1001
    journal.append(line(COUNT)[:-9])  # the process dies in the middle of a line
    journal.close()
    assert_ingested_once(tmp_path, COUNT)


class CrashingDatabase(SqliteDatabase):
    """A process that dies before it deletes the journal's row."""

    def delete_journal(self, journal: str) -> None:
        raise ChildProcessError


class RacingDatabase(SqliteDatabase):
    """Another worker ingests the journal before this one inserts entries, or before it queries the offset."""

    def __init__(self, path: Path, journal: Journal, race: str) -> None:
        super().__init__(path)
        self.first = journal.path
        self._journal: Journal | None = journal
        self._race = race

    def committed_offset(self, journal: str) -> int:
        if self._race == "before query":
            self._run_other_worker()
        return super().committed_offset(journal)

    def ingest(self, journal: str, start: int, end: int, segment: JournalSegment) -> bool:
        if self._race != "before query":
            self._run_other_worker()
        return super().ingest(journal, start, end, segment)

    def _run_other_worker(self) -> None:
        if self._journal is None:
            return
        self._journal.start_new_file()
        self._journal = None
        with contextlib.closing(SqliteDatabase(self._path)) as other:
            ingest_orphans(self.first.parent, other)
        if self._race == "before insert, and the other worker dies":
            self.first.touch()
            with contextlib.closing(CrashingDatabase(self._path)) as other, pytest.raises(ChildProcessError):
                ingest_orphans(self.first.parent, other)


@pytest.mark.parametrize("race", ["before insert", "before insert, and the other worker dies", "before query"])
def test_ingest_segment_taken_by_other_worker_adds_nothing(tmp_path: Path, race: str) -> None:
    journal = Journal(tmp_path / "journal", max_waiting_bytes=10**9)
    journal.start_new_file()
    for number in range(10):
        journal.append(line(number))
    with contextlib.closing(RacingDatabase(tmp_path / "svc.db", journal, race)) as database:
        ingester = JournalIngester(tmp_path / "journal", database, journal=journal)
        ingester.ingest_all()
        journal.append(line(10))
        ingester.ingest_all()
        assert ingester.ingested_count == 1
        assert not database.first.exists()
        assert (
            len(database._run_statement("SELECT name FROM journals").fetchall()) == 2
        )  # the current journal's, and the lock
    journal.close()
    assert_ingested_once(tmp_path, 11)
