"""Measures the memory of Redis for each key with limits of every kind, with the counters of the gateway.

The memory depends on how many seconds of the last minute had requests, and on how many processes count for the key.
It does not depend on the load of the machine.
"""

from __future__ import annotations

import asyncio
import statistics
from collections.abc import Sequence
from contextlib import AsyncExitStack
from typing import Any

from tests.fakes.redis_server import RedisServer, send_command

from svc.stores.counters.key_limits import COUNTER_WINDOW_SECONDS, KeyLimits
from svc.stores.counters.redis import RedisCounters
from svc.stores.counters.redis_types import RedisReservation
from svc.stores.redis.factory import open_redis

MEASURED_KEYS = 20
BUSY_PROCESSES = (1, 8, 64)
"""Gateway processes that count for each key."""
COMPACT_FIELDS = (128, 512)
"""`hash-max-listpack-entries`: the default since Redis 7, and that of earlier versions (`hash-max-ziplist-entries`)."""
REPLY_TIMEOUT_SECONDS = 30
TOKENS, NANO_USD = 1_200, 4_000_000
CHUNK_KEYS = 50
"""Keys with a request at once."""


def measure_memory() -> list[dict[str, Any]]:
    """Return bytes per key: after one request, and after a window with a request in each second."""
    return asyncio.run(_measure_all())


async def _measure_all() -> list[dict[str, Any]]:
    busy = [(processes, fields) for fields in COMPACT_FIELDS for processes in BUSY_PROCESSES]
    return await asyncio.gather(
        _measure(1, COMPACT_FIELDS[0], is_busy=False),
        *[_measure(processes, fields, is_busy=True) for processes, fields in busy],
    )


async def _measure(processes: int, compact_fields: int, *, is_busy: bool) -> dict[str, Any]:
    async with AsyncExitStack() as stack:
        server = stack.enter_context(RedisServer("--hash-max-ziplist-entries", str(compact_fields)))
        counters = []
        for _ in range(processes):
            redis = open_redis(server.url)
            await redis.start()
            stack.push_async_callback(redis.close)
            counters.append(RedisCounters(redis))
            counters[-1].start()
            stack.push_async_callback(counters[-1].close)
        limits = [_limits(number) for number in range(MEASURED_KEYS)]
        loop = asyncio.get_running_loop()
        for second in range(COUNTER_WINDOW_SECONDS + 1 if is_busy else 1):
            started_at = loop.time()
            shift = second % processes
            await _count(counters[shift:] + counters[:shift], limits)
            if is_busy:
                await asyncio.sleep(max(0.0, started_at + 1 - loop.time()))
        if is_busy:  # each process has counted for each key
            for number in range(processes):
                await _count(counters[number : number + 1], limits)
        used = statistics.mean(_ask(server, f"MEMORY USAGE svc:key:{key.key_id} SAMPLES 0") for key in limits)
        fields = statistics.mean(_ask(server, f"HLEN svc:key:{key.key_id}") for key in limits)
    return {
        "processes": processes,
        "compact_fields": compact_fields,
        "is_busy": is_busy,
        "fields": round(fields),
        "bytes_per_key": round(used),
    }


def _limits(number: int) -> KeyLimits:
    return KeyLimits(f"key_{number:016x}", 10**8, 10**9, 10**5, 10**15, "month", 1_767_225_600)


async def _count(counters: Sequence[RedisCounters], limits: Sequence[KeyLimits]) -> None:
    """Make a request of each key, by the processes in turn."""
    for start in range(0, len(limits), CHUNK_KEYS):
        async with asyncio.timeout(REPLY_TIMEOUT_SECONDS):
            numbered = list(enumerate(limits[start : start + CHUNK_KEYS]))
            await asyncio.gather(*[_request(counters[number % len(counters)], key) for number, key in numbered])


async def _request(counters: RedisCounters, key: KeyLimits) -> None:
    decided: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    counters.reserve(key, TOKENS, NANO_USD, 0, decided.set_result)
    decision = await decided
    if not isinstance(decision, RedisReservation):
        raise RuntimeError(f"unexpected decision: {decision!r}")
    counters.commit(decision, TOKENS, NANO_USD)
    await counters.get_usage(key)  # the commit has reached Redis


def _ask(server: RedisServer, command: str) -> int:
    return int(send_command(server.port, command).removeprefix(b":"))
