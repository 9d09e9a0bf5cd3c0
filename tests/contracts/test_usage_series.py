"""Usage over time, with every database, against plain sums of the entries."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from datetime import datetime

import msgspec
import pytest

from svc.keys.usage_series import UsageOverTime, UsagePoint, parse_series_request
from svc.stores.database.base import Database, LedgerEntry
from svc.stores.database.journal_lines import build_segment
from svc.stores.database.sql import SqlDatabase
from tests.contracts.test_database import make_entry
from tests.contracts.test_entry_search import START_MS, random_entries

WINDOW = {"since": "2026-03-04T00:00:00Z", "until": "2026-03-06T00:00:00Z"}


@pytest.fixture
def entries(database: Database) -> list[LedgerEntry]:
    """Entries with costs of nine decimal places, some of them unknown. Their sums are added in several steps."""
    entries = [
        msgspec.structs.replace(
            entry,
            cost_usd=None if number % 7 == 0 else round(number * 0.000_001_237, 9),
            prompt_tokens=number % 91 or None,
            completion_tokens=number % 13,
        )
        for number, entry in enumerate(random_entries(9))
    ]
    for number, start in enumerate(range(0, len(entries), 400)):
        segment = build_segment(entries[start : start + 400])
        database.committed_offset("a-b-c")
        assert database.ingest("a-b-c", number, number + 1, segment)
    return entries


def query(database: Database, **parameters: str) -> UsageOverTime:
    return parse_series_request({**WINDOW, **parameters}, None).execute(database)


def is_in_first_hours(entry: LedgerEntry) -> bool:
    return entry.time < "2026-03-04T07:00"


Test = Callable[[LedgerEntry], bool]
Group = Callable[[LedgerEntry], str | None]
FILTERS: list[tuple[dict[str, str], Test]] = [
    ({}, lambda entry: True),
    ({"key": "k2", "provider": "q"}, lambda entry: entry.key_id == "k2" and entry.provider == "q"),
    ({"model": "ä"}, lambda entry: entry.model == "ä"),
    ({"model": "alias"}, lambda entry: False),
    ({"tag": "x:a"}, lambda entry: entry.tags.get("x") == "a"),
    ({"status": "error"}, lambda entry: entry.status == "error"),
    ({"status": "ok"}, lambda entry: entry.status == "ok"),
    ({"status": "ok", "tag": "x:a", "key": "k2"}, lambda e: (e.status, e.key_id, e.tags.get("x")) == ("ok", "k2", "a")),
    ({"status": "cut", "model": "ä"}, lambda entry: (entry.status, entry.model) == ("cut", "ä")),
    ({"status": "error", "http_status": "502"}, lambda entry: (entry.status, entry.http_status) == ("error", 502)),
    ({"model": "alias", "http_status": "502"}, lambda entry: False),
    ({"http_status": "502", "tag": "team:b"}, lambda entry: entry.http_status == 502 and entry.tags.get("team") == "b"),
    ({"until": "2026-03-04T06:30:00Z"}, is_in_first_hours),
]
GROUPS: list[tuple[str, Group]] = [
    ("none", lambda entry: ""),
    ("key", lambda entry: entry.key_id),
    ("model", lambda entry: entry.model),
    ("provider", lambda entry: entry.provider),
    ("tag:team", lambda entry: entry.tags.get("team", "")),
]


@pytest.mark.parametrize("interval", ["hour", "day"])
def test_series_equals_plain_sums_of_the_entries(database: Database, entries: list[LedgerEntry], interval: str) -> None:
    length = len("2026-03-04T07") if interval == "hour" else len("2026-03-04")
    for filter, passes in FILTERS:
        if interval == "day" and "until" in filter:
            continue
        for by, group in GROUPS:
            expected: dict[tuple[str, str | None], list[LedgerEntry]] = {}
            for entry in filter_entries(entries, passes):
                expected.setdefault((entry.time[:length], group(entry)), []).append(entry)
            found = query(database, interval=interval, by=by, **filter)
            points = {(point.time[:length], point.value): point for point in found.data}
            assert points.keys() == expected.keys(), (filter, by)
            for key, point in points.items():
                assert amounts(point) == plain_sums(expected[key]), (filter, by, key)
            assert amounts(found.totals) == plain_sums(filter_entries(entries, passes)), (filter, by)
            assert sum(each.requests for each in found.groups) == found.totals.requests
            assert found.complete_since == found.since


def test_series_by_minute_equals_plain_sums(database: Database, entries: list[LedgerEntry]) -> None:
    window = {"since": "2026-03-04T05:00:10Z", "until": "2026-03-04T08:00:00Z"}
    found = query(database, interval="minute", **window)
    selected = [entry for entry in entries if "2026-03-04T05:00" <= entry.time < "2026-03-04T08:00"]
    assert selected
    assert amounts(found.totals) == plain_sums(selected)
    assert {point.time[:16] for point in found.data} == {entry.time[:16] for entry in selected}


def test_series_without_time_left_counts_the_newest_intervals_completely(
    database: Database, entries: list[LedgerEntry]
) -> None:
    request = parse_series_request({**WINDOW, "status": "ok"}, None)
    hurried = msgspec.structs.replace(request, query=msgspec.structs.replace(request.query, scan_seconds=0.0))
    found = hurried.execute(database)
    assert found.since < found.complete_since <= found.until
    expected = [entry for entry in entries if entry.status == "ok" and entry.time >= found.complete_since]
    assert amounts(found.totals) == plain_sums(expected)


@pytest.mark.parametrize("interval", ["hour", "day"])
def test_series_of_sums_stops_when_it_is_cancelled(
    database: Database, entries: list[LedgerEntry], interval: str
) -> None:
    request = parse_series_request({**WINDOW, "interval": interval, "by": "model"}, None)
    whole, checks = request.execute(database), itertools.count()
    rows = len(whole.data)
    found = request.execute(database, lambda: next(checks) > rows // 2)
    assert found.since < found.complete_since <= found.until
    assert by_value(found) == [point for point in by_value(whole) if point.time >= found.complete_since]
    assert bool(found.data) == (interval == "hour")


def test_series_of_sums_without_time_left_is_empty(database: Database, entries: list[LedgerEntry]) -> None:
    request = parse_series_request(WINDOW, None)
    hurried = msgspec.structs.replace(request, query=msgspec.structs.replace(request.query, scan_seconds=-1.0))
    found = hurried.execute(database)
    assert (found.data, found.totals.requests) == ([], 0)
    assert found.complete_since > max(entry.time for entry in entries)[:13]


def test_series_of_sums_reads_long_windows_in_parts(database: Database, entries: list[LedgerEntry]) -> None:
    window = {"since": "2026-02-01T00:00:00Z", "until": "2026-03-06T00:00:00Z"}
    assert query(database, **window).data == query(database).data
    assert (
        query(database, interval="day", **window | {"since": "2022-01-01T00:00:00Z"}).totals == query(database).totals
    )


@pytest.mark.parametrize("status", ["ok", "error"])
@pytest.mark.parametrize("checks_before_stop", [0, 5, 40])
def test_series_by_status_that_is_cancelled_counts_the_newest_hours_completely(
    database: Database, entries: list[LedgerEntry], status: str, checks_before_stop: int
) -> None:
    checks = itertools.count()
    request = parse_series_request({**WINDOW, "status": status, "by": "key"}, None)
    found = request.execute(database, lambda: next(checks) >= checks_before_stop)
    expected = [entry for entry in entries if entry.status == status and entry.time >= found.complete_since]
    assert found.totals.requests == len(expected)
    if expected:
        assert amounts(found.totals) == plain_sums(expected)


def test_series_by_status_before_the_sums_by_status_is_read_from_entries(
    database: SqlDatabase, entries: list[LedgerEntry]
) -> None:
    """The database is one whose older version wrote the hours before 7 o'clock."""
    begin = datetime.fromisoformat("2026-03-04T07:00:00Z").timestamp()
    database._run_statement("UPDATE status_hours_begin SET since = ?", (int(begin),))
    database._run_statement("DELETE FROM status_hours WHERE start < ?", (int(begin),))
    for status in ("ok", "error"):
        for since in (WINDOW["since"], "2026-03-04T07:00:00Z"):
            expected = [entry for entry in entries if entry.status == status and entry.time >= since[:19]]
            assert amounts(query(database, status=status, since=since).totals) == plain_sums(expected)


def test_series_groups_after_the_first_hundred_are_one(database: Database) -> None:
    time = datetime.fromtimestamp(START_MS / 1000).astimezone().isoformat()
    database.insert_entries([make_entry(f"r{n}", time=time, model=f"m{n}", cost_usd=float(n)) for n in range(130)])
    found = query(database, by="model")
    assert len(found.groups) == 101
    assert (found.groups[0].value, found.groups[-1].value) == ("m129", None)
    assert found.groups[-1].cost_usd == sum(range(30))
    assert sum(point.cost_usd or 0.0 for point in found.data) == found.totals.cost_usd == sum(range(130))


def by_value(usage: UsageOverTime) -> list[UsagePoint]:
    return sorted(usage.data, key=lambda point: (point.time, point.value or ""))


def filter_entries(entries: list[LedgerEntry], passes: Test) -> list[LedgerEntry]:
    return [entry for entry in entries if passes(entry)]


def amounts(found: object) -> tuple[object, ...]:
    names = ("requests", "errors", "prompt_tokens", "completion_tokens", "cost_usd", "unpriced_requests")
    return tuple(getattr(found, name) for name in names)


def plain_sums(entries: list[LedgerEntry]) -> tuple[object, ...]:
    costs = [entry.cost_usd for entry in entries if entry.cost_usd is not None]
    return (
        len(entries),
        sum(entry.status in ("error", "cut") for entry in entries),
        sum(entry.prompt_tokens or 0 for entry in entries),
        sum(entry.completion_tokens or 0 for entry in entries),
        pytest.approx(sum(costs), abs=5e-9) if costs else None,
        len(entries) - len(costs),
    )
