"""Long queries in a thread of their own, which end when nobody waits for them."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
from starlette.requests import Request

from svc.gateway.endpoints.disconnects import run_while_connected
from svc.stores.database.base import Database, StoreUnavailable
from svc.stores.database.query_thread import IsCancelled, QueryThread
from svc.stores.database.sqlite import SqliteDatabase

LONG_STATEMENT = "WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n) SELECT MAX(x) FROM n"


@pytest.fixture
async def queries(tmp_path: Path) -> AsyncIterator[QueryThread]:
    thread = QueryThread(SqliteDatabase(tmp_path / "svc.db"))
    await thread.run_query(Database.ping)
    yield thread
    await thread.close()


async def test_cancelled_query_is_interrupted_and_the_next_one_runs(queries: QueryThread) -> None:
    task = asyncio.ensure_future(queries.run_cancellable(run_statement))
    await asyncio.sleep(0.2)
    task.cancel()
    began = time.monotonic()
    assert await queries.run_cancellable(lambda database, _: database.count_keys()) == 0
    assert time.monotonic() - began < 5
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_cancelled_query_that_waits_does_not_start(queries: QueryThread) -> None:
    started: list[str] = []
    first = asyncio.ensure_future(queries.run_cancellable(run_statement))
    await asyncio.sleep(0.1)
    second = asyncio.ensure_future(queries.run_cancellable(lambda *_: started.append("second")))
    await asyncio.sleep(0)
    second.cancel()
    await asyncio.sleep(0)
    first.cancel()
    assert await queries.run_query(lambda database: database.count_keys()) == 0
    assert started == []
    await asyncio.gather(first, second, return_exceptions=True)


async def test_query_of_several_statements_is_told_to_stop(queries: QueryThread) -> None:
    task = asyncio.ensure_future(queries.run_cancellable(wait_for_stop))
    await asyncio.sleep(0.1)
    task.cancel()
    assert await asyncio.wait_for(queries.run_query(lambda database: database.count_keys()), 20) == 0
    await asyncio.gather(task, return_exceptions=True)


async def test_client_that_disconnects_cancels_the_query(queries: QueryThread) -> None:
    disconnected = asyncio.Event()

    async def receive() -> dict[str, str]:
        await disconnected.wait()
        return {"type": "http.disconnect"}

    request = Request({"type": "http", "method": "GET", "headers": []}, receive)
    task = asyncio.ensure_future(run_while_connected(request, queries.run_cancellable(run_statement)))
    await asyncio.sleep(0.2)
    assert not task.done()
    disconnected.set()
    assert await asyncio.wait_for(task, 20) is None
    assert await asyncio.wait_for(queries.run_query(lambda database: database.count_keys()), 20) == 0


async def test_close_interrupts_the_running_query_and_rejects_waiting_ones(queries: QueryThread) -> None:
    started = threading.Event()
    running = asyncio.ensure_future(queries.run_cancellable(notify_and_run(started)))
    waiting = asyncio.ensure_future(queries.run_cancellable(lambda database, _: database.count_keys()))
    await asyncio.to_thread(started.wait, 10)
    await asyncio.wait_for(queries.close(), 10)
    for task in (running, waiting):
        with pytest.raises(StoreUnavailable):
            await task


async def test_close_stops_a_query_of_several_statements(queries: QueryThread) -> None:
    started = threading.Event()
    task = asyncio.ensure_future(queries.run_cancellable(notify_and_wait_for_stop(started)))
    await asyncio.to_thread(started.wait, 10)
    await asyncio.wait_for(queries.close(), 10)
    with pytest.raises(StoreUnavailable):
        await task


async def test_cancellation_after_close_raises_cancelled_error(queries: QueryThread) -> None:
    started, release = threading.Event(), threading.Event()

    def ignore_stop(database: Database, is_cancelled: IsCancelled) -> None:
        started.set()
        release.wait(10)

    task = asyncio.ensure_future(queries.run_cancellable(ignore_stop))
    await asyncio.to_thread(started.wait, 10)
    closing = asyncio.ensure_future(queries.close())
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    release.set()
    await asyncio.wait_for(closing, 10)


def notify_and_run(started: threading.Event) -> Callable[[Database, IsCancelled], None]:
    def run(database: Database, is_cancelled: IsCancelled) -> None:
        started.set()
        run_statement(database, is_cancelled)

    return run


def notify_and_wait_for_stop(started: threading.Event) -> Callable[[Database, IsCancelled], None]:
    def run(database: Database, is_cancelled: IsCancelled) -> None:
        started.set()
        wait_for_stop(database, is_cancelled)

    return run


def run_statement(database: Database, is_cancelled: IsCancelled) -> None:
    database._run_statement(LONG_STATEMENT)  # type: ignore[attr-defined]


def wait_for_stop(database: Database, is_cancelled: IsCancelled) -> None:
    while not is_cancelled():
        time.sleep(0.01)
