"""Measures the CPU time that the limits of a key add to a request: in memory, and through Redis.

    python -m bench.redis_limits --rounds 5
    python -m bench.redis_limits --slow        # how long requests wait for a Redis that is slow or stopped

One process admits and commits requests of a key with limits of every kind, with `--outstanding` requests at once. Their
bodies are varied (`bench.varied`), since the estimate of their tokens is a part of the time.
Redis is a process of its own. Its time is not included, and printed in a line of its own.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import importlib
import statistics
import tempfile
import time
from collections.abc import Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import uvloop
from bench.varied import Traffic
from tests.fakes.redis_server import RedisServer
from tests.fakes.tcp_proxy import TcpProxy

from svc.dialects.base import RequestBody
from svc.dialects.openai.routing_info import decode_routing_info
from svc.dialects.routing_info import RoutingInfo
from svc.gateway.accounting.cost import PriceTable
from svc.gateway.limits.rate_limiter import RateLimiter
from svc.gateway.limits.reservation import Reservation
from svc.gateway.net.allocator import freeze_gc
from svc.gateway.routing.backends import build_backends
from svc.gateway.routing.providers import build_providers
from svc.settings import LimitSettings, ModelSettings, ProviderSettings, Settings
from svc.stores.counters.in_process import InProcessCounters
from svc.stores.counters.redis import RedisCounters
from svc.stores.database.factory import open_state_database
from svc.stores.database.thread import DatabaseThread
from svc.wire.key import ApiKey

MEASUREMENT_TIMEOUT_SECONDS = 60
KEYS = [ApiKey(f"k{n}", "key", rpm=10**8, tpm=10**9, concurrency=10**5, budget_usd=10**6) for n in range(16)]
MODEL = ModelSettings(id="m", max_output_tokens=1000, input_price=1.0, output_price=10.0)
TRAFFIC = Traffic(seed=61, model="m")
BODIES = [RequestBody(TRAFFIC.body()) for _ in range(61)]


def open_redis(url: str) -> Any:
    """Return a client of this version, or a connection of an earlier one."""
    try:
        return importlib.import_module("svc.stores.redis.factory").open_redis(url)
    except ImportError:
        return importlib.import_module("svc.stores.redis.connection").RedisConnection(url)


async def measure(kind: str, server: RedisServer, folder: Path, outstanding: int, requests: int) -> float:
    """Return microseconds of CPU per request."""
    async with AsyncExitStack() as stack:
        database = DatabaseThread(open_state_database({}, folder), "limits")
        stack.push_async_callback(database.close)
        counters = None
        if kind == "redis":
            redis = open_redis(server.url)
            await redis.start()
            stack.push_async_callback(redis.close)
            counters = RedisCounters(redis)
        settings = ProviderSettings(name="p", base_url="http://127.0.0.1:1/v1", models=(MODEL,))
        (provider,) = (each for each in build_providers(Settings(providers=(settings,))) if each.name == "p")
        backends = tuple(build_backends(provider))
        limiter = RateLimiter(LimitSettings(), InProcessCounters(), PriceTable(backends), database, counters)
        limiter.start()
        stack.push_async_callback(limiter.close)
        info, loop = RoutingInfo(model="m", max_tokens=100), asyncio.get_running_loop()

        async def run(count: int) -> None:
            done = loop.create_future()
            started = finished = 0

            def start() -> None:
                nonlocal started
                started += 1
                if kind == "none":
                    loop.call_soon(finish, None)
                else:
                    body = BODIES[started % len(BODIES)]
                    limiter.admit(KEYS[started % 16], info, body, backends, on_admission)

            def on_admission(reservation: Any) -> None:
                loop.call_soon(finish, reservation)

            def finish(reservation: Any) -> None:
                nonlocal finished
                if reservation is not None:
                    assert isinstance(reservation, Reservation), reservation
                    reservation.commit(120, 0.0004)
                finished += 1
                if started < count:
                    start()
                elif finished == count:
                    done.set_result(None)

            for _ in range(outstanding):
                start()
            async with asyncio.timeout(MEASUREMENT_TIMEOUT_SECONDS):
                await done

        await run(200)  # loads the sums from the database
        gc.collect()
        cpu = time.process_time()
        await run(requests)
        cpu = time.process_time() - cpu
    return cpu / requests * 1e6


def server_cpu_seconds(server: RedisServer) -> float:
    """Return the CPU time that a server has used."""
    fields = dict(line.split(b":") for line in server.tell("INFO cpu").splitlines() if line.startswith(b"used_cpu_"))
    return float(fields[b"used_cpu_user"]) + float(fields[b"used_cpu_sys"])


async def measure_waits(fault: str, folder: Path, seconds: float) -> list[float]:
    """Return the sorted waits, in milliseconds, of 200 requests per second while Redis has a fault."""
    waits: list[float] = []
    with RedisServer() as server, TcpProxy(server.port) as proxy:
        async with AsyncExitStack() as stack:
            database = DatabaseThread(open_state_database({}, folder), "limits")
            stack.push_async_callback(database.close)
            redis = open_redis(f"redis://127.0.0.1:{proxy.port}")
            await redis.start()
            stack.push_async_callback(redis.close)
            limiter = RateLimiter(LimitSettings(), InProcessCounters(), PriceTable(()), database, RedisCounters(redis))
            limiter.start()
            stack.push_async_callback(limiter.close)
            loop, started_at, count = asyncio.get_running_loop(), time.monotonic(), 0
            info, key = RoutingInfo(model="m", max_tokens=100), ApiKey("k", "key", rpm=10**8)
            is_faulty = False

            def admit() -> None:
                sent_at = loop.time()

                def on_admission(reservation: Any) -> None:
                    waits.append((loop.time() - sent_at) * 1000)
                    loop.call_later(0.1, reservation.commit, 100, 0.0)

                limiter.admit(key, info, BODIES[count % len(BODIES)], (), on_admission)

            while time.monotonic() - started_at < seconds:
                if not is_faulty and count == 200:  # one second without a fault
                    is_faulty = True
                    if fault == "stopped":
                        server.freeze()
                    else:
                        proxy.delay_seconds = float(fault.partition(" ")[0])
                admit()
                count += 1
                await asyncio.sleep(max(0.0, started_at + count * 0.005 - time.monotonic()))
            await asyncio.sleep(0.3)
            if fault == "stopped":
                server.thaw()
            proxy.delay_seconds = 0.0
            assert len(waits) == count
    return sorted(waits)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--requests", type=int, default=10_000)
    parser.add_argument("--outstanding", type=int, default=64)
    parser.add_argument("--slow", action="store_true")
    args = parser.parse_args()
    if args.slow:
        for fault in ("0 s late", "0.2 s late", "2 s late", "stopped"):
            with tempfile.TemporaryDirectory() as name:
                waits = uvloop.run(measure_waits(fault, Path(name), 15))
            percentiles = (waits[len(waits) * share // 1000] for share in (500, 990, 999))
            columns = "  ".join(f"{value:6.1f}" for value in (*percentiles, waits[-1]))
            print(f"{fault:<11} {len(waits)} requests wait, in ms, p50, p99, p99.9, max: {columns}")
        return
    freeze_gc()  # as the gateway does at its start
    for body in BODIES:
        decode_routing_info(body)
    found: dict[str, list[float]] = {"none": [], "memory": [], "redis": []}
    run: Callable[..., float] = lambda *arguments: uvloop.run(measure(*arguments))  # noqa: E731
    server_times: list[float] = []
    with tempfile.TemporaryDirectory() as folder, RedisServer() as server:
        for _ in range(args.rounds):
            for kind, results in found.items():
                before = server_cpu_seconds(server)
                results.append(run(kind, server, Path(folder), args.outstanding, args.requests))
                if kind == "redis":
                    server_times.append((server_cpu_seconds(server) - before) / args.requests * 1e6)
    base = found["none"]
    for kind in ("memory", "redis"):
        added = sorted(value - none for value, none in zip(found[kind], base, strict=True))
        print(f"{kind:<7} adds {statistics.median(added):5.1f} µs of CPU per request ({added[0]:.1f}-{added[-1]:.1f})")
    server_times.sort()
    print(
        f"Redis itself uses {statistics.median(server_times):.1f} µs of CPU per request "
        f"({server_times[0]:.1f}-{server_times[-1]:.1f})"
    )


if __name__ == "__main__":
    main()
