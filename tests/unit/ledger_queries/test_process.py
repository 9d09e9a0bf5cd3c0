"""The query process of a gateway: results, lost processes, cancellation and its end."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tests.processes import parent_of

from svc.errors import InternalError
from svc.ledger_queries.messages import EntryQuery, OverviewQuery, RequestsQuery, UsageSeriesQuery
from svc.ledger_queries.process import QueryProcess
from svc.stores.database.base import LedgerEntry, StoreUnavailable
from svc.stores.database.sqlite import SqliteDatabase

ENTRY = LedgerEntry(
    time="2026-03-04T05:06:07.000Z",
    request_id="req_1",
    key_id="key_1",
    key_name="one",
    tags={"team": "a"},
    endpoint="/v1/chat/completions",
    attempts=1,
    status="ok",
    http_status=200,
    cost_usd=0.5,
    latency_ms=12.0,
)
RANGE = {"since": "2026-03-04T00:00:00Z", "until": "2026-03-05T00:00:00Z"}
WAIT_SECONDS = 30.0


@pytest.fixture
async def queries(tmp_path: Path) -> AsyncIterator[QueryProcess]:
    database = SqliteDatabase(tmp_path / "svc.db")
    database.migrate()
    database.insert_entries([ENTRY])
    database.close()
    async with contextlib.aclosing(QueryProcess({}, tmp_path)) as opened:
        yield opened


async def test_query_process_returns_what_the_queries_find(queries: QueryProcess) -> None:
    page, series, csv, view, entry, missing = await asyncio.gather(
        queries.run(RequestsQuery(RANGE, None)),
        queries.run(UsageSeriesQuery({**RANGE, "by": "tag:team"}, "key_1")),
        queries.run(UsageSeriesQuery({**RANGE, "format": "csv"}, "key_2")),
        queries.run(OverviewQuery(None, 1_772_582_400, 1_772_668_800)),
        queries.run(EntryQuery("req_1")),
        queries.run(EntryQuery("req_2")),
    )
    assert [row["request_id"] for row in json.loads(page)["data"]] == ["req_1"]
    assert (json.loads(series.body)["totals"]["cost_usd"], series.csv_file_name) == (0.5, None)
    assert csv.body.decode().splitlines() == [
        "time,requests,errors,prompt_tokens,completion_tokens,cost_usd,unpriced_requests"
    ]
    assert csv.csv_file_name == "usage_20260304T0000Z_20260305T0000Z.csv"
    assert (view.totals.requests, view.latency_ms.p99) == (1, 12.0)
    assert (entry, missing) == (ENTRY, None)


async def test_killed_query_process_is_replaced_and_its_query_repeated(queries: QueryProcess) -> None:
    await queries.run(EntryQuery("req_1"))
    first = queries.pid
    assert first is not None
    os.kill(first, signal.SIGSTOP)
    query = asyncio.ensure_future(queries.run(EntryQuery("req_1")))
    await asyncio.sleep(0)
    os.kill(first, signal.SIGKILL)
    assert await query == ENTRY
    assert queries.pid not in (None, first)


async def test_query_process_that_hangs_is_killed_after_the_timeout(queries: QueryProcess) -> None:
    await queries.run(EntryQuery("req_1"))
    first = queries.pid
    assert first is not None
    os.kill(first, signal.SIGSTOP)
    with pytest.raises(StoreUnavailable, match=r"longer than 0\.1 seconds"):
        await queries.run(EntryQuery("req_1"), timeout_seconds=0.1)
    assert await queries.run(EntryQuery("req_1")) == ENTRY
    await wait_for_end(first)


async def test_cancelled_query_leaves_the_process_for_the_next_one(queries: QueryProcess) -> None:
    await queries.run(EntryQuery("req_1"))
    first = queries.pid
    query = asyncio.ensure_future(queries.run(EntryQuery("req_1")))
    await asyncio.sleep(0)
    query.cancel()
    with pytest.raises(asyncio.CancelledError):
        await query
    assert await queries.run(EntryQuery("req_1")) == ENTRY
    assert queries.pid == first


async def test_signals_for_all_processes_of_a_gateway_do_not_end_the_query_process(queries: QueryProcess) -> None:
    await queries.run(EntryQuery("req_1"))
    first = queries.pid
    assert first is not None
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        os.kill(first, number)
    assert await queries.run(EntryQuery("req_1")) == ENTRY
    assert queries.pid == first


async def test_closed_query_process_has_ended_and_rejects_queries(queries: QueryProcess) -> None:
    await queries.run(EntryQuery("req_1"))
    first = queries.pid
    assert first is not None
    await queries.aclose()
    assert parent_of(first) is None
    with pytest.raises(StoreUnavailable, match="shuts down"):
        await queries.run(EntryQuery("req_1"))
    assert queries.pid is None


async def test_program_that_cannot_start_is_unavailable(tmp_path: Path) -> None:
    command = (sys.executable, "-c", "raise SystemExit(3)")
    async with contextlib.aclosing(QueryProcess({}, tmp_path, command)) as queries:
        with pytest.raises(StoreUnavailable, match="does not run"):
            await queries.run(EntryQuery("req_1"))


async def test_fault_in_a_query_is_an_internal_error_and_the_process_goes_on(
    queries: QueryProcess, caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(InternalError):
        await queries.run(RequestsQuery({"limit": "none"}, None))
    assert "limit must be a number" in caplog.text
    assert await queries.run(EntryQuery("req_1")) == ENTRY


async def wait_for_end(pid: int) -> None:
    async with asyncio.timeout(WAIT_SECONDS):
        while parent_of(pid) is not None:
            await asyncio.sleep(0.01)
