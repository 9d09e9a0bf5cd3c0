"""Journal ingestion into every database: each entry is stored once and listed in order. Uses real servers."""

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

from svc.gateway.accounting import ingest
from svc.gateway.accounting.ingest import JournalIngester, ingest_orphans
from svc.gateway.accounting.journal import Journal
from svc.stores.database import journal_lines
from svc.stores.database.base import CommitOutcomeUnknown, Database, LedgerEntry, StoreUnavailable
from svc.stores.database.factory import open_database
from svc.stores.database.sql import SqlDatabase
from tests.contracts.test_database import make_entry

Opener = Callable[[], Database]
DAY = datetime(2026, 3, 4, tzinfo=UTC).timestamp()


def make_numbered_entry(process: int, number: int, second: float, **fields: object) -> LedgerEntry:
    """Return an entry with a request id of a gateway process, `second` seconds after midnight."""
    stamp = datetime.fromtimestamp(DAY + second, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    return make_entry(f"req_{process:016x}{number:08x}", time=stamp, **fields)


def encode_journal(*entries: LedgerEntry) -> bytes:
    return b"".join(msgspec.json.encode(entry) + b"\n" for entry in entries)


def count_requests(database: Database) -> int:
    return sum(each.requests for each in database.aggregate_usage("key"))


def wait_for(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 5
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_ingest_each_segment_is_committed_once(database: Database) -> None:
    first, second = (
        encode_journal(make_numbered_entry(1, 1, 0), make_numbered_entry(1, 2, 1)),
        encode_journal(make_numbered_entry(1, 3, 2)),
    )
    assert database.committed_offset("j") == 0
    assert database.ingest("j", 0, len(first), journal_lines.parse_segment(first))
    assert not database.ingest("j", 0, len(first), journal_lines.parse_segment(first))
    assert database.committed_offset("j") == len(first)
    end = len(first) + len(second)
    assert database.ingest("j", len(first), end, journal_lines.parse_segment(second))
    assert not database.ingest("j", len(first), end, journal_lines.parse_segment(second))
    assert [int(entry.request_id[20:], 16) for entry in database.list_entries()] == [3, 2, 1]
    assert count_requests(database) == 3
    database.delete_journal("j")
    # A process that read the journal before it was deleted.
    assert not database.ingest("j", end, end + 1, journal_lines.parse_segment(second))
    assert not database.ingest("j", 0, end, journal_lines.parse_segment(first + second))
    assert count_requests(database) == 3


def test_ingest_concurrent_processes_commit_each_segment_once(opener: Opener, database: Database) -> None:
    parts = [
        encode_journal(*[make_numbered_entry(1, 10 * part + number, part) for number in range(10)])
        for part in range(20)
    ]
    wins: list[int] = []

    def ingest_in_process(_: int) -> None:
        with contextlib.closing(opener()) as own:
            for part in parts:
                own.committed_offset("j")
                wins.append(
                    own.ingest(
                        "j",
                        (start := parts.index(part) * len(part)),
                        start + len(part),
                        journal_lines.parse_segment(part),
                    )
                )

    assert len({len(part) for part in parts}) == 1
    with ThreadPoolExecutor(3) as pool:
        list(pool.map(ingest_in_process, range(3)))
    assert sum(wins) == len(parts)
    assert count_requests(database) == len(database.list_entries()) == 200


MANY_KEYS = 150
"""Keys of a segment that PostgreSQL copies: more than `MIN_COPY_ROWS`."""


def make_segment_of_many_keys(process: int, **fields: object) -> bytes:
    """Return a journal with two entries of each key. One key has enough entries for a compressed batch."""
    entries = [
        make_numbered_entry(process, 2 * number + each, number, key_id=f"k{number}", **fields)
        for number in range(MANY_KEYS)
        for each in range(2)
    ]
    entries += [make_numbered_entry(process, 1000 + number, 1, key_id="k0", **fields) for number in range(100)]
    return encode_journal(*entries)


def test_ingest_segments_of_many_keys_add_up_to_exact_sums(opener: Opener, database: Database) -> None:
    parts = [make_segment_of_many_keys(number, cost_usd=0.25, tags={"team": 'a"b\\c\td'}) for number in range(6)]

    def ingest_parts(numbers: range) -> None:
        with contextlib.closing(opener()) as own:
            for number in numbers:
                own.committed_offset(f"j{number}")
                assert own.ingest(f"j{number}", 0, len(parts[number]), journal_lines.parse_segment(parts[number]))

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(ingest_parts, (range(0, 6, 2), range(1, 6, 2))))
    sums = {usage.value: (usage.requests, usage.cost_usd) for usage in database.aggregate_usage("key")}
    assert sums == {"k0": (6 * 102, 6 * 102 / 4)} | {f"k{each}": (12, 3.0) for each in range(1, MANY_KEYS)}
    assert len(database.list_entries(limit=10_000)) == 6 * (2 * MANY_KEYS + 100)
    assert {entry.tags["team"] for entry in database.list_entries(limit=10)} == {'a"b\\c\td'}
    assert len(database.list_entries(key_id="k149")) == 12


def test_ingest_batches_of_many_keys_that_exist_do_not_block(database: Database) -> None:
    segment = journal_lines.parse_segment(make_segment_of_many_keys(1))
    for journal in ("first", "copy of it"):
        database.committed_offset(journal)
        assert database.ingest(journal, 0, 1, segment)
    assert len(database.list_entries(limit=10_000)) == 2 * MANY_KEYS + 100


def test_ingest_orphans_concurrent_processes_ingest_each_journal_once(
    opener: Opener, database: Database, tmp_path: Path
) -> None:
    folder = tmp_path / "journal"
    folder.mkdir()
    for number in range(6):
        data = encode_journal(
            *[make_numbered_entry(number, each, each / 10, key_id=f"k{each % 3}") for each in range(1500)]
        )
        (folder / f"{number:020d}-1-ab.journal").write_bytes(data + b'{"torn')

    def ingest_in_process(_: int) -> None:
        with contextlib.closing(opener()) as own:
            for _ in range(3):
                ingest_orphans(folder, own)

    with ThreadPoolExecutor(3) as pool:
        list(pool.map(ingest_in_process, range(3)))
    assert list(folder.iterdir()) == []
    assert count_requests(database) == len(database.list_entries(limit=10_000)) == 9000
    assert isinstance(database, SqlDatabase)
    assert database._run_statement("SELECT name FROM journals").fetchall() == [("",)]


def test_ingest_entries_of_mixed_batches_are_listed_in_order(database: Database) -> None:
    """Three processes and several keys around midnight. Each page and span equals a slice of all sorted entries."""
    rng = random.Random(11)
    all_entries: list[LedgerEntry] = []
    numbers = [0, 0, 0]
    for segment in range(60):
        process = rng.randrange(3)
        entries = []
        for _ in range(rng.choice((1, 2, 30))):
            numbers[process] += 1
            second = round(segment * 120 - rng.choice((0.0, 0.001, 0.001, 1, 60, 4000)), 3)
            entries.append(
                make_numbered_entry(process, numbers[process], second, key_id=f"k{rng.choice((0, 0, 0, 1, 2))}")
            )
        data = encode_journal(*entries)
        start = database.committed_offset(f"j{process}")
        assert database.ingest(f"j{process}", start, start + len(data), journal_lines.parse_segment(data))
        all_entries += entries
    newest = sorted(
        all_entries, key=lambda entry: (journal_lines.parse_millis(entry.time), entry.request_id), reverse=True
    )
    assert database.list_entries(limit=10_000) == newest
    assert database.list_entries(limit=7) == newest[:7]
    for at in range(0, len(newest), 37):
        assert database.list_entries(before=newest[at].request_id, limit=5) == newest[at + 1 : at + 6]
    for key_id in ("k0", "k1", "k2", "k3"):
        of_key = [entry for entry in newest if entry.key_id == key_id]
        assert database.list_entries(key_id=key_id, limit=10_000) == of_key
        assert sum(each.requests for each in database.aggregate_usage("day", key_id=key_id)) == len(of_key)
    for since, until in ((0, 60), (-3600, 0), (1000.5, 5000.25), (-10_000, 90_000), (3, 3)):
        within = [entry for entry in newest if since <= journal_lines.parse_millis(entry.time) / 1000 - DAY < until]
        assert database.list_entries(since=DAY + since, until=DAY + until, limit=10_000) == within
        assert sum(
            each.requests for each in database.aggregate_usage("key", since=DAY + since, until=DAY + until)
        ) == len(within)
    assert database.list_entries(before="req_" + "f" * 24) == database.list_entries(before="nothing") == []


def test_prune_entries_within_a_batch_deletes_only_old_ones(database: Database) -> None:
    data = encode_journal(*[make_numbered_entry(1, number, number, key_id=f"k{number % 2}") for number in range(100)])
    database.committed_offset("j")
    assert database.ingest("j", 0, len(data), journal_lines.parse_segment(data))
    assert [database.prune_entries(DAY + 50, limit=20) for _ in range(4)] == [20, 20, 10, 0]
    left = database.list_entries()
    assert [int(entry.request_id[20:], 16) for entry in left] == list(range(99, 49, -1))
    assert database.list_entries(before=left[10].request_id, limit=1) == [left[11]]
    assert (database.prune_entries(DAY + 1000), database.list_entries(), count_requests(database)) == (50, [], 100)


def test_insert_entries_already_in_batches_are_skipped(database: Database) -> None:
    stored = [make_numbered_entry(1, number, number) for number in range(0, 100, 2)]
    data = encode_journal(*stored)
    database.committed_offset("j")
    assert database.ingest("j", 0, len(data), journal_lines.parse_segment(data))
    assert database.insert_entries(stored) == 0
    assert database.insert_entries([make_numbered_entry(1, number, number) for number in range(100)]) == 50
    assert database.insert_entries([make_numbered_entry(1, number, number) for number in range(101)]) == 1
    assert database.insert_entries([make_numbered_entry(2, 4, 4), stored[2]]) == 1
    assert len(database.list_entries()) == count_requests(database) == 102


def test_ingest_damaged_batch_is_reported_and_later_entries_are_ingested(database: Database, tmp_path: Path) -> None:
    data = encode_journal(*[make_numbered_entry(1, number, number) for number in range(100)])
    assert database.ingest("j", database.committed_offset("j"), len(data), journal_lines.parse_segment(data))
    assert isinstance(database, SqlDatabase)
    database._run_statement("UPDATE batches SET zipped = ?", (b"\x78\x01" + bytes(100),))
    calls: tuple[Callable[[], object], ...] = (
        database.list_entries,
        lambda: database.aggregate_usage("key", since=DAY + 50),
        lambda: database.prune_entries(DAY + 50),
        lambda: database.insert_entries([make_numbered_entry(1, 50, 50)]),
    )
    for call in calls:
        with pytest.raises(StoreUnavailable, match="damaged"):
            call()
    folder = tmp_path / "journal"
    folder.mkdir()
    ingester = JournalIngester(folder, database, retain_days=(time.time() - DAY - 50) / 86400)
    with pytest.raises(StoreUnavailable, match="damaged"):
        ingester.ingest_all()
    (folder / "00001790000000000000-77-1.journal").write_bytes(encode_journal(make_numbered_entry(2, 1, 0)))
    ingester.ingest_all()
    assert count_requests(database) == 101
    assert not ingester.is_down


def test_ingest_orphans_without_time_leaves_journals_to_the_next_scan(database: Database, tmp_path: Path) -> None:
    folder = tmp_path / "journal"
    folder.mkdir()
    for process in range(3):
        journal = encode_journal(*[make_numbered_entry(process, number, number) for number in range(10)])
        (folder / f"0179000000000000000{process}-77-{process}.journal").write_bytes(journal)
    assert not ingest_orphans(folder, database, max_seconds=0.0)
    assert count_requests(database) == 0
    assert len([*folder.iterdir()]) == 3
    assert ingest_orphans(folder, database, max_seconds=60.0)
    assert count_requests(database) == 30
    assert not [*folder.iterdir()]


def test_ingest_scan_that_takes_long_is_logged_once(
    database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    journal = Journal(tmp_path, max_waiting_bytes=1 << 20)
    journal.start_new_file()
    ingester = JournalIngester(tmp_path, database, journal=journal)
    monkeypatch.setattr(ingest, "LATE_LAG_SECONDS", -1.0)
    for _ in range(2):
        ingester.ingest_all()
    (record,) = caplog.records
    assert record.getMessage().startswith("entries reach the ledger database 0 s late: ")
    monkeypatch.setattr(ingest, "LATE_LAG_SECONDS", 3600.0)
    for _ in range(2):
        ingester.ingest_all()
    assert [record.getMessage() for record in caplog.records[1:]] == ["entries reach the ledger database in time again"]


def create_schema_1(database: SqlDatabase) -> None:
    """Create the schema of version 1."""
    text = resources.files("svc.stores.database").joinpath("schema", "0001.sql").read_text(encoding="utf-8")
    for statement in (
        "CREATE TABLE schema_version (version INTEGER NOT NULL)",
        *filter(str.strip, text.split(";\n")),
        "INSERT INTO schema_version VALUES (1)",
    ):
        database._run_statement(statement)


def insert_with_schema_1(database: SqlDatabase, entry: LedgerEntry) -> None:
    when = journal_lines.parse_millis(entry.time)
    packed = msgspec.json.encode(msgspec.structs.astuple(entry)).decode()
    database._run_statement("INSERT INTO entries VALUES (?, ?, ?, ?)", (entry.request_id, when, entry.key_id, packed))
    sum_key = (when // 3_600_000 * 3600, entry.key_id, entry.model, entry.provider, "{}", entry.key_name)
    for table in ("hours", "days"):
        database._run_statement(
            f"INSERT INTO {table} VALUES (?, ?, ?, ?, ?, ?, 1, ?, ?, ?, 1) ON CONFLICT (key_id, start, model, provider,"
            f" tags) DO UPDATE SET requests = {table}.requests + 1",
            (*sum_key, entry.prompt_tokens, entry.completion_tokens, entry.cost_usd),
        )


def test_migrate_from_schema_1_keeps_entries_and_ingests_the_rest(opener: Opener, tmp_path: Path) -> None:
    """A journal that the old version ingested in part is completed."""
    before = [make_numbered_entry(1, number, number, key_id=f"k{number % 2}") for number in range(40)] + [
        make_entry("r1")
    ]
    folder = tmp_path / "journal"
    folder.mkdir()
    rest = [make_numbered_entry(1, number, number, key_id=f"k{number % 2}") for number in range(30, 60)]
    (folder / "00001790000000000000-77.journal").write_bytes(encode_journal(*rest))
    with contextlib.closing(opener()) as database:
        assert isinstance(database, SqlDatabase)
        create_schema_1(database)
        for entry in before:
            insert_with_schema_1(database, entry)
        database.migrate()
        newest = sorted(
            before, key=lambda entry: (journal_lines.parse_millis(entry.time), entry.request_id), reverse=True
        )
        assert database.list_entries() == newest
        assert (
            database.list_entries(key_id="k1", before=newest[3].request_id, limit=3)
            == [entry for entry in newest[4:] if entry.key_id == "k1"][:3]
        )
        assert count_requests(database) == 41
        ingest_orphans(folder, database)
        assert list(folder.iterdir()) == []
        assert count_requests(database) == len(database.list_entries()) == 61
        assert database.insert_entries(before) == 0
        assert database.prune_entries(DAY + 20) == 20
        assert database.prune_entries(DAY + 86_400) == 41


class PostgresProxy:
    """A proxy before PostgreSQL. With `drop_next_reply` it forwards the next commit and closes the connection."""

    def __init__(self, path: Path, server: str) -> None:
        self.drop_next_reply = False
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
                    pool.submit(self._forward_requests, client, server)
                    pool.submit(self._forward_replies, client, server)

    def _forward_requests(self, client: socket.socket, server: socket.socket) -> None:
        while data := client.recv(2**20):
            if b"COMMIT" in data and self.drop_next_reply:
                self.drop_next_reply = False
                client.shutdown(socket.SHUT_RDWR)
            server.sendall(data)
        server.shutdown(socket.SHUT_WR)

    def _forward_replies(self, client: socket.socket, server: socket.socket) -> None:
        while data := server.recv(2**20):
            with contextlib.suppress(OSError):
                client.sendall(data)
        client.close()
        server.close()


@pytest.fixture
def proxied(postgres: Callable[[], str], tmp_path: Path) -> Iterator[tuple[PostgresProxy, Database]]:
    address = urlsplit(postgres())
    where = parse_qs(address.query)["host"][0]
    proxy = PostgresProxy(tmp_path / ".s.PGSQL.5432", str(next(Path(where).glob(".s.PGSQL.*[0-9]"))))
    database = open_database(f"postgresql://{address.username}:@{address.path}?host={tmp_path}")
    database.migrate()
    yield proxy, database
    database.close()
    proxy.close()


def test_ingest_unknown_commit_outcome_loses_and_doubles_no_entry(
    proxied: tuple[PostgresProxy, Database], tmp_path: Path
) -> None:
    proxy, database = proxied
    journal = Journal(tmp_path / "journal", max_waiting_bytes=10**9)
    journal.start_new_file()
    ingester = JournalIngester(tmp_path / "journal", database, journal=journal)
    ingester.ingest_all()
    (tmp_path / "journal" / "1-1-a.journal").write_bytes(
        encode_journal(*[make_numbered_entry(2, number, number) for number in range(900)])
    )
    for number in range(6):
        journal.append(encode_journal(make_numbered_entry(1, number, number)))
        proxy.drop_next_reply = True
        with pytest.raises(CommitOutcomeUnknown):
            ingester.ingest_all()
        if number % 2:  # otherwise the commit may still be running when the next begins
            time.sleep(0.05)
    wait_for(lambda: count_requests(database) > 2)  # most of the commits succeeded
    ingester.ingest_all()
    journal.close()
    ingest_orphans(tmp_path / "journal", database)
    assert list((tmp_path / "journal").iterdir()) == []
    assert count_requests(database) == len(database.list_entries()) == 906


def test_ingest_unknown_commit_of_lines_in_memory_counts_each_once(
    proxied: tuple[PostgresProxy, Database], tmp_path: Path
) -> None:
    """The lines may be in the database, so they must not be written to a journal again."""
    proxy, database = proxied
    journal = Journal(tmp_path / "journal", max_waiting_bytes=10**9)
    journal.start_new_file()
    ingester = JournalIngester(tmp_path / "journal", database, journal=journal)
    ingester.ingest_all()
    journal.is_full = True  # as on a full disk
    journal.append(encode_journal(make_numbered_entry(1, 1, 1)))
    proxy.drop_next_reply = True
    with pytest.raises(CommitOutcomeUnknown):
        ingester.ingest_all()
    wait_for(lambda: count_requests(database) == 1)
    journal.append(encode_journal(make_numbered_entry(1, 2, 2)))
    journal.recover()
    assert not journal.is_full
    assert os.path.getsize(journal.path) == len(encode_journal(make_numbered_entry(1, 2, 2)))
    ingester.ingest_all()
    journal.close()
    assert count_requests(database) == len(database.list_entries()) == 2
