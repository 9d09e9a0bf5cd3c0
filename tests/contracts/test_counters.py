"""The contract of rate limit counters, tested in one process, in shared memory and in Redis.

Two parties, `one` and `two`, count the same keys. The test advances the clock, or ages the data in Redis.
"""

from __future__ import annotations

import asyncio
import inspect
import math
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any, Protocol

import pytest
import pytest_asyncio

from svc.stores.counters.base import LimitExceeded, LimitUsage
from svc.stores.counters.in_process import InProcessCounters
from svc.stores.counters.key_limits import COUNTER_WINDOW_SECONDS, KeyLimits
from svc.stores.counters.local import LocalCounters, LocalReservation
from svc.stores.counters.redis import SPENT_UNAVAILABLE, RedisCounters
from svc.stores.counters.redis_types import RedisReservation, SpentRequired
from svc.stores.counters.shared_memory import SharedCounters
from svc.stores.database.base import StoreUnavailable
from svc.stores.redis.base import RedisClient
from svc.stores.redis.factory import open_redis
from tests.fakes.redis_server import RedisServer

ReserveResult = LocalReservation | RedisReservation | LimitExceeded | SpentRequired


class Party(Protocol):
    """One process with counters."""

    async def reserve(
        self, limits: KeyLimits, tokens: int = 0, nanos: int = 0, spent: int | None = None
    ) -> ReserveResult: ...

    async def commit(self, reservation: Any, tokens: int = 0, nanos: int = 0) -> None: ...

    async def get_usage(self, limits: KeyLimits) -> LimitUsage: ...


class Parties(Protocol):
    one: Party
    two: Party

    async def wait(self, seconds: int) -> None:
        """Advance time."""

    async def lose_two(self) -> None:
        """End `two` while its reservations are open, and run the cleanup of dead processes."""


class LocalParty:
    """The counters of one machine behind the common interface."""

    def __init__(self, counters: LocalCounters) -> None:
        self.counters = counters

    async def reserve(
        self, limits: KeyLimits, tokens: int = 0, nanos: int = 0, spent: int | None = None
    ) -> ReserveResult:
        if limits.budget_nano_usd and self.counters.needs_spent(limits):
            if spent is None:
                return SpentRequired()
            if spent != SPENT_UNAVAILABLE:
                self.counters.set_spent(limits, spent)
        return self.counters.reserve(limits, tokens, nanos)

    async def commit(self, reservation: LocalReservation, tokens: int = 0, nanos: int = 0) -> None:
        self.counters.commit(reservation, tokens, nanos)

    async def get_usage(self, limits: KeyLimits) -> LimitUsage:
        return self.counters.get_usage(limits)


class LocalParties:
    """Two parties with a clock that the test advances."""

    def __init__(self, path: Path | None) -> None:
        self.now = 1000.25
        self._path = path
        if path is None:
            self.one = self.two = LocalParty(InProcessCounters(clock=self.monotonic))
        else:
            self.one, self.two = [
                LocalParty(SharedCounters(path, worker=worker, workers=2, clock=self.monotonic)) for worker in (0, 1)
            ]

    def monotonic(self) -> float:
        return self.now

    async def wait(self, seconds: int) -> None:
        self.now += seconds

    async def lose_two(self) -> None:
        if self._path is None:
            pytest.fail("one process alone cannot lose another")
        self.two = LocalParty(SharedCounters(self._path, worker=1, workers=2, clock=self.monotonic))


class RedisParty:
    """RedisCounters behind the common interface."""

    def __init__(self, redis: RedisClient) -> None:
        self.redis = redis
        self.waited = 0
        self.reserved_at: dict[int, int] = {}
        self.counters = RedisCounters(redis, lambda: time.monotonic() + self.waited)
        self.counters.start()

    async def reserve(
        self, limits: KeyLimits, tokens: int = 0, nanos: int = 0, spent: int | None = None
    ) -> ReserveResult:
        got: asyncio.Future[ReserveResult | StoreUnavailable] = asyncio.get_running_loop().create_future()
        self.counters.reserve(limits, tokens, nanos, spent, got.set_result)
        found = await got
        if isinstance(found, StoreUnavailable):
            raise found
        self.reserved_at[id(found)] = self.waited
        return found

    async def commit(self, reservation: RedisReservation, tokens: int = 0, nanos: int = 0) -> None:
        older = reservation.second - self.waited + self.reserved_at[id(reservation)]
        fields = {name: getattr(reservation, name) for name in inspect.signature(RedisReservation).parameters}
        self.counters.commit(RedisReservation(**{**fields, "second": older}), tokens, nanos)
        await self.redis.execute("PING")  # replies arrive in order

    async def get_usage(self, limits: KeyLimits) -> LimitUsage:
        return await self.counters.get_usage(limits)


class RedisParties:
    def __init__(self, one: RedisClient, two: RedisClient) -> None:
        self.one, self.two = RedisParty(one), RedisParty(two)

    async def wait(self, seconds: int) -> None:
        """Age all data in Redis by this many seconds."""
        redis = self.one.redis
        for party in (self.one, self.two):
            party.waited += seconds
        for key in await redis.execute("KEYS", "svc:key:*"):  # type: ignore[union-attr]
            found: list[bytes] = await redis.execute("HGETALL", key)  # type: ignore[assignment]
            fields = dict(zip(found[::2], found[1::2], strict=True))
            await redis.execute("DEL", key)
            for name, value in fields.items():
                if name in (b"newest", b"buried") or name[:2] in (b"a:", b"x:"):
                    value = b"%d" % (int(value) - seconds)
                if name[:1] in (b"r", b"t") and name[1:].isdigit():
                    name = b"%b%d" % (name[:1], (int(name[1:]) - seconds) % COUNTER_WINDOW_SECONDS)
                await redis.execute("HSET", key, name, value)

    async def lose_two(self) -> None:
        await self.two.counters.close()
        await self.wait(1)  # dead processes are detected once a second


@pytest.fixture(scope="module")
def server() -> Iterator[RedisServer]:
    with RedisServer() as one:
        yield one


@pytest_asyncio.fixture(params=["process", "shared", "redis"])
async def parties(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Parties]:
    if request.param != "redis":
        local = LocalParties(tmp_path / "counters" if request.param == "shared" else None)
        yield local
        return
    server: RedisServer = request.getfixturevalue("server")
    server.tell("FLUSHALL")
    one, two = open_redis(server.url), open_redis(server.url)
    await one.start()
    await two.start()
    remote = RedisParties(one, two)
    yield remote
    for party in (remote.one, remote.two):
        await party.counters.close()
        await party.redis.close()


async def test_counters_two_parties_share_one_limit(parties: Parties) -> None:
    limits = KeyLimits(key_id="k", requests=10)
    got = [await (parties.one if number % 2 else parties.two).reserve(limits) for number in range(20)]
    assert [type(each) is not LimitExceeded for each in got] == [True] * 10 + [False] * 10
    assert [each.requests_left for each in got if not isinstance(each, SpentRequired)] == [*range(9, -1, -1), *[0] * 10]
    assert not isinstance(await parties.one.reserve(KeyLimits(key_id="other", requests=10)), LimitExceeded)


async def test_counters_request_window_slides(parties: Parties) -> None:
    limits = KeyLimits(key_id="k", requests=2)
    assert not isinstance(await parties.one.reserve(limits), LimitExceeded)
    await parties.wait(20)
    reservation = await parties.two.reserve(limits)
    assert isinstance(reservation, LocalReservation | RedisReservation)
    assert 60 <= reservation.reset_seconds <= 61
    await parties.wait(10)
    denied = await parties.one.reserve(limits)
    assert isinstance(denied, LimitExceeded)
    assert denied.limit == "rpm"
    assert 29 <= denied.retry_after <= 31  # a real second may pass meanwhile
    assert 48.5 <= denied.requests_reset <= 51
    assert denied.tokens_reset == 0
    await parties.wait(math.ceil(denied.retry_after) - 2)
    assert isinstance(await parties.one.reserve(limits), LimitExceeded)
    await parties.wait(2)
    assert not isinstance(await parties.one.reserve(limits), LimitExceeded)
    assert isinstance(await parties.two.reserve(limits), LimitExceeded)
    await parties.wait(200)
    assert not isinstance(await parties.two.reserve(limits), LimitExceeded)


async def test_counters_committed_tokens_replace_reserved_tokens(parties: Parties) -> None:
    limits = KeyLimits(key_id="k", requests=100, tokens=100)
    first = await parties.one.reserve(limits, 60)
    assert isinstance(first, LocalReservation | RedisReservation)
    assert first.tokens_left == 40
    denied = await parties.two.reserve(limits, 60)
    assert isinstance(denied, LimitExceeded)
    assert denied.limit == "tpm"
    assert (denied.tokens_left, denied.requests_left) == (40, 98)  # the rejected request counts
    await parties.wait(5)
    await parties.one.commit(first, 10)
    second = await parties.two.reserve(limits, 60)
    assert isinstance(second, LocalReservation | RedisReservation)
    assert second.tokens_left == 30
    await parties.wait(100)
    await parties.two.commit(second, 90)  # the reservation has left the window
    assert not isinstance(await parties.one.reserve(limits, 100), LimitExceeded)


async def test_counters_commit_above_reservation_counts_fully(parties: Parties) -> None:
    limits = KeyLimits(key_id="k", tokens=100)
    first = await parties.one.reserve(limits, 10)
    await parties.one.commit(first, 150)
    assert isinstance(await parties.two.reserve(limits, 1), LimitExceeded)


async def test_counters_concurrency_limit_is_shared(parties: Parties) -> None:
    limits = KeyLimits(key_id="k", concurrency=2)
    one, two = await parties.one.reserve(limits), await parties.two.reserve(limits)
    denied = await parties.one.reserve(limits)
    assert isinstance(denied, LimitExceeded)
    assert denied.limit == "concurrency"
    await parties.two.commit(two)
    assert not isinstance(await parties.one.reserve(limits), LimitExceeded)
    assert isinstance(await parties.two.reserve(limits), LimitExceeded)
    await parties.one.commit(one)
    assert not isinstance(await parties.two.reserve(limits), LimitExceeded)


@pytest.mark.parametrize("parties", ["shared", "redis"], indirect=True)
async def test_counters_dead_party_reservations_are_freed(parties: Parties) -> None:
    limits = KeyLimits(key_id="k", concurrency=3, budget_nano_usd=1000)
    assert isinstance(await parties.one.reserve(limits, 0, 100, spent=0), LocalReservation | RedisReservation)
    for _ in range(2):
        assert isinstance(await parties.two.reserve(limits, 0, 400), LocalReservation | RedisReservation)
    assert isinstance(await parties.one.reserve(limits, 0, 1), LimitExceeded)
    await parties.lose_two()
    assert isinstance(await parties.one.reserve(limits, 0, 900), LocalReservation | RedisReservation)
    assert isinstance(await parties.one.reserve(limits, 0, 1), LimitExceeded)


async def test_counters_budget_reserves_and_commits_cost(parties: Parties) -> None:
    limits = KeyLimits(key_id="k", budget_nano_usd=1000, period="day", period_start=86400)
    assert isinstance(await parties.one.reserve(limits, 0, 500), SpentRequired)
    reservation = await parties.one.reserve(limits, 0, 500, spent=400)
    assert isinstance(reservation, LocalReservation | RedisReservation)
    denied = await parties.two.reserve(limits, 0, 200, spent=0)  # the first value of `spent` is kept
    assert isinstance(denied, LimitExceeded)
    assert denied.limit == "budget"
    assert denied.retry_after == 1.0  # the running request may cost less than reserved
    await parties.one.commit(reservation, 0, 100)
    denied = await parties.two.reserve(limits, 0, 501)
    assert isinstance(denied, LimitExceeded)
    assert denied.retry_after == math.inf
    assert isinstance(await parties.two.reserve(limits, 0, 500), LocalReservation | RedisReservation)
    tomorrow = KeyLimits(key_id="k", budget_nano_usd=1000, period="day", period_start=2 * 86400)
    assert isinstance(await parties.two.reserve(tomorrow, 0, 500), LocalReservation | RedisReservation)
    monthly = KeyLimits(key_id="k", budget_nano_usd=1000, period="month")
    assert isinstance(await parties.one.reserve(monthly, 0, 1), SpentRequired)


async def test_counters_get_usage_returns_current_values(parties: Parties) -> None:
    limits = KeyLimits(key_id="k", tokens=100, budget_nano_usd=1000, period="day", period_start=86400)
    assert await parties.two.get_usage(limits) == LimitUsage()
    first = await parties.one.reserve(limits, 60, 500, spent=400)
    assert await parties.two.get_usage(limits) == LimitUsage(1, 60, 1, 400, 500)
    await parties.one.commit(first, 10, 100)
    assert await parties.two.get_usage(limits) == LimitUsage(1, 10, 0, 500, 0)
    assert await parties.two.get_usage(KeyLimits(key_id="k", period="day", period_start=2 * 86400)) == LimitUsage(
        1, 10, 0, 0, 0
    )
    assert await parties.two.get_usage(KeyLimits(key_id="k", period="month")) == LimitUsage(1, 10, 0, None, 0)
    await parties.wait(61)
    assert await parties.one.get_usage(limits) == LimitUsage(0, 0, 0, 500, 0)


async def test_counters_spent_total_budget_rejects_unpriced_requests(parties: Parties) -> None:
    limits = KeyLimits(key_id="k", budget_nano_usd=1000)
    reservation = await parties.one.reserve(limits, 0, 10, spent=990)
    assert isinstance(reservation, LocalReservation | RedisReservation)
    assert isinstance(await parties.two.reserve(limits, 0, 1), LimitExceeded)
    await parties.one.commit(reservation, 0, 10)
    assert isinstance(await parties.two.reserve(limits), LimitExceeded)  # a request without a price is rejected, too


async def test_counters_spent_unavailable_counts_from_zero_until_known(parties: Parties) -> None:
    limits = KeyLimits(key_id="k", budget_nano_usd=1000)
    reservation = await parties.one.reserve(limits, 0, 600, spent=SPENT_UNAVAILABLE)
    assert isinstance(reservation, LocalReservation | RedisReservation)
    assert isinstance(await parties.two.reserve(limits, 0, 600, spent=SPENT_UNAVAILABLE), LimitExceeded)
    assert isinstance(await parties.two.reserve(limits, 0, 100), SpentRequired)
    assert isinstance(await parties.two.reserve(limits, 0, 100, spent=300), LocalReservation | RedisReservation)


async def test_counters_large_budget_is_exact(parties: Parties) -> None:
    limits = KeyLimits(key_id="k", budget_nano_usd=10**15)  # a million USD
    reservation = await parties.one.reserve(limits, 0, 3, spent=10**15 - 5)
    assert isinstance(reservation, LocalReservation | RedisReservation)
    await parties.one.commit(reservation, 0, 3)
    assert isinstance(await parties.two.reserve(limits, 0, 3), LimitExceeded)
    assert isinstance(await parties.two.reserve(limits, 0, 2), LocalReservation | RedisReservation)


async def test_counters_raised_limit_applies_immediately(parties: Parties) -> None:
    assert not isinstance(await parties.one.reserve(KeyLimits(key_id="k", requests=1)), LimitExceeded)
    first = await parties.one.reserve(KeyLimits(key_id="k", requests=1))
    again = await parties.one.reserve(KeyLimits(key_id="k", requests=1))
    assert isinstance(first, LimitExceeded)
    assert isinstance(again, LimitExceeded)
    assert first.retry_after - 1.1 <= again.retry_after <= first.retry_after
    assert not isinstance(await parties.one.reserve(KeyLimits(key_id="k", requests=2)), LimitExceeded)
    assert isinstance(await parties.one.reserve(KeyLimits(key_id="k", requests=2)), LimitExceeded)


async def test_counters_second_commit_does_not_make_counts_negative(parties: Parties) -> None:
    limits = KeyLimits(key_id="k", requests=5, concurrency=5)
    reservation = [await parties.one.reserve(limits) for _ in range(2)]
    for each in reservation:
        await parties.one.commit(each, 0, 0)
    await parties.one.commit(reservation[0], 0, 0)  # the rate limiter commits once, but counts must not become negative
    got = [await parties.two.reserve(limits) for _ in range(4)]
    assert [isinstance(each, LimitExceeded) for each in got] == [False, False, False, True]
