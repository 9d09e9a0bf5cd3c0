"""Calls of the counters' script that go to Redis together, with real servers."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from importlib import resources
from pathlib import Path

import pytest
import pytest_asyncio

from svc.stores.counters.base import LimitExceeded
from svc.stores.counters.counter_calls import MAX_CALLS, MAX_LOGGED_FAILURES, CounterCallBatcher
from svc.stores.counters.key_limits import KeyLimits
from svc.stores.counters.redis import RedisCounters
from svc.stores.counters.redis_reports import CounterReports
from svc.stores.counters.redis_types import RedisReservation, SpentRequired
from svc.stores.database.base import StoreUnavailable
from svc.stores.redis.base import LuaScript, OutcomeUnknown, RedisClient, RedisReplyError
from svc.stores.redis.cluster import SLOTS
from svc.stores.redis.factory import open_redis
from tests.fakes.ports import closed_cluster_port
from tests.fakes.redis_server import RedisServer, debian_server_binary

Outcome = RedisReservation | LimitExceeded | SpentRequired | StoreUnavailable
LIMITS = [KeyLimits(key_id=f"k{number}", requests=100, tokens=1000) for number in range(8)]


@pytest.fixture(params=["package", "debian"])
def server(request: pytest.FixtureRequest) -> Iterator[RedisServer]:
    """Two versions of Redis, whose errors in scripts differ."""
    with RedisServer(binary=debian_server_binary() if request.param == "debian" else None) as one:
        yield one


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


def wait_for_running(server: RedisServer, reply: bytes) -> None:
    """Wait for the raw reply of Redis with the requests in flight of the key `k`. This does not run the event loop."""
    deadline = time.monotonic() + 10
    while server.tell("HGET svc:key:k running") != reply:
        assert time.monotonic() < deadline


async def count_scripts(redis: RedisClient) -> int:
    """Return how many commands ran the script."""
    statistics = await redis.execute("INFO", "commandstats")
    assert isinstance(statistics, bytes)
    line = next(line for line in statistics.splitlines() if line.startswith(b"cmdstat_evalsha:"))
    return int(line.partition(b"calls=")[2].partition(b",")[0])


async def test_counter_calls_of_one_iteration_are_one_command(redis: RedisClient, counters: RedisCounters) -> None:
    before = await count_scripts(redis)
    outcomes = await asyncio.gather(*reserve(counters, [*LIMITS, *LIMITS[:2]]))
    assert await count_scripts(redis) == before + 1
    assert all(isinstance(outcome, RedisReservation) for outcome in outcomes)
    for limits, count in zip(LIMITS, (2, 2, 1, 1, 1, 1, 1, 1), strict=True):
        assert (await counters.get_usage(limits)).requests == count


async def test_counter_calls_above_maximum_are_several_commands(redis: RedisClient, counters: RedisCounters) -> None:
    before = await count_scripts(redis)
    outcomes = await asyncio.gather(*reserve(counters, LIMITS[:1] * (MAX_CALLS + 1)))
    assert await count_scripts(redis) == before + 2
    assert sorted(outcome.requests_left for outcome in outcomes if isinstance(outcome, RedisReservation)) == list(
        range(100 - MAX_CALLS - 1, 100)
    )


@pytest.mark.parametrize("damaged", [{0}, {3}, {7}, {0, 1, 4}, set(range(8))])
async def test_counter_calls_with_a_damaged_key_fail_for_this_key_only(
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


@pytest.mark.parametrize("command", ["SET svc:key:k0 text", "HSET svc:key:k0 spent text", "HSET svc:key:k0 seed nan"])
async def test_counter_calls_damaged_key_is_logged_once_with_the_command_that_repairs_it(
    counters: RedisCounters, server: RedisServer, caplog: pytest.LogCaptureFixture, command: str
) -> None:
    server.tell(command)
    for _ in range(3):
        outcomes = await asyncio.gather(*reserve(counters, LIMITS))
        assert [isinstance(outcome, RedisReservation) for outcome in outcomes] == [False] + 7 * [True]
    (record,) = (record for record in caplog.records if record.levelname == "ERROR")
    assert "cannot count in svc:key:k0" in record.getMessage()
    server.tell(record.getMessage().rpartition(": ")[2])
    (outcome,) = await asyncio.gather(*reserve(counters, LIMITS[:1]))
    assert isinstance(outcome, RedisReservation)
    assert outcome.requests_left == 99


async def test_counter_calls_rejected_script_is_logged_without_a_key(
    redis: RedisClient, caplog: pytest.LogCaptureFixture
) -> None:
    calls = CounterCallBatcher(redis, LuaScript("return redis.error_reply('ERR another reason')"))
    for key in ("svc:key:a", "svc:key:b"):
        with pytest.raises(RedisReplyError):
            await calls.execute(key, "reserve")
    (record,) = (record for record in caplog.records if record.levelname == "ERROR")
    assert record.getMessage() == "Redis rejected the script of the counters: ERR another reason"


async def test_counter_calls_many_damaged_keys_do_not_fill_the_log(
    redis: RedisClient, counters: RedisCounters, caplog: pytest.LogCaptureFixture
) -> None:
    keys = [KeyLimits(key_id=f"d{number}", requests=100) for number in range(MAX_LOGGED_FAILURES + 50)]
    for limits in keys:
        await redis.execute("SET", f"svc:key:{limits.key_id}", "text")
    for _ in range(2):
        await asyncio.gather(*reserve(counters, keys))
    assert len([record for record in caplog.records if record.levelname == "ERROR"]) == MAX_LOGGED_FAILURES


async def test_counter_calls_number_of_over_64_bits_fails_for_its_call_only(counters: RedisCounters) -> None:
    before = reserve(counters, LIMITS[:1])
    (oversized,) = reserve(counters, [KeyLimits(key_id="k", requests=2**64)])
    after = reserve(counters, LIMITS[1:])
    outcomes = await asyncio.wait_for(asyncio.gather(*before, *after), 10)
    assert all(isinstance(outcome, RedisReservation) for outcome in outcomes)
    assert isinstance(await oversized, StoreUnavailable)


@pytest.mark.parametrize(
    "source",
    [
        "return 'no MessagePack'",
        "return cmsgpack.pack({})",
        "return cmsgpack.pack({{1}, {1}})",
        "return cmsgpack.pack({1})",
        "return string.char(0x91, 0x91, 0xa2, 0xff, 0xfe)",
        "return {{1}}",
        "return false",
    ],
)
async def test_counter_calls_with_an_unexpected_reply_have_an_unknown_outcome(redis: RedisClient, source: str) -> None:
    with pytest.raises(OutcomeUnknown):
        await CounterCallBatcher(redis, LuaScript(source)).execute("svc:key:k", "reserve")


async def test_counter_calls_money_with_an_unexpected_reply_counts_once(redis: RedisClient) -> None:
    source = resources.files("svc.stores.counters").joinpath("counters.lua").read_text(encoding="utf-8")
    valid, damaged = "return cmsgpack.pack(results)", "redis.call('INCR', 'calls') == 2 and 'damaged'"
    assert source.count(valid) == 1
    calls = CounterCallBatcher(redis, LuaScript(source.replace(valid, f"return {damaged} or cmsgpack.pack(results)")))
    limits, total = (100, 1000, 10, 10**9), 3
    reserve = ("reserve", "p1", *limits, total, 0, 10, 500, 0, 7)
    _, requests_left, tokens_left, _, second, seed, _, created = await calls.execute("svc:key:k", *reserve)
    reports = CounterReports(calls, time.monotonic)
    reports.remember_seed("k", seed)
    reservation = RedisReservation(
        key_id="k",
        process="p1",
        second=second,
        created=created,
        tokens=10,
        nano_usd=500,
        has_budget=True,
        requests_left=requests_left,
        tokens_left=tokens_left,
        reset_seconds=61.0,
        has_full_window=True,
    )
    reports.commit(reservation, 8, 300)
    await redis.execute("PING")  # the reply of the commit is there
    reports.send_deferred("p2", [], "p1")
    requests, tokens, running, spent, reserved = await calls.execute("svc:key:k", "get_usage", total, 0)
    assert (requests, tokens, running, spent, reserved) == (1, 8, 0, 300, 0)


@pytest.mark.parametrize(("damaged", "is_admitted"), [("1.5", True), ("1e30", False), ("inf", False), ("nan", False)])
async def test_counter_calls_with_a_damaged_number_fail_for_this_key_only(
    redis: RedisClient, counters: RedisCounters, damaged: str, is_admitted: bool
) -> None:
    await redis.execute("HSET", "svc:key:k3", "seed", damaged)
    outcomes = await asyncio.gather(*reserve(counters, LIMITS))
    failed = {number for number, outcome in enumerate(outcomes) if not isinstance(outcome, RedisReservation)}
    assert failed == (set() if is_admitted else {3})


@pytest.mark.parametrize("field", ["newest", "created", "requests", "tokens", "running", "spent", "seed"])
@pytest.mark.parametrize("damaged", ["99999999999999999999", "-1e30", "9223372036854775807", "1e18"])
async def test_counter_calls_with_a_damaged_field_do_not_disturb_other_keys(
    redis: RedisClient, counters: RedisCounters, field: str, damaged: str
) -> None:
    await redis.execute("HSET", "svc:key:k3", "newest", "1", field, damaged)
    for _ in range(3):
        outcomes = await asyncio.gather(*reserve(counters, LIMITS))
        for number, outcome in enumerate(outcomes):
            if isinstance(outcome, RedisReservation):
                counters.commit(outcome, 10, 0)
            else:
                assert number == 3
    for limits in LIMITS:
        if limits.key_id != "k3":
            usage = await counters.get_usage(limits)
            assert (usage.requests, usage.tokens, usage.running) == (3, 30, 0)


async def test_counter_calls_after_script_flush_are_executed_once(redis: RedisClient, counters: RedisCounters) -> None:
    await redis.execute("SCRIPT", "FLUSH")
    assert all(isinstance(outcome, RedisReservation) for outcome in await asyncio.gather(*reserve(counters, LIMITS)))
    assert [(await counters.get_usage(limits)).requests for limits in LIMITS] == [1] * len(LIMITS)


async def test_counter_calls_commit_is_written_before_it_returns(counters: RedisCounters, server: RedisServer) -> None:
    """The slot of a key with a limit of concurrent requests is free before the client has its response."""
    limits = KeyLimits(key_id="k", concurrency=1)
    (first,) = await asyncio.gather(*reserve(counters, [limits]))
    assert isinstance(first, RedisReservation)
    (rejected,) = reserve(counters, [limits])
    counters.commit(first, 0, 0)
    wait_for_running(server, b"$-1\r\n")
    assert isinstance(await rejected, LimitExceeded)
    assert 3500 < int(server.tell("TTL svc:key:k")[1:]) <= 3600


async def test_counter_calls_commits_of_a_key_far_from_its_limit_share_a_command(
    redis: RedisClient, counters: RedisCounters, server: RedisServer
) -> None:
    limits = KeyLimits(key_id="k", concurrency=100)
    reservations = await asyncio.gather(*reserve(counters, [limits] * 4))
    commands = await count_scripts(redis)
    for reservation in reservations:
        assert isinstance(reservation, RedisReservation)
        counters.commit(reservation, 0, 0)
    assert server.tell("HGET svc:key:k running") == b"$1\r\n4\r\n"
    assert (await counters.get_usage(limits)).running == 0
    assert await count_scripts(redis) == commands + 1


async def test_counter_calls_commit_of_a_key_that_others_fill_is_written_before_it_returns(
    redis: RedisClient, counters: RedisCounters, server: RedisServer
) -> None:
    limits = KeyLimits(key_id="k", concurrency=8)
    (first,) = await asyncio.gather(*reserve(counters, [limits]))
    assert isinstance(first, RedisReservation)
    other = RedisCounters(redis)
    other.start()
    await asyncio.gather(*reserve(other, [limits] * 7))
    (rejected,) = await asyncio.gather(*reserve(counters, [limits]))
    assert isinstance(rejected, LimitExceeded)
    counters.commit(first, 0, 0)
    wait_for_running(server, b"$1\r\n7\r\n")
    await other.close()


@pytest.mark.slow
async def test_counter_calls_after_a_frozen_server_continues_no_lost_reservation_counts(
    redis: RedisClient, counters: RedisCounters, server: RedisServer
) -> None:
    """Redis executes the reservations that it received while it was frozen, but their requests were decided locally."""
    limits = KeyLimits(key_id="k", concurrency=8)
    (running,) = await asyncio.gather(*reserve(counters, [limits]))
    assert isinstance(running, RedisReservation)
    server.freeze()
    futures = []
    for _ in range(40):
        futures += reserve(counters, [limits])
        await asyncio.sleep(0.01)
    assert all(isinstance(outcome, OutcomeUnknown) for outcome in await asyncio.gather(*futures))
    server.thaw()
    async with asyncio.timeout(10):
        while redis.is_down:
            await asyncio.sleep(0.01)
    for _ in range(50):
        (got,) = await asyncio.gather(*reserve(counters, [limits]))
        assert isinstance(got, RedisReservation)
        assert got.requests_left == 0
        counters.commit(got, 0, 0)
        await asyncio.sleep(0.01)
    counters.commit(running, 0, 0)
    assert (await counters.get_usage(limits)).running == 0


async def test_counter_calls_pending_when_the_server_dies_have_unknown_outcomes(
    counters: RedisCounters, server: RedisServer
) -> None:
    server.freeze()
    futures = reserve(counters, LIMITS)
    await asyncio.sleep(0)  # they are written
    server.kill()
    assert all(isinstance(outcome, OutcomeUnknown) for outcome in await asyncio.gather(*futures))


@pytest.mark.parametrize(
    "command", ["REPLICAOF 127.0.0.1 1", "CONFIG SET maxmemory 10000", "ACL SETUSER default -@hash"]
)
async def test_counter_calls_server_that_refuses_writes_is_down(
    redis: RedisClient, counters: RedisCounters, server: RedisServer, command: str
) -> None:
    server.tell(command)
    assert all(isinstance(outcome, StoreUnavailable) for outcome in await asyncio.gather(*reserve(counters, LIMITS)))
    assert redis.is_down


async def test_counter_calls_cluster_with_one_address_gets_single_calls(tmp_path: Path) -> None:
    """A server of a cluster with one shard, or a proxy, refuses a script with keys of several slots."""
    with RedisServer("--cluster-enabled", "yes", "--dir", str(tmp_path), port=closed_cluster_port()) as server:
        for first in range(0, SLOTS, 1024):
            server.tell(f"CLUSTER ADDSLOTS {' '.join(map(str, range(first, first + 1024)))}")
        redis = open_redis(server.url)
        await redis.start()
        async with asyncio.timeout(20):
            while redis.is_down or b"cluster_state:ok" not in server.tell("CLUSTER INFO"):
                await asyncio.sleep(0.05)
        counters = RedisCounters(redis)
        counters.start()
        for count in (1, 2):
            outcomes = await asyncio.gather(*reserve(counters, LIMITS))
            assert all(isinstance(outcome, RedisReservation) for outcome in outcomes)
            assert [(await counters.get_usage(limits)).running for limits in LIMITS] == [count] * len(LIMITS)
        await counters.close()
        await redis.close()


async def test_counter_calls_error_in_a_callback_does_not_concern_others(counters: RedisCounters) -> None:
    def fail(outcome: Outcome) -> None:
        raise RuntimeError("a defect")

    before = reserve(counters, LIMITS[:1])
    counters.reserve(LIMITS[1], 10, 0, None, fail)
    after = reserve(counters, LIMITS[2:])
    outcomes = await asyncio.wait_for(asyncio.gather(*before, *after), 10)
    assert all(isinstance(outcome, RedisReservation) for outcome in outcomes)


async def test_counter_calls_remove_ten_thousand_expired_processes(redis: RedisClient, counters: RedisCounters) -> None:
    long_ago = int(time.time()) - 4000
    for first in range(0, 10_000, 500):
        fields = [item for number in range(first, first + 500) for item in (f"a:{number}", long_ago, f"m:{number}", 1)]
        await redis.execute("HSET", "svc:key:k0", *fields)
    await redis.execute("HSET", "svc:key:k0", "newest", long_ago)
    (outcome,) = await asyncio.gather(*reserve(counters, LIMITS[:1]))
    assert isinstance(outcome, RedisReservation)
    usage = await counters.get_usage(LIMITS[0])
    assert (usage.requests, usage.tokens, usage.running) == (1, 10, 1)
    fields_left = await redis.execute("HLEN", "svc:key:k0")
    assert isinstance(fields_left, int)
    assert fields_left < 20


async def test_counter_calls_while_redis_is_down_fail_at_once(
    redis: RedisClient, counters: RedisCounters, server: RedisServer
) -> None:
    server.kill()
    async with asyncio.timeout(20):
        while not redis.is_down:
            await asyncio.sleep(0.01)
    outcomes = [future.result() for future in reserve(counters, LIMITS)]
    assert all(isinstance(outcome, StoreUnavailable) for outcome in outcomes)
