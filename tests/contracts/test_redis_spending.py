"""Money in Redis is added once, whatever happens to the commands that report it."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Callable

from svc.stores.counters.key_limits import KeyLimits
from svc.stores.counters.redis import RedisCounters
from svc.stores.counters.redis_types import RedisReservation
from svc.stores.redis.factory import open_redis
from tests.fakes.redis_server import RedisServer
from tests.fakes.tcp_proxy import TcpProxy

LIMITS = KeyLimits(key_id="k", budget_nano_usd=1_000_000, period="month")


async def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 8
    while not condition():
        assert time.monotonic() < deadline
        await asyncio.sleep(0.01)


def get_script_calls(server: RedisServer, counter: str) -> int:
    """Return how many scripts the server executed (`calls`) or did not permit (`rejected_calls`)."""
    found = re.search(rf"cmdstat_evalsha:.*\b{counter}=(\d+)", server.tell("INFO commandstats").decode())
    return int(found[1]) if found else 0


async def reserve(counters: RedisCounters) -> RedisReservation:
    decided = asyncio.get_running_loop().create_future()
    counters.reserve(LIMITS, 0, 10, 0, decided.set_result)
    reservation = await decided
    assert isinstance(reservation, RedisReservation)
    return reservation


async def test_redis_counters_script_cached_between_two_commits_add_both() -> None:
    """Redis lost its scripts. The first commit waits until it is sent again, and the second one is faster."""
    with RedisServer() as server:
        redis = open_redis(server.url)
        await redis.start()
        counters = RedisCounters(redis)
        counters.start()
        first, second = await reserve(counters), await reserve(counters)
        await redis.execute("SCRIPT", "FLUSH")
        counters.commit(first, 0, 100)
        counters._calls.flush()
        redis.send(lambda reply: None, ("SCRIPT", "LOAD", counters._calls._script.source))  # another process
        counters.commit(second, 0, 200)
        counters._calls.flush()
        await redis.execute("PING")
        assert (await counters.get_usage(LIMITS)).spent_nano_usd == 300
        await counters.close()
        await redis.close()


async def test_redis_counters_repeated_report_is_rejected_adds_money_once() -> None:
    with RedisServer() as server, TcpProxy(server.port) as proxy:
        redis = open_redis(f"redis://127.0.0.1:{proxy.port}")
        await redis.start()
        counters = RedisCounters(redis)
        counters.start()
        reservation = await reserve(counters)
        proxy.hold()
        counters.commit(reservation, 0, 100)  # Redis executes it, and the reply is lost
        await until(lambda: redis.is_down)
        server.tell("ACL SETUSER default -evalsha")
        proxy.release()
        await until(lambda: get_script_calls(server, "rejected_calls") > 0)  # the repeated report
        call_count = get_script_calls(server, "calls")
        server.tell("ACL SETUSER default +evalsha")
        await until(lambda: get_script_calls(server, "calls") > call_count)
        assert (await counters.get_usage(LIMITS)).spent_nano_usd == 100
        await counters.close()
        await redis.close()
