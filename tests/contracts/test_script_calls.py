"""Calls of the counters' script that go to Redis together, with a real server."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator

import pytest
import pytest_asyncio

from svc.stores.counters.base import LimitExceeded
from svc.stores.counters.key_limits import KeyLimits
from svc.stores.counters.redis import RedisCounters
from svc.stores.counters.redis_types import RedisReservation, SpentRequired
from svc.stores.counters.script_calls import MAX_CALLS
from svc.stores.database.base import StoreUnavailable
from svc.stores.redis.base import OutcomeUnknown, RedisClient, RedisReplyError
from svc.stores.redis.factory import open_redis
from tests.fakes.redis_server import RedisServer

Outcome = RedisReservation | LimitExceeded | SpentRequired | StoreUnavailable
LIMITS = [KeyLimits(key_id=f"k{number}", requests=100, tokens=1000) for number in range(8)]


@pytest.fixture
def server() -> Iterator[RedisServer]:
    with RedisServer() as one:
        yield one


@pytest_asyncio.fixture
async def redis(server: RedisServer) -> AsyncIterator[RedisClient]:
    one = open_redis(server.url)
    await one.start()
    yield one
    await one.close()


@pytest_asyncio.fixture
async def counters(redis: RedisClient) -> AsyncIterator[RedisCounters]:
    one = RedisCounters(redis)
    one.start()
    await one.get_usage(LIMITS[0])  # Redis has cached the script
    yield one
    await one.close()


def reserve(counters: RedisCounters, limits: list[KeyLimits]) -> list[asyncio.Future[Outcome]]:
    """Reserve for all keys in one iteration of the event loop."""
    futures = []
    for each in limits:
        future: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()
        counters.reserve(each, 10, 0, None, future.set_result)
        futures.append(future)
    return futures


async def count_scripts(redis: RedisClient) -> int:
    """Return how many commands ran the script."""
    statistics = await redis.execute("INFO", "commandstats")
    assert isinstance(statistics, bytes)
    line = next(line for line in statistics.splitlines() if line.startswith(b"cmdstat_evalsha:"))
    return int(line.partition(b"calls=")[2].partition(b",")[0])


async def test_script_calls_of_one_iteration_are_one_command(redis: RedisClient, counters: RedisCounters) -> None:
    before = await count_scripts(redis)
    outcomes = await asyncio.gather(*reserve(counters, [*LIMITS, *LIMITS[:2]]))
    assert await count_scripts(redis) == before + 1
    assert all(isinstance(outcome, RedisReservation) for outcome in outcomes)
    for limits, count in zip(LIMITS, (2, 2, 1, 1, 1, 1, 1, 1), strict=True):
        assert (await counters.get_usage(limits)).requests == count


async def test_script_calls_above_the_maximum_are_several_commands(redis: RedisClient, counters: RedisCounters) -> None:
    before = await count_scripts(redis)
    outcomes = await asyncio.gather(*reserve(counters, LIMITS[:1] * (MAX_CALLS + 1)))
    assert await count_scripts(redis) == before + 2
    assert sorted(outcome.requests_left for outcome in outcomes if isinstance(outcome, RedisReservation)) == list(
        range(100 - MAX_CALLS - 1, 100)
    )


@pytest.mark.parametrize("damaged", [{0}, {3}, {7}, {0, 1, 4}, set(range(8))])
async def test_script_calls_with_a_damaged_key_fail_for_this_key_only(
    redis: RedisClient, counters: RedisCounters, damaged: set[int]
) -> None:
    for number in damaged:
        await redis.execute("SET", f"svc:key:k{number}", "no hash")
    outcomes = await asyncio.gather(*reserve(counters, LIMITS))
    failed = {number for number, outcome in enumerate(outcomes) if isinstance(outcome, RedisReplyError)}
    assert failed == damaged
    for number, limits in enumerate(LIMITS):
        if number not in damaged:
            usage = await counters.get_usage(limits)
            assert (usage.requests, usage.tokens, usage.running) == (1, 10, 1)


async def test_script_calls_after_script_flush_are_executed_once(redis: RedisClient, counters: RedisCounters) -> None:
    await redis.execute("SCRIPT", "FLUSH")
    assert all(isinstance(outcome, RedisReservation) for outcome in await asyncio.gather(*reserve(counters, LIMITS)))
    assert [(await counters.get_usage(limits)).requests for limits in LIMITS] == [1] * len(LIMITS)


async def test_script_calls_flushed_with_a_commit_precede_it(counters: RedisCounters) -> None:
    """A commit of a key with a limit of concurrent requests is written at once, with what was unsent."""
    limits = KeyLimits(key_id="k", concurrency=1)
    (first,) = await asyncio.gather(*reserve(counters, [limits]))
    assert isinstance(first, RedisReservation)
    rejected, *_ = reserve(counters, [limits])
    counters.commit(first, 0, 0)
    accepted, *_ = reserve(counters, [limits])
    assert isinstance(await rejected, LimitExceeded)
    assert isinstance(await accepted, RedisReservation)


async def test_script_calls_pending_when_the_server_dies_have_unknown_outcomes(
    counters: RedisCounters, server: RedisServer
) -> None:
    server.freeze()
    futures = reserve(counters, LIMITS)
    await asyncio.sleep(0)  # they are written
    server.kill()
    assert all(isinstance(outcome, OutcomeUnknown) for outcome in await asyncio.gather(*futures))


async def test_script_calls_while_redis_is_down_fail_at_once(
    redis: RedisClient, counters: RedisCounters, server: RedisServer
) -> None:
    server.kill()
    async with asyncio.timeout(20):
        while not redis.is_down:
            await asyncio.sleep(0.01)
    outcomes = [future.result() for future in reserve(counters, LIMITS)]
    assert all(isinstance(outcome, StoreUnavailable) for outcome in outcomes)
