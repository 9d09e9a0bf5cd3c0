"""Programs of several schema versions on one database: which of them start, and the sums of what they store."""

from __future__ import annotations

import contextlib
import json
import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from svc.errors import UsageError
from svc.gateway.accounting.ingest import JournalIngester
from svc.gateway.accounting.journal import Journal
from svc.stores.database.base import Database, LedgerEntry
from svc.stores.database.migrations import latest_schema_version, load_migrations
from svc.stores.database.sql import SqlDatabase
from tests.contracts.test_database import make_entry
from tests.soak.upgrade import NoHistory, differing_sums, old_release

LATEST = latest_schema_version()
OLD = 6
"""The last schema version whose programs store no sums by status."""
OLDEST = max(migration.oldest for migration in load_migrations())
STATUSES = ("ok", "error", "cut", "client_closed")
SUM_TABLES = ("hours", "days", "status_hours")
OLD_PROGRAM = """
import json, sys
from svc.stores.database.base import LedgerEntry
from svc.stores.database.factory import open_database
import msgspec
database = open_database(sys.argv[1])
database.migrate()
added = database.insert_entries(msgspec.json.decode(sys.stdin.buffer.read(), type=list[LedgerEntry]))
print(json.dumps([added, sum(row.requests for row in database.aggregate_usage("key"))]))
"""


def entries_of(process: int, count: int = 40) -> list[LedgerEntry]:
    """Return entries of two keys, in three hours, with every status and two models."""
    return [
        make_entry(
            f"req_{process:016x}{number:08x}",
            time=f"2026-03-04T{10 + number % 3}:20:30.{number:03}Z",
            key_id=f"k{number % 2}",
            status=STATUSES[number % len(STATUSES)],
            model=f"m{number % 5 % 2}",
            tags={"team": "x"} if number % 2 else {},
        )
        for number in range(count)
    ]


def sql(database: Database, statement: str, *args: object) -> Any:
    assert isinstance(database, SqlDatabase)
    return database._run_statement(statement, args)


def rows(database: Database, table: str) -> list[tuple[Any, ...]]:
    columns = "start, key_id, model, provider, tags, requests, prompt_tokens, cost_usd, priced, errors"
    return sorted(tuple(row) for row in sql(database, f"SELECT {columns} FROM {table}").fetchall())


def all_rows(database: Database) -> list[list[tuple[Any, ...]]]:
    return [rows(database, table) for table in SUM_TABLES]


def forget_sums(database: Database, key_id: str = "k%") -> None:
    """Leave what a program of schema version 5 leaves."""
    sql(database, "UPDATE batches SET sums_version = 0 WHERE key_id LIKE ?", key_id)
    for table in ("hours", "days"):
        sql(database, f"UPDATE {table} SET errors = 0 WHERE key_id LIKE ?", key_id)
    sql(database, "DELETE FROM status_hours WHERE key_id LIKE ?", key_id)


def repair_all(database: Database) -> int:
    return sum(database.repair_sums())


def test_repair_sums_of_older_program_equal_the_entries(database: Database) -> None:
    database.insert_entries(entries_of(1))
    right = all_rows(database)
    assert all(right)
    assert [*database.repair_sums()] == []
    forget_sums(database, "k1")
    assert all_rows(database) != right
    assert repair_all(database) == 20
    assert all_rows(database) == right
    assert [*database.repair_sums()] == []


def test_repair_sums_before_a_time_leaves_later_hours(database: Database) -> None:
    database.insert_entries(entries_of(1))
    forget_sums(database)
    eleven = 1772622000.0
    assert sum(database.repair_sums(eleven + 3599)) == sum(entry.time < "2026-03-04T11" for entry in entries_of(1))
    assert {row[0] for row in rows(database, "status_hours")} == {eleven - 3600}


def test_repair_sums_with_pruned_entries_keeps_the_stored_sums(database: Database) -> None:
    database.insert_entries(entries_of(1))
    forget_sums(database)
    sums = rows(database, "hours")
    first = min(row[0] for row in sums)
    assert database.prune_entries(first + 20 * 60 + 30.01) > 0
    assert repair_all(database) > 0
    hours = rows(database, "hours")
    assert [row[:-1] for row in hours] == [row[:-1] for row in sums]
    assert sum(row[-1] for row in hours if row[0] > first) == 14
    partly_pruned = [row for row in hours if row[0] == first and row[-1]]
    assert len(partly_pruned) < len([row for row in hours if row[0] == first])


def test_repair_sums_with_a_damaged_batch_ends(database: Database) -> None:
    database.insert_entries(entries_of(1))
    forget_sums(database)
    sql(database, "UPDATE batches SET lines = '{' WHERE lines IS NOT NULL AND key_id = 'k0'")
    assert repair_all(database) == 40
    assert {row[1] for row in rows(database, "status_hours")} == {"k1"}


def test_repair_sums_beside_ingestion_keeps_them_exact(opener: Callable[[], Database], url: str) -> None:
    with contextlib.closing(opener()) as database:
        database.migrate()
        database.insert_entries(entries_of(1))
        forget_sums(database)
        failures: list[Exception] = []

        def work(process: int | None) -> None:
            try:
                with contextlib.closing(opener()) as own:
                    if process is None:
                        repair_all(own)
                    else:
                        for number in range(5):
                            own.insert_entries(entries_of(10 * process + number, 12))
            except Exception as error:
                failures.append(error)

        threads = [threading.Thread(target=work, args=(each,)) for each in (None, 1, 2, None)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert not failures
        assert [*database.repair_sums()] == []
    assert differing_sums(url) == set()


def test_ingester_repairs_hours_that_are_over(database: Database, tmp_path: Path) -> None:
    database.insert_entries(entries_of(1))
    right = all_rows(database)
    forget_sums(database)
    journal = Journal(tmp_path / "journal", max_waiting_bytes=10**9)
    journal.start_new_file()
    ingester = JournalIngester(tmp_path / "journal", database, journal=journal)
    deadline = time.monotonic() + 60
    while all_rows(database) != right and time.monotonic() < deadline:
        ingester.ingest_all()
    journal.close()
    assert all_rows(database) == right


def test_repair_sums_of_entries_that_arrive_between_its_steps_are_exact(database: Database, url: str) -> None:
    database.insert_entries(entries_of(1))
    forget_sums(database)
    steps, arrived = 0, 2
    for _ in database.repair_sums():
        steps += 1
        if steps % 3 == 1 and arrived < 8:
            database.insert_entries(entries_of(arrived))
            arrived += 1
            forget_sums(database, "k0" if arrived % 2 else "none")
    assert steps > 10
    assert differing_sums(url) == set()


def test_record_schema_version_of_older_program_is_kept_until_it_ends(database: Database) -> None:
    def recorded() -> int:
        return int(sql(database, "SELECT MAX(version) FROM schema_version").fetchall()[0][0])

    assert database.record_schema_version(LATEST - 2) == (LATEST, LATEST - 2)
    assert recorded() == LATEST - 2
    assert database.migrate() == (LATEST, LATEST)  # a gateway of this version restarts
    assert recorded() == LATEST - 2
    assert database.record_schema_version(LATEST - 1) == (LATEST - 2, LATEST - 1)
    assert recorded() == LATEST - 1
    assert database.record_schema_version() == (LATEST - 1, LATEST)
    assert recorded() == LATEST


@pytest.mark.parametrize("version", [OLDEST - 1, LATEST + 1])
def test_record_schema_version_that_cannot_use_the_database_raises_usage_error(
    database: Database, version: int
) -> None:
    with pytest.raises(UsageError, match=f"works with {OLDEST} or later") as caught:
        database.record_schema_version(version)
    assert "restore a backup" in caught.value.message
    assert database.migrate() == (LATEST, LATEST)


def test_migrate_newer_schema_works_if_it_only_adds(database: Database) -> None:
    sql(database, "INSERT INTO schema_changes VALUES (?, ?)", LATEST + 3, LATEST)
    sql(database, "INSERT INTO schema_version VALUES (?)", LATEST + 3)
    assert database.migrate() == (LATEST + 3, LATEST + 3)
    assert database.record_schema_version() == (LATEST + 3, LATEST + 3)
    assert database.insert_entries(entries_of(1)) == 40


def test_migrate_newer_schema_that_needs_a_newer_program_raises_usage_error(database: Database) -> None:
    sql(database, "INSERT INTO schema_changes VALUES (?, ?)", LATEST + 3, LATEST + 2)
    with pytest.raises(UsageError) as caught:
        database.migrate()
    assert f"newer version ({LATEST + 3})" in caught.value.message
    assert f"knows version {LATEST + 2}" in caught.value.message
    assert "Start a newer program" in caught.value.message


def test_migrations_that_older_programs_can_use_only_add() -> None:
    additions = re.compile(
        r"CREATE TABLE |(DROP|CREATE) INDEX |INSERT INTO |ALTER TABLE \w+ ADD COLUMN (?!.*NOT NULL(?!.*DEFAULT))"
    )
    for migration in load_migrations():
        if migration.oldest < migration.version:
            for statement in migration.statements:
                code = "\n".join(line for line in statement.splitlines() if not line.startswith("--")).strip()
                assert additions.match(code), f"schema version {migration.version}: {code}"


@pytest.fixture(scope="module")
def old_source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The sources of an old program."""
    try:
        return old_release(OLD, tmp_path_factory.mktemp("release") / "old")
    except NoHistory as error:
        pytest.skip(f"needs the history of the repository: {error}")


def test_older_program_from_history_works_on_the_newer_schema(
    old_source: Path, opener: Callable[[], Database], url: str
) -> None:
    """The long form is `python -m tests.soak.upgrade`."""

    def run_old(process: int) -> subprocess.CompletedProcess[str]:
        text = msgspec.json.encode(entries_of(process)).decode()
        env = {"PATH": os.environ["PATH"], "PYTHONPATH": str(old_source)}
        command = [sys.executable, "-c", OLD_PROGRAM, url]
        return subprocess.run(
            command, env=env, input=text, cwd=old_source, capture_output=True, text=True, timeout=60, check=False
        )

    first = run_old(1)
    assert first.returncode == 0, first.stderr
    assert json.loads(first.stdout) == [40, 40]
    with contextlib.closing(opener()) as database:
        assert database.migrate() == (OLD, LATEST)
        assert database.insert_entries(entries_of(2)) == 40
        refused = run_old(3)
        assert f"newer version ({LATEST})" in refused.stderr
        assert database.record_schema_version(OLD) == (LATEST, OLD)
        if url.startswith("postgresql"):
            assert database.partition_entries()
        second = run_old(3)
        assert second.returncode == 0, second.stderr
        assert json.loads(second.stdout) == [40, 120]
        assert database.record_schema_version() == (OLD, LATEST)
        assert differing_sums(url) != set()
        assert repair_all(database) == 80
        assert database.aggregate_usage("key") != []
    assert differing_sums(url) == set()
