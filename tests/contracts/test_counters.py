"""What all counters must do, over every kind: in one process, in memory that workers share, in Redis.

Two parties, `one` and `two`, count the same keys. Time is moved by the test: the clock's, or what Redis has noted.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any, Protocol

import msgspec
import pytest
import pytest_asyncio

from svc.stores.counters import redis
from svc.stores.counters.base import COUNTER_WINDOW_SECONDS, KeyLimits, LimitExceeded, LimitUsage
from svc.stores.counters.redis import SPENT_UNAVAILABLE, RedisCounters, RedisReservation, SpentRequired
from svc.stores.counters.shared_memory import SharedCounters, SharedMemoryReservation
from svc.stores.database.base import StoreUnavailable
from svc.stores.redis.connection import RedisConnection
from tests.fakes.redis_server import RedisServer

Got = SharedMemoryReservation | RedisReservation | LimitExceeded | SpentRequired


class Party(Protocol):
    """One process that counts."""

    async def take(self, limits: KeyLimits, tokens: int = 0, nanos: int = 0, spent: int | None = None) -> Got: ...

    async def settle(self, taken: Any, tokens: int = 0, nanos: int = 0) -> None: ...

    async def use(self, limits: KeyLimits) -> LimitUsage: ...


class Parties(Protocol):
    one: Party
    two: Party

    async def wait(self, seconds: int) -> None:
        """That time goes by."""

    async def lose_two(self) -> None:
        """`two` dies with what it has running, and what is left of it is cleared away."""


class Local:
    """SharedCounters, asked like all others."""

    def __init__(self, counters: SharedCounters) -> None:
        self.counters = counters

    async def take(self, limits: KeyLimits, tokens: int = 0, nanos: int = 0, spent: int | None = None) -> Got:
        if limits.budget_nano_usd and self.counters.needs_spent(limits):
            if spent is None:
                return SpentRequired()
            if spent != SPENT_UNAVAILABLE:
                self.counters.set_spent(limits, spent)
        return self.counters.reserve(limits, tokens, nanos)

    async def settle(self, taken: SharedMemoryReservation, tokens: int = 0, nanos: int = 0) -> None:
        self.counters.commit(taken, tokens, nanos)

    async def use(self, limits: KeyLimits) -> LimitUsage:
        return self.counters.get_usage(limits)


class LocalParties:
    """With a clock of their own."""

    def __init__(self, path: Path | None) -> None:
        self.now = 1000.25
        self._path = path
        first = SharedCounters(path, worker=0, workers=2, clock=self.monotonic)
        self.one = Local(first)
        self.two = Local(first if path is None else SharedCounters(path, worker=1, workers=2, clock=self.monotonic))

    def monotonic(self) -> float:
        return self.now

    async def wait(self, seconds: int) -> None:
        self.now += seconds

    async def lose_two(self) -> None:
        if self._path is None:
            pytest.fail("one process alone cannot lose another")
        self.two = Local(SharedCounters(self._path, worker=1, workers=2, clock=self.monotonic))


class Remote:
    """RedisCounters, likewise."""

    def __init__(self, redis: RedisConnection) -> None:
        self.redis = redis
        self.waited = 0
        self.began: dict[int, int] = {}
        self.counters = RedisCounters(redis)
        self.counters.start()

    async def take(self, limits: KeyLimits, tokens: int = 0, nanos: int = 0, spent: int | None = None) -> Got:
        got: asyncio.Future[Got | StoreUnavailable] = asyncio.get_running_loop().create_future()
        self.counters.reserve(limits, tokens, nanos, spent, got.set_result)
        found = await got
        if isinstance(found, StoreUnavailable):
            raise found
        self.began[id(found)] = self.waited
        return found

    async def settle(self, taken: RedisReservation, tokens: int = 0, nanos: int = 0) -> None:
        older = taken.second - self.waited + self.began[id(taken)]
        self.counters.commit(msgspec.structs.replace(taken, second=older), tokens, nanos)
        await self.redis.execute("PING")  # answers come in their order

    async def use(self, limits: KeyLimits) -> LimitUsage:
        return await self.counters.get_usage(limits)


class RemoteParties:
    def __init__(self, one: RedisConnection, two: RedisConnection) -> None:
        self.one, self.two = Remote(one), Remote(two)

    def monotonic(self) -> float:
        return time.monotonic() + self.one.waited

    async def wait(self, seconds: int) -> None:
        """Everything in Redis is made so much older."""
        redis = self.one.redis
        for party in (self.one, self.two):
            party.waited += seconds
        for key in await redis.execute("KEYS", "svc:key:*"):  # type: ignore[union-attr]
            found: list[bytes] = await redis.execute("HGETALL", key)  # type: ignore[assignment]
            fields = dict(zip(found[::2], found[1::2], strict=True))
            await redis.execute("DEL", key)
            for name, value in fields.items():
                if name in (b"newest", b"buried"):
                    value = b"%d" % (int(value) - seconds)
                if name[:1] in (b"r", b"t") and name[1:].isdigit():
                    name = b"%b%d" % (name[:1], (int(name[1:]) - seconds) % COUNTER_WINDOW_SECONDS)
                await redis.execute("HSET", key, name, value)

    async def lose_two(self) -> None:
        await self.two.counters.close()
        await self.wait(1)  # the dead are looked for once a second


@pytest.fixture(scope="module")
def server() -> Iterator[RedisServer]:
    with RedisServer() as one:
        yield one


@pytest_asyncio.fixture(params=["process", "shared", "redis"])
async def parties(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Parties]:
    if request.param != "redis":
        local = LocalParties(tmp_path / "counters" if request.param == "shared" else None)
        yield local
        return
    server: RedisServer = request.getfixturevalue("server")
    server.tell("FLUSHALL")
    one, two = RedisConnection(server.url), RedisConnection(server.url)
    await one.start()
    await two.start()
    remote = RemoteParties(one, two)
    monkeypatch.setattr(redis, "time", remote)
    yield remote
    for party in (remote.one, remote.two):
        await party.counters.close()
        await party.redis.close()


async def test_a_limit_is_one_for_both(parties: Parties) -> None:
    limits = KeyLimits(key_id="k", requests=10)
    got = [await (parties.one if number % 2 else parties.two).take(limits) for number in range(20)]
    assert [type(each) is not LimitExceeded for each in got] == [True] * 10 + [False] * 10
    assert [each.requests_left for each in got if not isinstance(each, SpentRequired)] == [*range(9, -1, -1), *[0] * 10]
    assert not isinstance(await parties.one.take(KeyLimits(key_id="other", requests=10)), LimitExceeded)


async def test_the_window_slides(parties: Parties) -> None:
    limits = KeyLimits(key_id="k", requests=2)
    assert not isinstance(await parties.one.take(limits), LimitExceeded)
    await parties.wait(20)
    taken = await parties.two.take(limits)
    assert isinstance(taken, SharedMemoryReservation | RedisReservation)
    assert 60 <= taken.reset_seconds <= 61
    await parties.wait(10)
    denied = await parties.one.take(limits)
    assert isinstance(denied, LimitExceeded)
    assert denied.limit == "rpm"
    assert 29 <= denied.retry_after <= 31  # a real second may pass on the way
    assert 48.5 <= denied.requests_reset <= 51
    assert denied.tokens_reset == 0
    await parties.wait(math.ceil(denied.retry_after) - 2)
    assert isinstance(await parties.one.take(limits), LimitExceeded)
    await parties.wait(2)
    assert not isinstance(await parties.one.take(limits), LimitExceeded)
    assert isinstance(await parties.two.take(limits), LimitExceeded)
    await parties.wait(200)
    assert not isinstance(await parties.two.take(limits), LimitExceeded)


async def test_tokens_are_reserved_and_settled(parties: Parties) -> None:
    limits = KeyLimits(key_id="k", requests=100, tokens=100)
    first = await parties.one.take(limits, 60)
    assert isinstance(first, SharedMemoryReservation | RedisReservation)
    assert first.tokens_left == 40
    denied = await parties.two.take(limits, 60)
    assert isinstance(denied, LimitExceeded)
    assert denied.limit == "tpm"
    assert (denied.tokens_left, denied.requests_left) == (40, 98)  # it is a request all the same
    await parties.wait(5)
    await parties.one.settle(first, 10)
    second = await parties.two.take(limits, 60)
    assert isinstance(second, SharedMemoryReservation | RedisReservation)
    assert second.tokens_left == 30
    await parties.wait(100)
    await parties.two.settle(second, 90)  # long out of the window
    assert not isinstance(await parties.one.take(limits, 100), LimitExceeded)


async def test_one_that_used_more_than_it_reserved(parties: Parties) -> None:
    limits = KeyLimits(key_id="k", tokens=100)
    first = await parties.one.take(limits, 10)
    await parties.one.settle(first, 150)
    assert isinstance(await parties.two.take(limits, 1), LimitExceeded)


async def test_at_the_same_time(parties: Parties) -> None:
    limits = KeyLimits(key_id="k", concurrency=2)
    one, two = await parties.one.take(limits), await parties.two.take(limits)
    denied = await parties.one.take(limits)
    assert isinstance(denied, LimitExceeded)
    assert denied.limit == "concurrency"
    await parties.two.settle(two)
    assert not isinstance(await parties.one.take(limits), LimitExceeded)
    assert isinstance(await parties.two.take(limits), LimitExceeded)
    await parties.one.settle(one)
    assert not isinstance(await parties.two.take(limits), LimitExceeded)


@pytest.mark.parametrize("parties", ["shared", "redis"], indirect=True)
async def test_what_the_dead_had_running_is_freed(parties: Parties) -> None:
    limits = KeyLimits(key_id="k", concurrency=3, budget_nano_usd=1000)
    assert isinstance(await parties.one.take(limits, 0, 100, spent=0), SharedMemoryReservation | RedisReservation)
    for _ in range(2):
        assert isinstance(await parties.two.take(limits, 0, 400), SharedMemoryReservation | RedisReservation)
    assert isinstance(await parties.one.take(limits, 0, 1), LimitExceeded)
    await parties.lose_two()
    assert isinstance(await parties.one.take(limits, 0, 900), SharedMemoryReservation | RedisReservation)
    assert isinstance(await parties.one.take(limits, 0, 1), LimitExceeded)


async def test_a_budget(parties: Parties) -> None:
    limits = KeyLimits(key_id="k", budget_nano_usd=1000, period="day", period_start=86400)
    assert await parties.one.take(limits, 0, 500) == SpentRequired()
    taken = await parties.one.take(limits, 0, 500, spent=400)
    assert isinstance(taken, SharedMemoryReservation | RedisReservation)
    denied = await parties.two.take(limits, 0, 200, spent=0)  # later than the other
    assert isinstance(denied, LimitExceeded)
    assert denied.limit == "budget"
    assert denied.retry_after == 1.0  # the running request may turn out cheaper
    await parties.one.settle(taken, 0, 100)
    denied = await parties.two.take(limits, 0, 501)
    assert isinstance(denied, LimitExceeded)
    assert denied.retry_after == math.inf
    assert isinstance(await parties.two.take(limits, 0, 500), SharedMemoryReservation | RedisReservation)
    tomorrow = KeyLimits(key_id="k", budget_nano_usd=1000, period="day", period_start=2 * 86400)
    assert isinstance(await parties.two.take(tomorrow, 0, 500), SharedMemoryReservation | RedisReservation)
    assert await parties.one.take(KeyLimits(key_id="k", budget_nano_usd=1000, period="month"), 0, 1) == SpentRequired()


async def test_what_is_used_now(parties: Parties) -> None:
    limits = KeyLimits(key_id="k", tokens=100, budget_nano_usd=1000, period="day", period_start=86400)
    assert await parties.two.use(limits) == LimitUsage()
    first = await parties.one.take(limits, 60, 500, spent=400)
    assert await parties.two.use(limits) == LimitUsage(1, 60, 1, 400, 500)
    await parties.one.settle(first, 10, 100)
    assert await parties.two.use(limits) == LimitUsage(1, 10, 0, 500, 0)
    assert await parties.two.use(KeyLimits(key_id="k", period="day", period_start=2 * 86400)) == LimitUsage(
        1, 10, 0, 0, 0
    )
    assert await parties.two.use(KeyLimits(key_id="k", period="month")) == LimitUsage(1, 10, 0, None, 0)
    await parties.wait(61)
    assert await parties.one.use(limits) == LimitUsage(0, 0, 0, 500, 0)


async def test_a_budget_without_an_end(parties: Parties) -> None:
    limits = KeyLimits(key_id="k", budget_nano_usd=1000)
    taken = await parties.one.take(limits, 0, 10, spent=990)
    assert isinstance(taken, SharedMemoryReservation | RedisReservation)
    assert isinstance(await parties.two.take(limits, 0, 1), LimitExceeded)
    await parties.one.settle(taken, 0, 10)
    assert isinstance(await parties.two.take(limits), LimitExceeded)  # nor what has no price


async def test_nobody_can_say_what_was_spent(parties: Parties) -> None:
    limits = KeyLimits(key_id="k", budget_nano_usd=1000)
    taken = await parties.one.take(limits, 0, 600, spent=SPENT_UNAVAILABLE)
    assert isinstance(taken, SharedMemoryReservation | RedisReservation)
    assert isinstance(await parties.two.take(limits, 0, 600, spent=SPENT_UNAVAILABLE), LimitExceeded)
    assert await parties.two.take(limits, 0, 100) == SpentRequired()
    assert isinstance(await parties.two.take(limits, 0, 100, spent=300), SharedMemoryReservation | RedisReservation)


async def test_sums_of_money_that_are_large(parties: Parties) -> None:
    limits = KeyLimits(key_id="k", budget_nano_usd=10**15)  # a million USD
    taken = await parties.one.take(limits, 0, 3, spent=10**15 - 5)
    assert isinstance(taken, SharedMemoryReservation | RedisReservation)
    await parties.one.settle(taken, 0, 3)
    assert isinstance(await parties.two.take(limits, 0, 3), LimitExceeded)
    assert isinstance(await parties.two.take(limits, 0, 2), SharedMemoryReservation | RedisReservation)


async def test_a_limit_that_was_raised_holds_at_once(parties: Parties) -> None:
    assert not isinstance(await parties.one.take(KeyLimits(key_id="k", requests=1)), LimitExceeded)
    first = await parties.one.take(KeyLimits(key_id="k", requests=1))
    again = await parties.one.take(KeyLimits(key_id="k", requests=1))
    assert isinstance(first, LimitExceeded)
    assert isinstance(again, LimitExceeded)
    assert first.retry_after - 1.1 <= again.retry_after <= first.retry_after
    assert not isinstance(await parties.one.take(KeyLimits(key_id="k", requests=2)), LimitExceeded)
    assert isinstance(await parties.one.take(KeyLimits(key_id="k", requests=2)), LimitExceeded)


async def test_settling_what_is_forgotten(parties: Parties) -> None:
    limits = KeyLimits(key_id="k", requests=5, concurrency=5)
    taken = [await parties.one.take(limits) for _ in range(2)]
    for each in taken:
        await parties.one.settle(each, 0, 0)
    await parties.one.settle(taken[0], 0, 0)  # the gate settles once; nothing may become negative all the same
    got = [await parties.two.take(limits) for _ in range(4)]
    assert [isinstance(each, LimitExceeded) for each in got] == [False, False, False, True]
