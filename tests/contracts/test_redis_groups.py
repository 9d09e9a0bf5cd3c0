"""Sentinel and Redis Cluster with real servers: failover and the migration of slots, under load."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
from redis.crc import key_slot

from svc.errors import SvcError
from svc.gateway.limits.reservation import Reservation
from svc.settings import LimitSettings
from svc.stores.counters.key_limits import KeyLimits
from svc.stores.counters.redis import RedisCounters
from svc.stores.database.base import StoreUnavailable
from svc.stores.database.factory import open_state_database
from svc.stores.database.thread import DatabaseThread
from svc.stores.redis.address import parse_redis_url
from svc.stores.redis.base import RedisClient
from svc.stores.redis.connection import PRIMARY_CHECK_SECONDS
from svc.stores.redis.discovery import find_primary
from svc.stores.redis.factory import open_redis
from svc.stores.redis.protocol import REPLY_TIMEOUT_SECONDS
from svc.wire.key import ApiKey
from tests.contracts.test_rate_limiter import CHEAP, LimiterHarness, backends_of, routing_info
from tests.fakes.redis_groups import RedisCluster, RedisSentinels
from tests.fakes.redis_server import send_command

CHAIN = backends_of(CHEAP)
GET_PRIMARY = "SENTINEL GET-MASTER-ADDR-BY-NAME mymaster"
RPM = 50
"""The limit of each limited key, far below the load."""


async def until(condition: Callable[[], bool], seconds: float = 20.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        await asyncio.sleep(0.02)


@contextlib.asynccontextmanager
async def machines(url: str, folder: Path) -> AsyncIterator[list[tuple[RedisClient, LimiterHarness]]]:
    """Run the limiters of two machines."""
    database = DatabaseThread(open_state_database({}, folder), "books")
    found = []
    for _ in range(2):
        redis = open_redis(url)
        await redis.start()
        found.append((redis, LimiterHarness(LimitSettings(), database, redis, CHAIN)))
    yield found
    for redis, harness in found:
        await harness.limiter.close()
        await redis.close()
    await database.close()


class Load:
    """Sends requests of an unlimited and of several limited keys to all machines, until `stop`."""

    def __init__(self, harnesses: list[LimiterHarness], keys: int) -> None:
        self.free = [ApiKey(f"free{number}", "free", rpm=1_000_000, budget_usd=1000.0) for number in range(keys)]
        self.limited = [ApiKey(f"limited{number}", "limited", rpm=RPM) for number in range(keys)]
        self.admitted: dict[str, int] = {}
        self.refused: list[SvcError] = []
        """Errors of keys whose limits are not reached."""
        self.slowest = 0.0
        self._stopped = False
        self._tasks = [asyncio.create_task(self._send(harness, offset)) for harness in harnesses for offset in (0, 1)]

    async def _send(self, harness: LimiterHarness, number: int) -> None:
        while not self._stopped:
            number += 1
            for keys in (self.free, self.limited):
                key = keys[number % len(keys)]
                started_at = time.monotonic()
                found = await harness.admit(key, routing_info(10), CHAIN)
                self.slowest = max(self.slowest, time.monotonic() - started_at)
                if isinstance(found, Reservation):
                    self.admitted[key.id] = self.admitted.get(key.id, 0) + 1
                    found.commit(5, 0.0001)
                elif keys is self.free or found.status != 429:
                    self.refused.append(found)
            await asyncio.sleep(0.002)

    async def stop(self) -> None:
        self._stopped = True
        await asyncio.gather(*self._tasks)


async def test_rate_limiter_sentinel_failover_under_load_refuses_nothing(tmp_path: Path) -> None:
    with RedisSentinels(tmp_path) as servers:
        async with machines(servers.url, tmp_path) as found:
            assert not any(redis.is_down for redis, _ in found)
            load = Load([harness for _, harness in found], keys=3)
            await asyncio.sleep(1)
            servers.primary.kill()
            await until(lambda: all(redis.is_down for redis, _ in found))
            await until(lambda: not any(redis.is_down for redis, _ in found))
            await asyncio.sleep(1)
            await load.stop()
            # The new primary counts.
            assert any(b"svc:key:free0" in replica.tell("KEYS svc:key:free0") for replica in servers.replicas)
        assert load.refused == []
        assert load.slowest < REPLY_TIMEOUT_SECONDS, "a request waited for Redis"
        assert all(RPM <= load.admitted[key.id] <= 2 * RPM for key in load.limited), load.admitted


@pytest.mark.slow
async def test_redis_connection_leaves_a_primary_that_sentinel_has_replaced(tmp_path: Path) -> None:
    """The old primary accepts writes until Sentinel has changed it to a replica, which takes up to ten seconds more."""
    with RedisSentinels(tmp_path) as servers:
        redis = open_redis(servers.url)
        await redis.start()
        (sentinel, *_) = servers.sentinel_ports
        send_command(sentinel, "SENTINEL FAILOVER mymaster")
        await until(lambda: str(servers.primary.port) not in send_command(sentinel, GET_PRIMARY).decode())
        replaced_at = time.monotonic()
        await until(lambda: redis.is_down)
        await until(lambda: not redis.is_down)
        assert time.monotonic() - replaced_at < 2 * PRIMARY_CHECK_SECONDS + 2
        await redis.execute("SET", "svc:written", "1")
        assert any(replica.tell("ROLE").startswith(b"*3\r\n$6\r\nmaster") for replica in servers.replicas)
        assert any(replica.tell("GET svc:written") == b"$1\r\n1\r\n" for replica in servers.replicas)
        await redis.close()


async def test_sentinel_with_a_malformed_reply_is_an_unavailable_store() -> None:
    """Any other error would end the task that keeps the connection."""

    async def reply(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while await reader.read(4096):
            writer.write(b"*1\r\n$3\r\nfoo\r\n")
        writer.close()

    async with await asyncio.start_server(reply, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        with pytest.raises(StoreUnavailable, match="Sentinel"):
            await find_primary(parse_redis_url(f"redis+sentinel://127.0.0.1:{port}/mymaster/0"))


async def test_rate_limiter_cluster_failover_under_load_refuses_nothing(tmp_path: Path) -> None:
    with RedisCluster(tmp_path) as cluster:
        async with machines(cluster.url, tmp_path) as found:
            assert not any(redis.is_down for redis, _ in found)
            load = Load([harness for _, harness in found], keys=12)  # on all primaries
            await asyncio.sleep(1)
            lost = cluster.primary_of(key_slot(b"svc:key:limited0"))
            lost.kill()
            await until(lambda: all(redis.is_down for redis, _ in found))
            await until(lambda: not any(redis.is_down for redis, _ in found))
            await asyncio.sleep(1)
            await load.stop()
            assert load.refused == []
            assert load.slowest < REPLY_TIMEOUT_SECONDS, "a request waited for Redis"
            assert all(RPM <= load.admitted[key.id] <= 2 * RPM for key in load.limited), load.admitted
            primaries = {cluster.primary_of(key_slot(f"svc:key:{key.id}".encode())).port for key in load.free}
            assert len(primaries) == 3


@pytest.mark.slow
async def test_rate_limiter_cluster_slot_migration_under_load_is_exact(tmp_path: Path) -> None:
    with RedisCluster(tmp_path) as cluster:
        async with machines(cluster.url, tmp_path) as found:
            load = Load([harness for _, harness in found], keys=2)
            await asyncio.sleep(0.3)
            for key in ("free0", "limited0", "free1"):
                slot = key_slot(f"svc:key:{key}".encode())
                source = cluster.primary_of(slot)
                target = next(server for server in cluster.primaries if server is not source)
                await asyncio.to_thread(migrate_slot, cluster, slot, source.port, target.port)
                await asyncio.sleep(0.3)
            await load.stop()
            assert not any(redis.is_down for redis, _ in found)
            assert load.refused == []
            assert all(load.admitted[key.id] == RPM for key in load.limited), load.admitted
            for key_ in load.free:
                usage = await found[0][1].usage(key_)
                assert (usage.requests, usage.running) == (load.admitted[key_.id], 0)


def migrate_slot(cluster: RedisCluster, slot: int, source_port: int, target_port: int) -> None:
    """Move a slot with its keys, in the order of the cluster specification."""
    servers = {server.port: server for server in cluster.primaries}
    source, target = servers[source_port], servers[target_port]
    target.tell(f"CLUSTER SETSLOT {slot} IMPORTING {cluster.node_id(source)}")
    source.tell(f"CLUSTER SETSLOT {slot} MIGRATING {cluster.node_id(target)}")
    time.sleep(0.2)  # requests of both phases meet the half-moved slot
    keys = source.tell(f"CLUSTER GETKEYSINSLOT {slot} 100").split(b"\r\n")[2::2]
    for key in keys:
        source.tell(f"MIGRATE 127.0.0.1 {target.port} {key.decode()} 0 5000")
    time.sleep(0.2)
    for server in (target, source, *cluster.primaries):
        server.tell(f"CLUSTER SETSLOT {slot} NODE {cluster.node_id(target)}")


async def test_requests_that_end_while_a_cluster_is_disconnected_count_as_used_at_each_server(tmp_path: Path) -> None:
    with RedisCluster(tmp_path) as cluster:
        redis = open_redis(cluster.url)
        await redis.start()
        await until(lambda: not redis.is_down)
        counters = RedisCounters(redis)
        counters.start()
        all_limits = [KeyLimits(key_id=f"k{number}", tokens=10_000, concurrency=9) for number in range(12)]
        slots = {cluster.primary_of(key_slot(f"svc:key:{limits.key_id}".encode())).port for limits in all_limits}
        assert len(slots) == len(cluster.primaries), "each server has keys"
        reservations = []
        for limits in all_limits:
            decided = asyncio.get_running_loop().create_future()
            counters.reserve(limits, 900, 0, 0, decided.set_result)
            reservations.append(await decided)
        for server in cluster.primaries:
            server.tell("CLIENT KILL TYPE normal")
        await until(lambda: redis.is_down)
        for reservation in reservations:
            counters.commit(reservation, 40, 0)

        async def count_used() -> set[tuple[int, int]]:
            usages = [await counters.get_usage(limits) for limits in all_limits]
            return {(usage.tokens, usage.running) for usage in usages}

        deadline = time.monotonic() + 10
        found: set[tuple[int, int]] = set()
        while found != {(40, 0)} and time.monotonic() < deadline:
            await asyncio.sleep(0.05)
            with contextlib.suppress(StoreUnavailable):
                found = await count_used()
        assert found == {(40, 0)}
        await counters.close()
        await redis.close()


async def test_redis_connection_cluster_with_plain_url_names_scheme(tmp_path: Path) -> None:
    with RedisCluster(tmp_path) as cluster:
        redis = open_redis(cluster.url.replace("redis+cluster", "redis").partition(",")[0])
        await redis.start()
        for number in range(20):
            if redis.is_down:
                break
            with contextlib.suppress(SvcError, OSError):
                await redis.execute("SET", f"svc:{number}", "1")
        assert redis.is_down
        await redis.close()
