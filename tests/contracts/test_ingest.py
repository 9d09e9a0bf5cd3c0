"""Journals in every Database: an entry gets in once, whoever takes it, and comes back in order. On real servers."""

from __future__ import annotations

import contextlib
import os
import random
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from importlib import resources
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import msgspec
import pytest

from svc.gateway.accounting.ingest import JournalIngester, ingest_orphans
from svc.gateway.accounting.journal import Journal
from svc.stores.database import journal_lines
from svc.stores.database.base import CommitOutcomeUnknown, Database, LedgerEntry, StoreUnavailable
from svc.stores.database.factory import open_database
from svc.stores.database.sql import SqlDatabase
from tests.contracts.test_database import an_entry

Opener = Callable[[], Database]
DAY = datetime(2026, 3, 4, tzinfo=UTC).timestamp()


def made(process: int, number: int, second: float, **fields: object) -> LedgerEntry:
    """A request as our processes number them, so many seconds after a midnight."""
    stamp = datetime.fromtimestamp(DAY + second, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    return an_entry(f"req_{process:016x}{number:08x}", time=stamp, **fields)


def a_journal(*entries: LedgerEntry) -> bytes:
    return b"".join(msgspec.json.encode(entry) + b"\n" for entry in entries)


def requests(database: Database) -> int:
    return sum(each.requests for each in database.aggregate_usage("key"))


def wait_for(wanted: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 5
    while not wanted():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_a_journal_is_taken_from_where_it_stands(database: Database) -> None:
    first, second = a_journal(made(1, 1, 0), made(1, 2, 1)), a_journal(made(1, 3, 2))
    assert database.committed_offset("j") == 0
    assert database.ingest("j", 0, len(first), journal_lines.parse_segment(first))
    assert not database.ingest("j", 0, len(first), journal_lines.parse_segment(first))
    assert database.committed_offset("j") == len(first)
    end = len(first) + len(second)
    assert database.ingest("j", len(first), end, journal_lines.parse_segment(second))
    assert not database.ingest("j", len(first), end, journal_lines.parse_segment(second))
    assert [int(entry.request_id[20:], 16) for entry in database.list_entries()] == [3, 2, 1]
    assert requests(database) == 3
    database.delete_journal("j")
    assert not database.ingest(
        "j", end, end + 1, journal_lines.parse_segment(second)
    )  # who has read it before it was forgotten
    assert not database.ingest("j", 0, end, journal_lines.parse_segment(first + second))
    assert requests(database) == 3


def test_of_two_takers_one_gets_it(opener: Opener, database: Database) -> None:
    parts = [a_journal(*[made(1, 10 * part + number, part) for number in range(10)]) for part in range(20)]
    wins: list[int] = []

    def take(_: int) -> None:
        with contextlib.closing(opener()) as mine:
            for part in parts:
                mine.committed_offset("j")
                wins.append(
                    mine.ingest(
                        "j",
                        (start := parts.index(part) * len(part)),
                        start + len(part),
                        journal_lines.parse_segment(part),
                    )
                )

    assert len({len(part) for part in parts}) == 1
    with ThreadPoolExecutor(3) as pool:
        list(pool.map(take, range(3)))
    assert sum(wins) == len(parts)
    assert requests(database) == len(database.list_entries()) == 200


def test_three_race_for_what_a_dead_process_left(opener: Opener, database: Database, tmp_path: Path) -> None:
    folder = tmp_path / "journal"
    folder.mkdir()
    for number in range(6):
        data = a_journal(*[made(number, each, each / 10, key_id=f"k{each % 3}") for each in range(1500)])
        (folder / f"{number:020d}-1-ab.journal").write_bytes(data + b'{"torn')

    def take(_: int) -> None:
        with contextlib.closing(opener()) as mine:
            for _ in range(3):
                ingest_orphans(folder, mine)

    with ThreadPoolExecutor(3) as pool:
        list(pool.map(take, range(3)))
    assert list(folder.iterdir()) == []
    assert requests(database) == len(database.list_entries(limit=10_000)) == 9000
    assert isinstance(database, SqlDatabase)
    assert database._run_statement("SELECT name FROM journals").fetchall() == [("",)]


def test_entries_come_back_in_order_from_whatever_batches(database: Database) -> None:
    """Three processes, several keys, over midnight; each page and each span is what sorting all of them gives."""
    chance = random.Random(11)
    everything: list[LedgerEntry] = []
    numbers = [0, 0, 0]
    for stretch in range(60):
        process = chance.randrange(3)
        entries = []
        for _ in range(chance.choice((1, 2, 30))):
            numbers[process] += 1
            second = round(stretch * 120 - chance.choice((0.0, 0.001, 0.001, 1, 60, 4000)), 3)
            entries.append(made(process, numbers[process], second, key_id=f"k{chance.choice((0, 0, 0, 1, 2))}"))
        data = a_journal(*entries)
        start = database.committed_offset(f"j{process}")
        assert database.ingest(f"j{process}", start, start + len(data), journal_lines.parse_segment(data))
        everything += entries
    newest = sorted(
        everything, key=lambda entry: (journal_lines.parse_millis(entry.time), entry.request_id), reverse=True
    )
    assert database.list_entries(limit=10_000) == newest
    assert database.list_entries(limit=7) == newest[:7]
    for at in range(0, len(newest), 37):
        assert database.list_entries(before=newest[at].request_id, limit=5) == newest[at + 1 : at + 6]
    for key_id in ("k0", "k1", "k2", "k3"):
        theirs = [entry for entry in newest if entry.key_id == key_id]
        assert database.list_entries(key_id=key_id, limit=10_000) == theirs
        assert sum(each.requests for each in database.aggregate_usage("day", key_id=key_id)) == len(theirs)
    for since, until in ((0, 60), (-3600, 0), (1000.5, 5000.25), (-10_000, 90_000), (3, 3)):
        within = [entry for entry in newest if since <= journal_lines.parse_millis(entry.time) / 1000 - DAY < until]
        assert database.list_entries(since=DAY + since, until=DAY + until, limit=10_000) == within
        assert sum(
            each.requests for each in database.aggregate_usage("key", since=DAY + since, until=DAY + until)
        ) == len(within)
    assert database.list_entries(before="req_" + "f" * 24) == database.list_entries(before="nothing") == []


def test_old_entries_are_forgotten_one_by_one(database: Database) -> None:
    data = a_journal(*[made(1, number, number, key_id=f"k{number % 2}") for number in range(100)])
    database.committed_offset("j")
    assert database.ingest("j", 0, len(data), journal_lines.parse_segment(data))
    assert [database.prune_entries(DAY + 50, limit=20) for _ in range(4)] == [20, 20, 10, 0]
    left = database.list_entries()
    assert [int(entry.request_id[20:], 16) for entry in left] == list(range(99, 49, -1))
    assert database.list_entries(before=left[10].request_id, limit=1) == [left[11]]
    assert (database.prune_entries(DAY + 1000), database.list_entries(), requests(database)) == (50, [], 100)


def test_entries_without_a_place_are_looked_for(database: Database) -> None:
    there = [made(1, number, number) for number in range(0, 100, 2)]
    data = a_journal(*there)
    database.committed_offset("j")
    assert database.ingest("j", 0, len(data), journal_lines.parse_segment(data))
    assert database.insert_entries(there) == 0
    assert database.insert_entries([made(1, number, number) for number in range(100)]) == 50
    assert database.insert_entries([made(1, number, number) for number in range(101)]) == 1
    assert database.insert_entries([made(2, 4, 4), there[2]]) == 1
    assert len(database.list_entries()) == requests(database) == 102


def test_a_damaged_batch_is_said_and_does_not_hold_up_what_comes(database: Database, tmp_path: Path) -> None:
    data = a_journal(*[made(1, number, number) for number in range(100)])
    assert database.ingest("j", database.committed_offset("j"), len(data), journal_lines.parse_segment(data))
    assert isinstance(database, SqlDatabase)
    database._run_statement("UPDATE batches SET zipped = ?", (b"\x78\x01" + bytes(100),))
    wanted: tuple[Callable[[], object], ...] = (
        database.list_entries,
        lambda: database.aggregate_usage("key", since=DAY + 50),
        lambda: database.prune_entries(DAY + 50),
        lambda: database.insert_entries([made(1, 50, 50)]),
    )
    for question in wanted:
        with pytest.raises(StoreUnavailable, match="damaged"):
            question()
    folder = tmp_path / "journal"
    folder.mkdir()
    intake = JournalIngester(folder, database, retain_days=(time.time() - DAY - 50) / 86400)
    with pytest.raises(StoreUnavailable, match="damaged"):
        intake.ingest_all()
    (folder / "00001790000000000000-77-1.journal").write_bytes(a_journal(made(2, 1, 0)))
    intake.ingest_all()
    assert requests(database) == 101
    assert not intake.is_down


def older(database: SqlDatabase) -> None:
    """A database of the first version of the schema."""
    text = resources.files("svc.stores.database").joinpath("schema", "0001.sql").read_text(encoding="utf-8")
    for statement in (
        "CREATE TABLE schema_version (version INTEGER NOT NULL)",
        *filter(str.strip, text.split(";\n")),
        "INSERT INTO schema_version VALUES (1)",
    ):
        database._run_statement(statement)


def add_as_before(database: SqlDatabase, entry: LedgerEntry) -> None:
    when = journal_lines.parse_millis(entry.time)
    packed = msgspec.json.encode(msgspec.structs.astuple(entry)).decode()
    database._run_statement("INSERT INTO entries VALUES (?, ?, ?, ?)", (entry.request_id, when, entry.key_id, packed))
    spot = (when // 3_600_000 * 3600, entry.key_id, entry.model, entry.provider, "{}", entry.key_name)
    for table in ("hours", "days"):
        database._run_statement(
            f"INSERT INTO {table} VALUES (?, ?, ?, ?, ?, ?, 1, ?, ?, ?, 1) ON CONFLICT (key_id, start, model, provider,"
            f" tags) DO UPDATE SET requests = {table}.requests + 1",
            (*spot, entry.prompt_tokens, entry.completion_tokens, entry.cost_usd),
        )


def test_entries_of_an_older_version_stay(opener: Opener, tmp_path: Path) -> None:
    """And of a journal that it had taken in part, the rest is taken."""
    before = [made(1, number, number, key_id=f"k{number % 2}") for number in range(40)] + [an_entry("r1")]
    folder = tmp_path / "journal"
    folder.mkdir()
    rest = [made(1, number, number, key_id=f"k{number % 2}") for number in range(30, 60)]
    (folder / "00001790000000000000-77.journal").write_bytes(a_journal(*rest))
    with contextlib.closing(opener()) as database:
        assert isinstance(database, SqlDatabase)
        older(database)
        for entry in before:
            add_as_before(database, entry)
        database.migrate()
        newest = sorted(
            before, key=lambda entry: (journal_lines.parse_millis(entry.time), entry.request_id), reverse=True
        )
        assert database.list_entries() == newest
        assert (
            database.list_entries(key_id="k1", before=newest[3].request_id, limit=3)
            == [entry for entry in newest[4:] if entry.key_id == "k1"][:3]
        )
        assert requests(database) == 41
        ingest_orphans(folder, database)
        assert list(folder.iterdir()) == []
        assert requests(database) == len(database.list_entries()) == 61
        assert database.insert_entries(before) == 0
        assert database.prune_entries(DAY + 20) == 20
        assert database.prune_entries(DAY + 86_400) == 41


class Relay:
    """Between a client and PostgreSQL. Told to, it hands on the next commit, and lets nobody know how that went."""

    def __init__(self, path: Path, server: str) -> None:
        self.cuts = False
        self._server = server
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(path))
        self._listener.listen()
        self._listener.settimeout(0.2)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._accept)
        self._thread.start()

    def close(self) -> None:
        self._stop.set()
        self._thread.join(5)
        self._listener.close()

    def _accept(self) -> None:
        with ThreadPoolExecutor() as pool:
            while not self._stop.is_set():
                with contextlib.suppress(TimeoutError):
                    client, _ = self._listener.accept()
                    server = socket.socket(socket.AF_UNIX)
                    server.connect(self._server)
                    pool.submit(self._forth, client, server)
                    pool.submit(self._back, client, server)

    def _forth(self, client: socket.socket, server: socket.socket) -> None:
        while data := client.recv(2**20):
            if b"COMMIT" in data and self.cuts:
                self.cuts = False
                client.shutdown(socket.SHUT_RDWR)
            server.sendall(data)
        server.shutdown(socket.SHUT_WR)

    def _back(self, client: socket.socket, server: socket.socket) -> None:
        while data := server.recv(2**20):
            with contextlib.suppress(OSError):
                client.sendall(data)
        client.close()
        server.close()


@pytest.fixture
def cut_off(postgres: Callable[[], str], tmp_path: Path) -> Iterator[tuple[Relay, Database]]:
    address = urlsplit(postgres())
    where = parse_qs(address.query)["host"][0]
    relay = Relay(tmp_path / ".s.PGSQL.5432", str(next(Path(where).glob(".s.PGSQL.*[0-9]"))))
    database = open_database(f"postgresql://{address.username}:@{address.path}?host={tmp_path}")
    database.migrate()
    yield relay, database
    database.close()
    relay.close()


def test_a_commit_that_was_not_heard_of(cut_off: tuple[Relay, Database], tmp_path: Path) -> None:
    relay, database = cut_off
    journal = Journal(tmp_path / "journal", max_waiting_bytes=10**9)
    journal.start_new_file()
    intake = JournalIngester(tmp_path / "journal", database, journal=journal)
    intake.ingest_all()
    (tmp_path / "journal" / "1-1-a.journal").write_bytes(a_journal(*[made(2, number, number) for number in range(900)]))
    for number in range(6):
        journal.append(a_journal(made(1, number, number)))
        relay.cuts = True
        with pytest.raises(CommitOutcomeUnknown):
            intake.ingest_all()
        if number % 2:  # else it may be under way yet when the next one begins
            time.sleep(0.05)
    wait_for(lambda: requests(database) > 2)  # most of them were done
    intake.ingest_all()
    journal.close()
    ingest_orphans(tmp_path / "journal", database)
    assert list((tmp_path / "journal").iterdir()) == []
    assert requests(database) == len(database.list_entries()) == 906


def test_lines_in_memory_whose_commit_was_not_heard_of(cut_off: tuple[Relay, Database], tmp_path: Path) -> None:
    """They may be in the database, so no journal may get them any more."""
    relay, database = cut_off
    journal = Journal(tmp_path / "journal", max_waiting_bytes=10**9)
    journal.start_new_file()
    intake = JournalIngester(tmp_path / "journal", database, journal=journal)
    intake.ingest_all()
    journal.is_full = True  # as it is while the disk is
    journal.append(a_journal(made(1, 1, 1)))
    relay.cuts = True
    with pytest.raises(CommitOutcomeUnknown):
        intake.ingest_all()
    wait_for(lambda: requests(database) == 1)
    journal.append(a_journal(made(1, 2, 2)))
    journal.recover()
    assert not journal.is_full
    assert os.path.getsize(journal.path) == len(a_journal(made(1, 2, 2)))
    intake.ingest_all()
    journal.close()
    assert requests(database) == len(database.list_entries()) == 2
