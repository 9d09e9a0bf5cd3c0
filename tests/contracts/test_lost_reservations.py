"""What Redis counts after a connection or its data was lost: nothing that no request owns, and nothing twice."""

from __future__ import annotations

import asyncio
import inspect
import re
import time
from collections.abc import AsyncIterator, Callable, Iterator

import pytest
import pytest_asyncio

from svc.stores.counters.base import LimitExceeded, LimitUsage
from svc.stores.counters.key_limits import COUNTER_WINDOW_SECONDS, KeyLimits
from svc.stores.counters.redis import MAX_REJECTION_AGE_SECONDS, RedisCounters
from svc.stores.counters.redis_types import MAX_AMOUNT, RedisReservation
from svc.stores.redis.base import RedisClient
from svc.stores.redis.factory import open_redis
from tests.fakes.redis_server import RedisServer
from tests.fakes.tcp_proxy import TcpProxy

LIMITS = KeyLimits(key_id="k", tokens=1000, concurrency=1, budget_nano_usd=1000, period="total")
SEVERAL = KeyLimits(key_id="k", tokens=1000, concurrency=8)


@pytest.fixture
def server() -> Iterator[RedisServer]:
    with RedisServer() as one:
        yield one


class Clock:
    skipped = 0

    def __call__(self) -> float:
        return time.monotonic() + self.skipped


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest_asyncio.fixture
async def counters(redis: RedisClient, clock: Clock) -> AsyncIterator[RedisCounters]:
    counters = RedisCounters(redis, clock)
    counters.start()
    yield counters
    await counters.close()


async def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 8
    while not condition():
        assert time.monotonic() < deadline
        await asyncio.sleep(0.01)


async def decide(
    counters: RedisCounters, limits: KeyLimits, tokens: int = 0, nanos: int = 0, spent: int | None = 0
) -> object:
    decided = asyncio.get_running_loop().create_future()
    counters.reserve(limits, tokens, nanos, spent, decided.set_result)
    return await decided


async def reserved(counters: RedisCounters, limits: KeyLimits, tokens: int = 0, nanos: int = 0) -> RedisReservation:
    reservation = await decide(counters, limits, tokens, nanos)
    assert isinstance(reservation, RedisReservation)
    return reservation


def get_token_bucket(server: RedisServer, reservation: RedisReservation) -> int:
    reply = server.tell(f"HGET svc:key:k t{reservation.second % COUNTER_WINDOW_SECONDS}")
    found = re.fullmatch(rb"\$\d+\r\n(-?\d+)\r\n", reply)
    return int(found[1]) if found else 0


@pytest.mark.parametrize("cost", [0, 30])
async def test_request_that_ends_while_redis_is_disconnected_counts_as_used_at_the_reconnect(
    redis: RedisClient, counters: RedisCounters, server: RedisServer, cost: int
) -> None:
    reservation = await reserved(counters, LIMITS, 900, 700)
    server.tell("CLIENT KILL TYPE normal")
    await until(lambda: redis.is_down)
    counters.commit(reservation, 40, cost)
    await until(lambda: not redis.is_down)
    usage = await counters.get_usage(LIMITS)
    assert (usage.tokens, usage.running, usage.reserved_nano_usd, usage.spent_nano_usd) == (40, 0, 0, cost)
    assert get_token_bucket(server, reservation) == 40
    await reserved(counters, LIMITS, 900, 700)


async def test_request_whose_end_was_executed_without_a_reply_counts_once(server: RedisServer) -> None:
    with TcpProxy(server.port) as proxy:
        redis = open_redis(f"redis://127.0.0.1:{proxy.port}")
        await redis.start()
        counters = RedisCounters(redis)
        counters.start()
        reservation = await reserved(counters, LIMITS, 900, 700)
        proxy.hold()
        counters.commit(reservation, 40, 30)
        await until(lambda: redis.is_down)
        proxy.release()
        await until(lambda: not redis.is_down)
        usage = await counters.get_usage(LIMITS)
        assert (usage.tokens, usage.running, usage.reserved_nano_usd, usage.spent_nano_usd) == (40, 0, 0, 30)
        await counters.close()
        await redis.close()


async def test_request_of_lost_data_does_not_release_the_slot_of_a_newer_one(
    counters: RedisCounters, server: RedisServer
) -> None:
    lost = await reserved(counters, SEVERAL, 900)
    server.tell("FLUSHALL")
    newer = await reserved(counters, SEVERAL, 300)
    counters.commit(lost, 40, 0)
    usage = await counters.get_usage(SEVERAL)
    assert (usage.tokens, usage.running) == (300, 1)
    counters.commit(newer, 20, 0)
    usage = await counters.get_usage(SEVERAL)
    assert (usage.tokens, usage.running) == (20, 0)


async def test_data_without_a_full_minute_is_reported(
    counters: RedisCounters, server: RedisServer, clock: Clock
) -> None:
    """Other counters then decide as well. Redis can lose data without a disconnect, for example if it evicts keys."""
    assert not (await reserved(counters, SEVERAL)).has_full_window
    clock.skipped = COUNTER_WINDOW_SECONDS + 1
    assert not (await reserved(counters, SEVERAL)).has_full_window
    server.tell(f"HINCRBY svc:key:k created -{(COUNTER_WINDOW_SECONDS + 1) * 1_000_000}")
    assert (await reserved(counters, SEVERAL)).has_full_window
    server.tell("FLUSHALL")
    assert not (await reserved(counters, SEVERAL)).has_full_window


async def test_budget_of_older_data_is_compared_with_the_database(
    redis: RedisClient, counters: RedisCounters, server: RedisServer
) -> None:
    """A new primary, or a restart from a snapshot, can lack money that was spent."""
    first = await reserved(counters, LIMITS, nanos=10)
    counters.commit(first, 0, 900)
    assert (await counters.get_usage(LIMITS)).spent_nano_usd == 900
    server.tell("HSET svc:key:k spent 100")
    server.tell("CLIENT KILL TYPE normal")
    await until(lambda: redis.is_down)
    await until(lambda: not redis.is_down)
    assert counters.begin_comparison("k")
    assert not counters.begin_comparison("k")
    counters.raise_spent(LIMITS, 900)
    counters.record_spend("k", 50)  # under the seed of the old sum, as other gateways report what they deferred
    assert (await counters.get_usage(LIMITS)).spent_nano_usd == 900
    counters.commit(await reserved(counters, LIMITS, nanos=10), 0, 30)
    assert (await counters.get_usage(LIMITS)).spent_nano_usd == 930


async def test_sum_that_is_not_larger_does_not_replace_that_of_redis(counters: RedisCounters) -> None:
    """The database has entries a second later."""
    counters.commit(await reserved(counters, LIMITS, nanos=10), 0, 900)
    counters.raise_spent(LIMITS, 899)
    assert (await counters.get_usage(LIMITS)).spent_nano_usd == 900


async def test_new_period_begins_with_the_sum_of_the_database(counters: RedisCounters) -> None:
    yesterday, today = (
        KeyLimits(key_id="k", budget_nano_usd=1000, period="day", period_start=day) for day in (86_400, 172_800)
    )
    counters.commit(await reserved(counters, yesterday, nanos=10), 0, 900)
    rejection = await decide(counters, today, nanos=20, spent=990)
    assert isinstance(rejection, LimitExceeded)
    assert rejection.limit == "budget"


async def test_release_that_a_new_primary_lacks_is_repeated_at_the_reconnect(
    redis: RedisClient, counters: RedisCounters, server: RedisServer
) -> None:
    first = await reserved(counters, LIMITS, nanos=10)
    key = f"svc:key:k c:{first.process} 1 m:{first.process} 10 running 1 held 10"
    counters.commit(first, 0, 0)
    assert (await counters.get_usage(LIMITS)).running == 0
    for _ in range(2):  # the second one is that of an earlier process id
        server.tell(f"HSET {key}")
        server.tell(f"HDEL svc:key:k x:{first.process}")
        server.tell("CLIENT KILL TYPE normal")
        await until(lambda: redis.is_down)
        await until(lambda: not redis.is_down)
        usage = await counters.get_usage(LIMITS)
        assert (usage.running, usage.reserved_nano_usd) == (0, 0)


async def test_redis_counters_deleted_counters_of_a_limited_key_admit_again(
    counters: RedisCounters, redis: RedisClient, clock: Clock
) -> None:
    limits = KeyLimits(key_id="k", requests=10)
    await reserved(counters, limits)
    await redis.execute("HSET", "svc:key:k", "requests", "1000000")
    assert isinstance(await decide(counters, limits), LimitExceeded)
    await redis.execute("DEL", "svc:key:k")
    assert isinstance(await decide(counters, limits), LimitExceeded)  # repeated by this process
    clock.skipped = int(MAX_REJECTION_AGE_SECONDS)
    await reserved(counters, limits)


async def test_redis_counters_money_of_deleted_counters_is_not_added_to_the_next_sum(
    counters: RedisCounters, redis: RedisClient, server: RedisServer
) -> None:
    reservation = await reserved(counters, LIMITS, nanos=400)
    await redis.execute("HSET", "svc:key:k", "buried", "text")
    counters.commit(reservation, 0, 300)
    await redis.execute("PING")  # the reply of the commit is there
    await redis.execute("DEL", "svc:key:k")
    following = await decide(counters, LIMITS, nanos=10, spent=300)  # the database has the money
    assert isinstance(following, RedisReservation)
    counters.commit(following, 0, 5)
    assert (await counters.get_usage(LIMITS)).spent_nano_usd == 305
    server.tell("CLIENT KILL TYPE normal")
    await until(lambda: redis.is_down)
    await until(lambda: not redis.is_down)
    assert (await counters.get_usage(LIMITS)).spent_nano_usd == 305


async def test_redis_counters_money_of_repaired_counters_is_added_after_the_next_connect(
    counters: RedisCounters, redis: RedisClient, server: RedisServer
) -> None:
    reservation = await reserved(counters, LIMITS, nanos=400)
    await redis.execute("HSET", "svc:key:k", "buried", "text")
    counters.commit(reservation, 0, 2**70)
    await redis.execute("PING")
    await redis.execute("HDEL", "svc:key:k", "buried")
    server.tell("CLIENT KILL TYPE normal")
    await until(lambda: redis.is_down)
    await until(lambda: not redis.is_down)
    assert (await counters.get_usage(LIMITS)).spent_nano_usd == MAX_AMOUNT


async def test_redis_counters_money_of_an_earlier_sum_is_not_added_to_that_of_the_next_period(
    counters: RedisCounters, redis: RedisClient, server: RedisServer
) -> None:
    yesterday = KeyLimits(key_id="k", budget_nano_usd=1000, period="day", period_start=86_400)
    today = KeyLimits(key_id="k", budget_nano_usd=1000, period="day", period_start=2 * 86_400)
    reservation = await reserved(counters, yesterday, nanos=400)
    await redis.execute("HSET", "svc:key:k", "buried", "text")
    counters.commit(reservation, 0, 300)
    await redis.execute("PING")  # the reply of the commit is there
    await redis.execute("HDEL", "svc:key:k", "buried")
    assert isinstance(
        await decide(counters, today, nanos=10, spent=300), RedisReservation
    )  # the database has the money
    server.tell("CLIENT KILL TYPE normal")
    await until(lambda: redis.is_down)
    await until(lambda: not redis.is_down)
    assert (await counters.get_usage(today)).spent_nano_usd == 300


async def test_redis_counters_clock_set_back_by_hours_keeps_all_but_the_window(
    counters: RedisCounters, redis: RedisClient
) -> None:
    limits = KeyLimits(key_id="k", requests=2, tokens=1000, concurrency=2, budget_nano_usd=1000)
    ended, running = [await reserved(counters, limits, tokens=300, nanos=100) for _ in range(2)]
    counters.commit(ended, 200, 50)
    fields = await redis.execute("HGETALL", "svc:key:k")
    assert isinstance(fields, list)
    for name, value in zip(fields[::2], fields[1::2], strict=True):
        if name in (b"newest", b"buried") or name[:2] == b"a:":
            await redis.execute("HSET", "svc:key:k", name, int(value) + 7200)
    following = await reserved(counters, limits, tokens=10, nanos=100)
    assert (following.requests_left, following.tokens_left) == (1, 990)
    assert await counters.get_usage(limits) == LimitUsage(1, 10, 2, 50, 200)
    fields_of_running = {name: getattr(running, name) for name in inspect.signature(RedisReservation).parameters}
    counters.commit(RedisReservation(**{**fields_of_running, "second": running.second + 7200}), 200, 50)
    counters.commit(following, 10, 50)
    assert await counters.get_usage(limits) == LimitUsage(1, 10, 0, 150, 0)
