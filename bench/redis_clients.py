"""Measures the CPU time of Redis clients per limited request: the scripts that reserve and commit, under concurrency.

    pip install 'redis[hiredis]' coredis valkey-glide        # in the environment that runs this
    python -m bench.redis_clients --rounds 5

Each round runs every client for the same number of requests, one after the other, against one server. The CPU time is
that of this process with all its threads. `ours` is the connection of the gateway, with callbacks. The others need a
task per request, as the gateway would.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import importlib
import statistics
import time
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from importlib import resources
from typing import Any

import msgspec
import uvloop
from tests.fakes.redis_server import RedisServer

from svc.stores.redis.base import LuaScript
from svc.stores.redis.factory import open_redis

SCRIPT = resources.files("svc.stores.counters").joinpath("counters.lua").read_text(encoding="utf-8")
KEYS = 16
MEASUREMENT_TIMEOUT_SECONDS = 60
RESERVE = msgspec.msgpack.encode([("reserve", "p", 10**9, 10**9, 10**6, 10**15, 3, 0, 100, 1000, 0, 12345)])
COMMIT = msgspec.msgpack.encode([("commit", "p", 1, 1, 100, 1000, 40, 400, 0)])
"""Of a reservation in a hash that was lost, so that only the money counts. Its time is about the same."""
COMMITTED = msgspec.msgpack.encode([[1]])

Pair = Callable[[str, Callable[[], None]], None]
"""Reserve and commit for a key, then call back."""


def is_admission(reply: Any) -> bool:
    """Return whether a reply of the script is the result of one reservation that was admitted."""
    ((outcome, *_),) = msgspec.msgpack.decode(reply)
    return bool(outcome == 1)


async def open_ours(server: RedisServer, stack: AsyncExitStack) -> Pair:
    """The connection of the gateway."""
    redis = open_redis(server.url)
    await redis.start()
    stack.push_async_callback(redis.close)
    script = LuaScript(SCRIPT)

    def run(key: str, on_done: Callable[[], None]) -> None:
        def commit(reply: Any) -> None:
            assert is_admission(reply), reply
            redis.run_script(
                lambda committed: on_done() if committed == COMMITTED else print(committed),
                script,
                (key,),
                (COMMIT,),
            )

        redis.run_script(commit, script, (key,), (RESERVE,))

    return run


def run_in_tasks(call: Callable[[str, tuple[Any, ...]], Awaitable[Any]]) -> Pair:
    """Return a pair of calls of a client with coroutines, in one task."""
    tasks: set[asyncio.Task[None]] = set()

    async def pair(key: str, on_done: Callable[[], None]) -> None:
        reply = await call(key, (RESERVE,))
        assert is_admission(reply), reply
        await call(key, (COMMIT,))
        on_done()

    def run(key: str, on_done: Callable[[], None]) -> None:
        task = asyncio.get_running_loop().create_task(pair(key, on_done))
        tasks.add(task)
        task.add_done_callback(tasks.discard)

    return run


async def open_redis_py(server: RedisServer, stack: AsyncExitStack) -> Pair:
    """redis-py, which takes a connection of its pool for each command."""
    redis = importlib.import_module("redis.asyncio")
    pool = redis.BlockingConnectionPool.from_url(server.url, max_connections=512, timeout=None)
    client = redis.Redis(connection_pool=pool)
    stack.push_async_callback(client.aclose)
    sha = await client.script_load(SCRIPT)
    return run_in_tasks(lambda key, arguments: client.evalsha(sha, 1, key, *arguments))


async def open_coredis(server: RedisServer, stack: AsyncExitStack) -> Pair:
    """coredis, which multiplexes commands over few connections."""
    coredis = importlib.import_module("coredis")
    client = await stack.enter_async_context(coredis.Redis.from_url(server.url))
    sha = await client.script_load(SCRIPT)

    async def call(key: str, arguments: tuple[Any, ...]) -> Any:
        return await client.evalsha(sha, keys=[key], args=list(arguments))

    return run_in_tasks(call)


async def open_glide(server: RedisServer, stack: AsyncExitStack) -> Pair:
    """valkey-glide, whose core in Rust multiplexes commands in a thread of its own."""
    glide = importlib.import_module("glide")
    client = await glide.GlideClient.create(
        glide.GlideClientConfiguration(
            [glide.NodeAddress("127.0.0.1", server.port)], request_timeout=5000, inflight_requests_limit=2000
        )
    )
    stack.push_async_callback(client.close)
    script = glide.Script(SCRIPT)
    return run_in_tasks(lambda key, arguments: client.invoke_script(script, keys=[key], args=list(arguments)))


CLIENTS = {"ours": open_ours, "redis-py": open_redis_py, "coredis": open_coredis, "valkey-glide": open_glide}


async def measure(name: str, server: RedisServer, outstanding: int, requests: int) -> tuple[float, float]:
    """Return microseconds of CPU and of elapsed time per request."""
    async with AsyncExitStack() as stack:
        run = await CLIENTS[name](server, stack)
        loop = asyncio.get_running_loop()
        done = loop.create_future()
        started = finished = 0

        def start() -> None:
            nonlocal started
            started += 1
            run(f"svc:key:{started % KEYS}", on_done)

        def on_done() -> None:
            nonlocal finished
            finished += 1
            if started < requests:
                start()
            elif finished == requests:
                done.set_result(None)

        gc.collect()
        cpu, elapsed = time.process_time(), time.perf_counter()
        for _ in range(outstanding):
            start()
        async with asyncio.timeout(MEASUREMENT_TIMEOUT_SECONDS):
            await done
        cpu, elapsed = time.process_time() - cpu, time.perf_counter() - elapsed
    return cpu / requests * 1e6, elapsed / requests * 1e6


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--requests", type=int, default=10_000)
    parser.add_argument("--outstanding", default="32,128,256")
    parser.add_argument("--clients", default=",".join(CLIENTS))
    args = parser.parse_args()
    print(f"{'outstanding':>11}  {'client':<14} {'CPU µs/request':>15}  {'lowest-highest':>15}  {'elapsed µs':>10}")
    for outstanding in map(int, args.outstanding.split(",")):
        found: dict[str, list[tuple[float, float]]] = {name: [] for name in args.clients.split(",")}
        with RedisServer() as server:
            for _ in range(args.rounds):
                for name, results in found.items():
                    results.append(uvloop.run(measure(name, server, outstanding, args.requests)))
        for name, results in found.items():
            cpu = sorted(result[0] for result in results)
            elapsed = statistics.median(result[1] for result in results)
            spread = f"{cpu[0]:.1f}-{cpu[-1]:.1f}"
            print(f"{outstanding:>11}  {name:<14} {statistics.median(cpu):>15.1f}  {spread:>15}  {elapsed:>10.1f}")


if __name__ == "__main__":
    main()
