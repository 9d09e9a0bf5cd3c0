"""The entries of a PostgreSQL database, partitioned by month."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from svc.errors import UsageError
from svc.stores.database.base import Database, LedgerEntry
from svc.stores.database.entry_filter import EntryFilter, EntryPosition, SearchLimits
from svc.stores.database.factory import open_database
from svc.stores.database.journal_lines import build_segment
from svc.stores.database.postgres import PostgresDatabase
from svc.stores.database.postgres_partitions import MONTHS_AHEAD, start_of_month_ms
from tests.contracts.test_database import make_entry
from tests.soak.upgrade import differing_sums

NOW_MS = round(time.time() * 1000)
DAY_MS = 86_400_000


def entry_at(number: int, time_ms: int) -> LedgerEntry:
    stamp = datetime.fromtimestamp(time_ms / 1000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    return make_entry(f"req_{number:016x}{number:08x}", time=stamp, key_id=f"k{number % 3}")


def month(months: int, days: int = 3) -> int:
    """Return a time in a month after the present one."""
    return start_of_month_ms(NOW_MS, months) + days * DAY_MS


def partition_names(database: PostgresDatabase) -> list[str]:
    return [partition.name for partition in database._partitions.list()]


def count_in(database: PostgresDatabase, table: str) -> int:
    return int(database._run_statement(f"SELECT COALESCE(SUM(count), 0) FROM {table}").fetchall()[0][0])


@pytest.fixture
def url(postgres: Callable[[], str]) -> str:
    return postgres()


@pytest.fixture
def database(url: str) -> Iterator[PostgresDatabase]:
    opened = open_database(url)
    assert isinstance(opened, PostgresDatabase)
    opened.migrate()
    yield opened
    opened.close()


def ids(database: Database) -> set[str]:
    return {entry.request_id for entry in database.list_entries(limit=100_000)}


def test_partition_entries_keeps_those_from_before_and_routes_new_ones(database: PostgresDatabase, url: str) -> None:
    before = [entry_at(number, month(-number % 5, 1)) for number in range(20)]
    old = [entry_at(100 + number, month(-number, 1)) for number in range(20)]
    database.insert_entries([*before[:1], *old])
    assert database.partition_entries()
    assert not database.partition_entries()
    assert database.migrate()[0] > 0
    assert len(partition_names(database)) == MONTHS_AHEAD + 1
    late, ahead, far = entry_at(200, month(-2)), entry_at(201, month(2)), entry_at(202, month(MONTHS_AHEAD + 9))
    assert database.insert_entries([late, ahead, far]) == 3
    assert database.insert_entries([late, ahead, far, old[3]]) == 0
    expected = {entry.request_id for entry in [*before[:1], *old, late, ahead, far]}
    assert ids(database) == expected
    assert [entry.request_id for entry in database.list_entries(limit=2)] == [far.request_id, ahead.request_id]
    assert database.get_entry(ahead.request_id) == ahead
    assert (count_in(database, "batches_past"), count_in(database, "batches_other")) == (22, 1)
    assert differing_sums(url) == set()


def test_partition_with_entries_in_the_default_partition_leaves_them_there(database: PostgresDatabase) -> None:
    database.partition_entries()
    last = partition_names(database)[-1]
    database._run_statement(f"DROP TABLE {last}")  # as if no gateway had run for months
    entry = entry_at(1, month(MONTHS_AHEAD))
    database.insert_entries([entry])
    database.migrate()
    assert last not in partition_names(database)
    assert database.get_entry(entry.request_id) == entry


def test_prune_entries_of_partitions_drops_whole_months_and_keeps_sums(database: PostgresDatabase, url: str) -> None:
    database.insert_entries([entry_at(1, month(-1)), entry_at(2, month(0))])
    database.partition_entries()
    later = [entry_at(10 + number, month(number, 10)) for number in range(1, 5)]
    far = entry_at(90, month(MONTHS_AHEAD + 3))
    database.insert_entries([*later, far])
    sums = database.aggregate_usage("key")
    names = partition_names(database)
    cutoff = month(3, 20) / 1000
    assert database.prune_entries(cutoff) == 0
    assert partition_names(database) == names[3:]
    assert ids(database) == {entry.request_id for entry in [*later[2:], far]}
    assert database.aggregate_usage("key") == sums
    assert database.prune_entries(month(MONTHS_AHEAD + 4) / 1000) == 1
    assert ids(database) == set()
    assert database.aggregate_usage("key") == sums
    assert database.insert_entries([entry_at(91, month(0))]) == 1


def test_prune_entries_before_the_first_whole_month_deletes_older_ones(database: PostgresDatabase) -> None:
    database.insert_entries([entry_at(number, month(-number, 1)) for number in range(6)])
    database.partition_entries()
    assert database.prune_entries(month(-2, 20) / 1000) == 3
    assert ids(database) == {entry_at(number, month(-number, 1)).request_id for number in range(3)}


@pytest.mark.slow
def test_prune_entries_while_a_query_reads_the_month_deletes_its_entries(database: PostgresDatabase, url: str) -> None:
    database.insert_entries([entry_at(1, month(-1))])
    database.partition_entries()
    with contextlib.closing(open_database(url)) as reader:
        assert isinstance(reader, PostgresDatabase)
        with reader._transaction():
            reader.list_entries()
            assert database.prune_entries(month(2) / 1000) == 1
    assert "batches_past" in partition_names(database)
    database.prune_entries(month(2) / 1000)
    assert "batches_past" not in partition_names(database)


def test_queries_of_a_month_read_its_partition_only(database: PostgresDatabase) -> None:
    database.partition_entries()
    entries = [entry_at(number, month(number % 4, 2)) for number in range(400)]
    database.insert_entries(entries)
    statements: list[tuple[str, tuple[object, ...]]] = []
    run = database._run_statement

    def plans() -> str:
        return "\n".join(str(row[0]) for sql, args in statements for row in run(f"EXPLAIN {sql}", args).fetchall())

    start, end = month(2, 1), month(2, 4)
    name = f"batches_{datetime.fromtimestamp(start / 1000, UTC):%Y_%m}"
    sql = (
        "SELECT last FROM batches WHERE last <= ? AND (last < ? OR id < ?) AND last >= ? AND last - span < ?"
        " ORDER BY last DESC, id DESC LIMIT 2"
    )
    statements.append((sql, (end, end, "", start, end)))
    plan = plans()
    assert name in plan
    assert [other for other in partition_names(database) if other != name and other in plan] == []
    found = database.list_entries(since=start / 1000, until=end / 1000)
    assert len(found) == 100


def test_searches_of_a_day_read_the_partition_of_its_month_only(database: PostgresDatabase) -> None:
    """The statements are those of the console's pages, with the range that the pages open with."""
    database.partition_entries()
    database.insert_entries([entry_at(number, month(number % 4, 14)) for number in range(400)])
    end_ms = month(2, 15)
    since, end = (end_ms - DAY_MS) / 1000, EntryPosition(end_ms, "")
    run, statements = database._run_statement, []

    def record(sql: str, args: Sequence[object] = ()) -> Any:
        statements.append((sql, args))
        return run(sql, args)

    database._run_statement = record  # type: ignore[method-assign]
    found = database.search_entries(EntryFilter(), since, end, SearchLimits(limit=1000, seconds=60))
    assert len(found.entries) == 100
    database.search_entries(EntryFilter(key_id="k1", status="error"), since, end, SearchLimits(seconds=60))
    database.aggregate_usage("model", since=since + 1, until=end_ms / 1000 - 1)
    database.list_entries(since=since, until=end_ms / 1000)
    plans = [run(f"EXPLAIN {sql}", args).fetchall() for sql, args in statements if " batches " in sql]
    assert len(plans) >= 5
    name = f"batches_{datetime.fromtimestamp(end_ms / 1000, UTC):%Y_%m}"
    others = [each for each in [*partition_names(database), "batches_other"] if each != name]
    for plan in plans:
        text = "\n".join(str(row[0]) for row in plan)
        assert f" on {name} " in text
        assert not [other for other in others if f" on {other} " in text], text


def test_partition_entries_beside_ingestion_loses_no_entry(database: PostgresDatabase, url: str) -> None:
    failures: list[Exception] = []
    started = threading.Barrier(4)

    def ingest(process: int) -> None:
        try:
            with contextlib.closing(open_database(url)) as own:
                name = f"1-{process}-a.journal"
                own.committed_offset(name)
                for number in range(30):
                    if number == 5:
                        started.wait(60)
                    made = [entry_at(process * 10_000 + number * 100 + each, NOW_MS + each) for each in range(20)]
                    assert own.ingest(name, number, number + 1, build_segment(made))
        except Exception as error:
            failures.append(error)

    threads = [threading.Thread(target=ingest, args=(process,)) for process in (1, 2, 3)]
    for thread in threads:
        thread.start()
    started.wait(60)
    assert database.partition_entries()
    for thread in threads:
        thread.join(60)
    assert not failures
    assert len(database.list_entries(limit=10_000)) == 3 * 30 * 20
    assert differing_sums(url) == set()


def test_sqlite_has_no_partitions(tmp_path: Path) -> None:
    with contextlib.closing(open_database(f"sqlite:///{tmp_path / 'svc.db'}")) as database:
        database.migrate()
        with pytest.raises(UsageError, match="Only PostgreSQL has partitions"):
            database.partition_entries()


@pytest.mark.parametrize(
    ("moment", "months", "expected"),
    [
        ("2026-12-31T23:59:59Z", 0, "2026-12-01"),
        ("2026-12-31T00:00:00Z", 1, "2027-01-01"),
        ("2024-01-15", -1, "2023-12-01"),
    ],
)
def test_start_of_month_is_midnight_utc(moment: str, months: int, expected: str) -> None:
    time_ms = round(datetime.fromisoformat(moment).replace(tzinfo=UTC).timestamp() * 1000)
    start = datetime.fromtimestamp(start_of_month_ms(time_ms, months) / 1000, UTC)
    assert start.isoformat() == f"{expected}T00:00:00+00:00"
