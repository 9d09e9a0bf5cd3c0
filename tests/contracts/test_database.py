"""The contract of `Database`, tested with every implementation on a real server."""

from __future__ import annotations

import contextlib
import json
import math
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from urllib.parse import quote

import msgspec
import psycopg
import pytest

from svc.cli import main
from svc.keys.usage_series import parse_series_request
from svc.stores.budget_period import budget_period_start
from svc.stores.database import journal_lines
from svc.stores.database.base import AttemptDetail, Database, LedgerEntry, StoredKey, StoreUnavailable
from svc.stores.database.factory import open_database
from svc.stores.database.migrations import latest_schema_version
from svc.stores.database.postgres import PostgresDatabase
from svc.stores.database.sql import SqlDatabase
from tests.unit.gateway.accounting import generate_ledger

Opener = Callable[[], Database]


def test_database_ping_changes_nothing(database: Database) -> None:
    database.ping()
    assert database.list_keys() == []


def test_postgres_connection_failure_names_host_and_reason_without_password(postgres: Callable[[], str]) -> None:
    parts = psycopg.conninfo.conninfo_to_dict(postgres())
    url = f"postgresql://{parts['user']}:hunter2@/no_such_database?host={quote(str(parts['host']), safe='')}"
    with pytest.raises(StoreUnavailable) as caught:
        open_database(url).ping()
    assert str(parts["host"]) in caught.value.message
    assert "'no_such_database'" in caught.value.message
    assert 'database "no_such_database" does not exist' in caught.value.message
    assert "hunter2" not in caught.value.message
    assert "\n" not in caught.value.message


def test_postgres_repeated_statements_are_not_prepared(postgres: Callable[[], str]) -> None:
    """Behind a pooler, the next transaction can have a server connection with other prepared statements."""
    database = PostgresDatabase(postgres())
    database.migrate()
    for number in range(20):
        database.put_key(make_key(f"key_{number}"))
        database.list_keys()
    assert database._run_statement("SELECT statement FROM pg_prepared_statements").fetchall() == []
    database.close()


def end_connections(url: str) -> None:
    """End all other connections to the database, as a restart of the server does."""
    with psycopg.connect(url, autocommit=True) as admin:
        others = "FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"
        assert admin.execute(f"SELECT pg_terminate_backend(pid, 10000) {others}".encode()).fetchall() == [(True,)]


def test_postgres_idle_connection_ended_by_server_is_replaced(postgres: Callable[[], str]) -> None:
    url = postgres()
    database = PostgresDatabase(url)
    database.migrate()
    end_connections(url)
    assert database.put_key(make_key("key_1")).id == "key_1"
    end_connections(url)
    assert [key.id for key in database.list_keys()] == ["key_1"]
    database.close()


def test_postgres_connection_ended_in_transaction_fails_the_transaction(postgres: Callable[[], str]) -> None:
    url = postgres()
    database = PostgresDatabase(url)
    database.migrate()
    with contextlib.ExitStack() as stack:
        stack.enter_context(pytest.raises(StoreUnavailable))
        stack.enter_context(database._transaction())
        database.ping()
        end_connections(url)
        database.ping()
    assert database.list_keys() == []
    database.close()


@pytest.fixture
def standby(postgres: Callable[[], str]) -> str:
    """The URL of a database that refuses changes, as a standby does. It has the key `key_1`."""
    url = postgres()
    database = PostgresDatabase(url)
    database.migrate()
    database.put_key(make_key("key_1"))
    name = psycopg.conninfo.conninfo_to_dict(url)["dbname"]
    database._run_statement(f"ALTER DATABASE {name} SET default_transaction_read_only = on")
    database.close()
    return url


def test_postgres_read_only_can_be_read(standby: str) -> None:
    database = PostgresDatabase(standby)
    assert database.is_read_only()
    assert database.migrate() == (latest_schema_version(), latest_schema_version())
    assert [key.id for key in database.list_keys()] == ["key_1"]
    with pytest.raises(StoreUnavailable, match="it is read-only, as a standby is: cannot execute"):
        database.put_key(make_key("key_2"))
    database.close()


def test_postgres_read_only_with_old_schema_names_both_versions(standby: str) -> None:
    database = PostgresDatabase(standby)
    database._run_statement("SET default_transaction_read_only = off")
    database._run_statement("DELETE FROM schema_changes WHERE version = ?", (latest_schema_version(),))
    database._run_statement("DELETE FROM schema_version WHERE version = ?", (latest_schema_version(),))
    database.close()
    with pytest.raises(StoreUnavailable, match=f"has version {latest_schema_version() - 1}. This program needs"):
        database.migrate()
    database.close()


def test_doctor_read_only_database_is_error(
    standby: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("SVC_HOME", str(tmp_path))
    monkeypatch.setenv("SVC_DATABASE_URL", standby)
    assert main(["doctor", "--json"]) == 1
    results = {result["what"]: result for result in json.loads(capsys.readouterr().out)}
    assert results["database"]["state"] == "bad"
    assert "read-only" in results["database"]["says"]


@pytest.fixture
def stranger(postgres: Callable[[], str]) -> Iterator[tuple[PostgresDatabase, str]]:
    """A database as its owner, and its URL for a user who has no rights."""
    url = postgres()
    database = PostgresDatabase(url)
    name = f"stranger_{psycopg.conninfo.conninfo_to_dict(url)['dbname']}"
    database._run_statement("REVOKE ALL ON SCHEMA public FROM PUBLIC")
    database._run_statement(f"CREATE ROLE {name} LOGIN")
    yield database, url.replace("//postgres:@", f"//{name}:@").replace("//postgres@", f"//{name}@")
    database.close()


def doctor_database(capsys: pytest.CaptureFixture[str]) -> dict[str, str]:
    main(["doctor", "--json"])
    (found,) = [result for result in json.loads(capsys.readouterr().out) if result["what"] == "database"]
    return dict(found)


def test_doctor_user_without_rights_is_error(
    stranger: tuple[PostgresDatabase, str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    owner, url = stranger
    role = psycopg.conninfo.conninfo_to_dict(url)["user"]
    monkeypatch.setenv("SVC_HOME", str(tmp_path))
    monkeypatch.setenv("SVC_DATABASE_URL", url)
    found = doctor_database(capsys)
    assert (found["state"], found["mend"][:14]) == ("bad", "make the user ")
    assert found["says"].endswith("the user may not create tables.")
    owner._run_statement(f"GRANT ALL ON SCHEMA public TO {role}")
    assert doctor_database(capsys)["state"] == "ok"
    owner.migrate()
    found = doctor_database(capsys)
    assert "no rights on the tables batches, days, hours, journals, keys" in found["says"]
    owner._run_statement(f"GRANT ALL ON ALL TABLES IN SCHEMA public TO {role}")
    assert doctor_database(capsys)["state"] == "ok"
    owner._run_statement(f"REVOKE DELETE ON keys FROM {role}")
    assert "no rights on the table keys." in doctor_database(capsys)["says"]


def test_doctor_refused_connection_advice_names_its_cause(
    stranger: tuple[PostgresDatabase, str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    owner, url = stranger
    role = psycopg.conninfo.conninfo_to_dict(url)["user"]
    monkeypatch.setenv("SVC_HOME", str(tmp_path))
    monkeypatch.setenv("SVC_DATABASE_URL", url)
    owner._run_statement(f"ALTER ROLE {role} CONNECTION LIMIT 0")
    assert doctor_database(capsys)["mend"] == "raise the connection limit of the role or of the database"
    monkeypatch.setenv("SVC_DATABASE_URL", url.replace(f"//{role}", "//nobody"))
    assert doctor_database(capsys)["mend"] == "create the database and its user, or check SVC_DATABASE_URL"


def test_doctor_schema_of_newer_program_is_error_and_older_is_not(
    url: str, database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert isinstance(database, SqlDatabase)
    monkeypatch.setenv("SVC_HOME", str(tmp_path))
    monkeypatch.setenv("SVC_DATABASE_URL", url)
    newest = latest_schema_version()
    database._run_statement("INSERT INTO schema_changes VALUES (?, ?)", (newest + 1, newest))
    assert doctor_database(capsys)["state"] == "ok"
    database._run_statement("INSERT INTO schema_changes VALUES (?, ?)", (newest + 2, newest + 2))
    found = doctor_database(capsys)
    assert (found["state"], found["mend"]) == ("bad", "install a newer svc, or restore a backup")
    assert f"needs a program that knows version {newest + 2}" in found["says"]
    database._run_statement("DROP TABLE schema_changes")  # as programs from before version 8 leave it
    assert doctor_database(capsys)["state"] == "ok"


def make_key(id: str, **fields: object) -> StoredKey:
    made = {"id": id, "name": id, "prefix": "svc_sk_", "digest": f"d-{id}", "created": 1.0} | fields
    return msgspec.convert(made, StoredKey)


def make_entry(id: str, **fields: object) -> LedgerEntry:
    made = {
        "time": "2026-03-04T10:20:30.456Z",
        "request_id": id,
        "key_id": "k1",
        "key_name": "one",
        "endpoint": "/v1/chat/completions",
        "model": "m",
        "provider": "p",
        "attempts": 1,
        "status": "ok",
        "http_status": 200,
        "prompt_tokens": 10,
        "completion_tokens": 5,
        "cost_usd": 0.25,
        "latency_ms": 1.5,
    } | fields
    return msgspec.convert(made, LedgerEntry)


def test_database_concurrent_and_repeated_migrations_succeed(opener: Opener) -> None:
    failures: list[Exception] = []
    together = threading.Barrier(8)

    def migrate() -> None:
        database = opener()
        together.wait(30)
        try:
            database.migrate()
            database.migrate()
        except Exception as error:
            failures.append(error)
        finally:
            database.close()

    threads = [threading.Thread(target=migrate) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert not failures


def test_database_stored_key_is_read_back(database: Database) -> None:
    key = make_key("k1", models=["a"], rpm=5, budget_usd=1.5, budget_period="day", tags={"team": "ä"}, expires=99.5)
    put = database.put_key(key)
    assert put.revision == 1
    assert database.get_key("k1") == put
    assert database.list_keys() == [put]
    assert database.find_keys_by_digest(["d-k1", "nothing"]) == [put]
    assert database.get_key("k2") is None


def test_database_keys_are_found_by_id(database: Database) -> None:
    one, _, three = (database.put_key(make_key(id)) for id in ("k1", "k2", "k3"))
    found = database.find_keys_by_id(["k3", "nothing", "k1"])
    assert sorted(found, key=lambda key: key.id) == [one, three]


def test_database_spending_of_an_ephemeral_key_counts_its_entries_since_it_was_issued(database: Database) -> None:
    entries = [
        make_entry("req_000000000000000000000001", ephemeral_id="ek_1", cost_usd=0.5),
        make_entry("req_000000000000000000000002", ephemeral_id="ek_2", cost_usd=4.0),
        make_entry("req_000000000000000000000003", cost_usd=8.0),
        make_entry("req_000000000000000000000004", ephemeral_id="ek_1", cost_usd=None),
        make_entry("req_000000000000000000000005", ephemeral_id="ek_1", time="2026-03-04T12:00:00.000Z", cost_usd=1.0),
        make_entry("req_000000000000000000000006", ephemeral_id="ek_1", key_id="k2", cost_usd=16.0),
    ]
    assert database.insert_entries(entries) == 6
    noon = datetime(2026, 3, 4, 12, tzinfo=UTC).timestamp()
    assert database.get_ephemeral_spent_usd("k1", "ek_1", 0.0) == 1.5
    assert database.get_ephemeral_spent_usd("k1", "ek_1", noon) == 1.0
    assert database.get_ephemeral_spent_usd("k1", "ek_1", noon + 1) == 0.0
    assert database.get_ephemeral_spent_usd("k1", "ek_3", 0.0) == 0.0
    assert database.get_spent_usd({"ek_1": 0.0, "k1": 0.0}) == {"ek_1": 0.0, "k1": 13.5}


def test_database_rotated_key_is_found_by_old_and_new_digest(database: Database) -> None:
    database.put_key(make_key("k1", digest="new", old_digest="old", old_until=5.0))
    assert [key.id for key in database.find_keys_by_digest(["old"])] == ["k1"]
    assert [key.id for key in database.find_keys_by_digest(["new"])] == ["k1"]


def test_database_changed_keys_are_listed_in_order(database: Database) -> None:
    for id in ("b", "a", "c"):
        database.put_key(make_key(id))
    seen = database.latest_key_revision()
    assert [key.id for key in database.list_changed_keys(0)] == ["b", "a", "c"]
    assert database.list_changed_keys(seen) == []
    database.put_key(make_key("b", revoked=7.0))
    assert [(key.id, key.revoked) for key in database.list_changed_keys(seen)] == [("b", 7.0)]
    assert [key.id for key in database.list_keys()] == ["a", "b", "c"]
    assert [key.id for key in database.list_keys(after="a", limit=1)] == ["b"]


def test_database_duplicate_entries_are_inserted_once(database: Database) -> None:
    first, second = make_entry("r1", tags={"team": "x"}), make_entry("r2", cost_usd=None, prompt_tokens=None)
    assert database.insert_entries([first, second, first]) == 2
    assert database.insert_entries([second, make_entry("r3")]) == 1
    assert database.insert_entries([]) == 0
    found = database.list_entries()
    assert [entry.request_id for entry in found] == ["r3", "r2", "r1"]
    assert found[2] == first
    assert found[1] == second
    (total,) = database.aggregate_usage("key")
    assert (total.value, total.name, total.requests) == ("k1", "one", 3)
    assert (total.prompt_tokens, total.completion_tokens, total.cost_usd) == (20, 15, 0.5)


def test_database_sum_tables_have_flagged_ledger_fields_as_columns(database: Database) -> None:
    """Columns of the sums have the names of the entry's fields."""
    assert isinstance(database, SqlDatabase)
    named = {name for column in ("sum", "label", "total") for name in generate_ledger.names_of(column)}
    for table in ("hours", "days"):
        cursor = database._run_statement(f"SELECT * FROM {table}")
        assert {each[0] for each in cursor.description} == named | {"start", "requests", "priced", "errors"}


def test_database_every_field_is_read_back_from_small_and_large_batch(database: Database) -> None:
    attempts = [
        AttemptDetail(provider="a", model="m", outcome="error", code="provider_error", ms=1.5),
        AttemptDetail(provider="b", model="n", outcome="ok", ms=20.125),
    ]
    fields: dict[str, object] = {"attempts": 2, "cache_write_tokens": 7, "tags": {"t": "x"}}
    ids = [f"req_{1:016x}{number:08x}" for number in range(3)]
    alone, *together = [make_entry(id, attempts_detail=attempts, **fields) for id in ids]
    for journal, entries in (("j1", [alone]), ("j2", together)):
        data = b"".join(msgspec.json.encode(entry) + b"\n" for entry in entries)
        assert database.ingest(
            journal, database.committed_offset(journal), len(data), journal_lines.parse_segment(data)
        )
    assert database.list_entries() == [*reversed(together), alone]
    assert database.insert_entries([msgspec.structs.replace(alone, request_id="r1")]) == 1
    assert database.list_entries(limit=1)[0].attempts_detail == attempts


def test_database_unknown_cost_is_null_not_zero(database: Database) -> None:
    database.insert_entries([make_entry("r1", cost_usd=None), make_entry("r2", model="free", cost_usd=0.0)])
    found = {each.value: (each.cost_usd, each.unpriced_requests) for each in database.aggregate_usage("model")}
    assert found == {"m": (None, 1), "free": (0.0, 0)}
    (by_key,) = database.aggregate_usage("key")
    assert (by_key.cost_usd, by_key.requests, by_key.unpriced_requests) == (0.0, 2, 1)


def test_database_list_entries_is_paged_newest_first(database: Database) -> None:
    database.insert_entries([make_entry(f"r{number}", time=f"2026-03-04T10:20:{number:02d}Z") for number in range(10)])
    page = database.list_entries(limit=4)
    assert [entry.request_id for entry in page] == ["r9", "r8", "r7", "r6"]
    assert [entry.request_id for entry in database.list_entries(before="r6", limit=2)] == ["r5", "r4"]
    assert database.list_entries(key_id="other") == []


def test_database_get_entry_finds_entry_in_small_and_large_batch(database: Database) -> None:
    ids = [f"req_{1:016x}{number:08x}" for number in range(3)]
    data = b"".join(msgspec.json.encode(make_entry(id)) + b"\n" for id in ids)
    database.ingest("j", database.committed_offset("j"), len(data), journal_lines.parse_segment(data))
    database.insert_entries([make_entry("r1")])
    for id in (*ids, "r1"):
        found = database.get_entry(id)
        assert found is not None
        assert found.request_id == id
    for id in ("r2", "", f"req_{1:016x}{3:08x}", f"req_{2:016x}{1:08x}"):
        assert database.get_entry(id) is None


@pytest.mark.parametrize(
    ("since", "expected"),
    [
        ("1970-01-01T00:00:00Z", 6),
        ("2026-03-04T00:00:00Z", 5),
        ("2026-03-04T10:00:00Z", 4),
        ("2026-03-04T10:30:00Z", 3),
        ("2026-03-04T10:45:00.001Z", 2),
        ("2026-03-05T00:00:00Z", 1),
        ("2026-03-06T00:00:00Z", 0),
    ],
)
def test_database_aggregate_usage_since_any_time_is_exact(database: Database, since: str, expected: int) -> None:
    times = ("03T23:59:59.999", "04T00:00:00", "04T10:00:00", "04T10:45:00", "04T23:59:59", "05T00:00:00")
    database.insert_entries([make_entry(f"r{number}", time=f"2026-03-{when}Z") for number, when in enumerate(times)])
    moment = _stamp(since)
    for by in ("key", "provider", "day", "tag"):
        assert sum(each.requests for each in database.aggregate_usage(by, since=moment)) == expected
    assert len(database.list_entries(since=moment)) == expected


def test_database_aggregate_usage_groups_by_each_dimension(database: Database) -> None:
    database.insert_entries(
        [
            make_entry("r1", tags={"team": "x", "app": "1"}),
            make_entry("r2", tags={"team": "x"}, model="n", time="2026-03-05T00:00:00Z"),
            make_entry("r3", key_id="k2", key_name="two", provider="q", model=None),
        ]
    )
    assert {each.value: each.requests for each in database.aggregate_usage("tag", tag="team")} == {"x": 2, "": 1}
    assert {each.value: each.requests for each in database.aggregate_usage("model")} == {"m": 1, "n": 1, "": 1}
    assert {each.value: each.requests for each in database.aggregate_usage("provider")} == {"p": 2, "q": 1}
    assert [each.value for each in database.aggregate_usage("day")] == ["2026-03-05", "2026-03-04"]
    assert [each.value for each in database.aggregate_usage("model", key_id="k2")] == [""]


def test_database_usage_of_renamed_key_has_its_newest_name(database: Database) -> None:
    named = {"03T09:10:00": "one", "04T09:10:00": "two", "05T08:10:00": "a", "05T09:10:00": "b", "05T09:20:00": "a b"}
    for when, name in named.items():
        time = f"2026-03-{when}.000Z"
        database.insert_entries(
            [make_entry(time, time=time, key_name=name), make_entry(f"m{when}", time=time, key_name=name, model="n")]
        )
    for until, since in (
        ("05T10:00:00", "01T00:00:00"),
        ("05T09:30:00", "03T09:05:00"),
        ("06T00:00:00", "05T09:00:00"),
    ):
        moments = {"since": _stamp(f"2026-03-{since}Z"), "until": _stamp(f"2026-03-{until}Z")}
        (found,) = database.aggregate_usage("key", **moments)
        assert found.name == "a b"
    (found,) = database.aggregate_usage("key", until=_stamp("2026-03-05T00:00:00Z"))
    assert found.name == "two"
    window = {"since": "2026-03-03T00:00:00Z", "until": "2026-03-06T00:00:00Z", "by": "key"}
    for interval in ("hour", "day"):
        series = parse_series_request({**window, "interval": interval}, None).execute(database)
        assert [group.name for group in series.groups] == ["a b"]


def test_database_spent_usd_counts_from_period_start(database: Database) -> None:
    database.insert_entries(
        [make_entry("r1"), make_entry("r2", time="2026-03-05T00:00:00Z"), make_entry("r3", key_id="k2")]
    )
    period_starts = {"k1": budget_period_start("day", _stamp("2026-03-05T12:00:00Z")), "k2": 0.0, "k3": 0.0}
    assert database.get_spent_usd(period_starts) == {"k1": 0.25, "k2": 0.25, "k3": 0.0}


def test_database_pruned_entries_stay_in_sums(database: Database) -> None:
    database.insert_entries(
        [make_entry(f"r{number}") for number in range(5)] + [make_entry("new", time="2026-05-01T00:00:00Z")]
    )
    before = _stamp("2026-04-01T00:00:00Z")
    assert [
        database.prune_entries(before, limit=3),
        database.prune_entries(before),
        database.prune_entries(before),
    ] == [3, 2, 0]
    assert [entry.request_id for entry in database.list_entries()] == ["new"]
    assert sum(each.requests for each in database.aggregate_usage("key")) == 6


def test_database_concurrent_writers_lose_no_entry(opener: Opener, database: Database) -> None:
    failures: list[Exception] = []

    def write(writer: int) -> None:
        own = opener()
        try:
            for batch in range(10):
                own.insert_entries([make_entry(f"r{batch}-{number}") for number in range(20)])
                own.put_key(make_key(f"k{writer}-{batch}"))
        except Exception as error:
            failures.append(error)
        finally:
            own.close()

    threads = [threading.Thread(target=write, args=(number,)) for number in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert not failures
    assert sum(each.requests for each in database.aggregate_usage("key")) == 200
    revisions = [key.revision for key in database.list_changed_keys(0)]
    assert revisions == list(range(1, 21))


def test_budget_period_start_is_midnight_utc_or_first_of_month() -> None:
    now = _stamp("2026-03-04T10:20:30Z")
    assert budget_period_start("day", now) == _stamp("2026-03-04T00:00:00Z")
    assert budget_period_start("month", now) == _stamp("2026-03-01T00:00:00Z")
    assert budget_period_start("total", now) == budget_period_start(None, now) == 0.0
    assert budget_period_start("day") <= time.time()


def _stamp(text: str) -> float:
    return datetime.fromisoformat(text).timestamp()


def test_database_concurrent_key_updates_are_both_kept(opener: Opener, database: Database) -> None:
    """A concurrent change and revocation both take effect, in either order."""
    for number in range(20):
        database.put_key(make_key(f"k{number}"))
    failures: list[Exception] = []

    def change(fields: dict[str, object]) -> None:
        other = opener()
        try:
            for number in range(20):
                other.update_key(f"k{number}", lambda key: msgspec.structs.replace(key, **fields))
        except Exception as error:
            failures.append(error)
        finally:
            other.close()

    threads = [threading.Thread(target=change, args=(fields,)) for fields in ({"revoked": 5.0}, {"name": "new"})]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert not failures
    assert {(key.revoked, key.name) for key in database.list_keys()} == {(5.0, "new")}


def test_database_failed_key_update_changes_nothing(database: Database) -> None:
    database.put_key(make_key("k"))

    def reject(key: StoredKey) -> StoredKey:
        raise ValueError(key.id)

    with pytest.raises(ValueError, match="k"):
        database.update_key("k", reject)
    assert database.update_key("nobody", reject) is None
    assert database.get_key("k") == make_key("k", revision=1)
    assert database.put_key(make_key("l")).revision > 1


def test_database_aggregate_usage_of_any_span_matches_entries(database: Database) -> None:
    start = _stamp("2026-03-04T00:00:00Z")
    offsets = [-1, 0, 1, 1799, 3599, 3600, 3601, 9000, 43200, 86399, 86400, 90000, 172799, 172800, 180001]
    stamps = [datetime.fromtimestamp(start + at, UTC).isoformat(timespec="milliseconds") for at in offsets]
    database.insert_entries([make_entry(f"r{number:02}", time=stamp) for number, stamp in enumerate(stamps)])
    edges = [0.0, start - 1, start, start + 1800, start + 3600, start + 9000, start + 86400, start + 172800.5, math.inf]
    for since in edges[:-1]:
        for until in edges:
            single = len(database.list_entries(since=since, until=until))
            for by in ("key", "day", "tag"):
                assert sum(each.requests for each in database.aggregate_usage(by, since=since, until=until)) == single


def test_database_last_used_is_newest_entry_or_its_hour_when_pruned(database: Database) -> None:
    for id in ("k1", "k2"):
        database.put_key(make_key(id))
    times = ("2026-03-04T10:20:30.456Z", "2026-03-04T09:00:00.000Z")
    database.insert_entries(make_entry(f"r{number}", time=time) for number, time in enumerate(times))
    assert database.get_last_used_times(["k1", "k2", "nobody"]) == {"k1": _stamp(times[0])}
    assert database.get_last_used_times([]) == {}
    database.prune_entries(_stamp("2026-03-05T00:00:00.000Z"))
    assert database.get_last_used_times(["k1"]) == {"k1": _stamp("2026-03-04T10:00:00.000Z")}


def test_database_spent_usd_of_many_keys_is_returned(database: Database) -> None:
    database.insert_entries([make_entry(f"r{number}", key_id=f"k{number}") for number in range(600)])
    period_starts = {f"k{number}": 0.0 if number % 2 else _stamp("2030-01-01T00:00:00Z") for number in range(1200)}
    spent = database.get_spent_usd(period_starts)
    assert set(spent) == set(period_starts)
    assert sum(spent.values()) == pytest.approx(300 * 0.25)


def test_postgres_silent_server_times_out(postgres: Callable[[], str]) -> None:
    """The server process is stopped. The kernel still accepts data, so only a missing response shows it."""
    url = postgres()
    with contextlib.closing(open_database(url, 0.5)) as database:
        database.ping()
        with psycopg.connect(url, autocommit=True) as admin:
            others = "SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"
            ((pid,),) = admin.execute(others).fetchall()
        os.kill(pid, signal.SIGSTOP)
        try:
            started_at = time.monotonic()
            with pytest.raises(StoreUnavailable, match="cannot be used: "):
                database.ping()
            assert 0.4 < time.monotonic() - started_at < 20
        finally:
            os.kill(pid, signal.SIGCONT)
        database.ping()
