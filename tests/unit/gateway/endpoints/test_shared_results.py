"""Queries whose result several callers share."""

from __future__ import annotations

import asyncio

import pytest

from svc.errors import NotFound
from svc.gateway.endpoints.shared_results import SharedResults


class Query:
    """A query that ends when the test releases it, and counts its runs."""

    def __init__(self) -> None:
        self.started = 0
        self.cancelled = 0
        self.release = asyncio.Event()
        self.error: Exception | None = None

    async def run(self) -> int:
        self.started += 1
        number = self.started
        try:
            await self.release.wait()
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        if self.error is not None:
            raise self.error
        return number


async def start(*coroutines: object) -> list[asyncio.Task[int]]:
    tasks = [asyncio.ensure_future(coroutine) for coroutine in coroutines]
    for _ in range(3):
        await asyncio.sleep(0)
    return tasks


async def test_concurrent_callers_share_a_query_and_keys_do_not() -> None:
    shared, query = SharedResults[int](60.0), Query()
    tasks = await start(*[shared.get(key, query.run) for key in ("a", "a", "b", "a")])
    query.release.set()
    assert await asyncio.gather(*tasks) == [1, 1, 2, 1]
    assert await shared.get("a", query.run) == 1
    assert query.started == 2


async def test_result_is_shared_only_for_its_time_after_the_start_of_the_query() -> None:
    shared, query = SharedResults[int](0.01), Query()
    (slow,) = await start(shared.get("a", query.run))
    await asyncio.sleep(0.02)
    (later,) = await start(shared.get("a", query.run))
    query.release.set()
    assert await asyncio.gather(slow, later) == [1, 2]
    await asyncio.sleep(0.02)
    assert await shared.get("a", query.run) == 3


async def test_query_is_cancelled_when_its_last_caller_leaves() -> None:
    shared, query = SharedResults[int](60.0), Query()
    first, second = await start(shared.get("a", query.run), shared.get("a", query.run))
    first.cancel()
    await asyncio.gather(first, return_exceptions=True)
    assert query.cancelled == 0
    second.cancel()
    await asyncio.gather(second, return_exceptions=True)
    (third,) = await start(shared.get("a", query.run))
    assert (query.started, query.cancelled) == (2, 1)
    query.release.set()
    assert await third == 2


async def test_errors_reach_all_callers_and_are_not_remembered() -> None:
    shared, query = SharedResults[int](60.0), Query()
    query.error = NotFound("gone")
    tasks = await start(shared.get("a", query.run), shared.get("a", query.run))
    query.release.set()
    for task in tasks:
        with pytest.raises(NotFound):
            await task
    query.error = None
    assert await shared.get("a", query.run) == 2
