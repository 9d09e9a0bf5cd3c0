"""Calculates what a load needs: processes, nodes, Redis, PostgreSQL. Pure functions of the calibration."""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

MICROSECONDS = 1e-6
SECONDS_PER_DAY = 86_400
INGEST_PAUSE_SECONDS = 0.7
"""The gateway writes the ledger about this often: `LONG_SCAN_PAUSE_SECONDS` in `gateway/accounting/ingest.py`."""
SEGMENT_ENTRIES = 5_000
"""Entries of the measured segments. A busier process writes several segments of about this size."""

Point = tuple[float, float]
"""A rate, and the microseconds of CPU per operation at this rate."""


@dataclass(frozen=True)
class Cost:
    """CPU time in microseconds per operation. It falls with the rate, because a wakeup serves more operations."""

    floor: float
    """At a high rate."""
    extra: float
    """Added to `floor` at a rate near zero."""
    half_rate: float
    """The rate at which half of `extra` is left."""
    lowest_rate: float = 0.0
    """The lowest measured rate. Below it, the cost is that of this rate: nothing is known about it."""
    highest_rate: float = math.inf
    """The highest measured rate. The cost is not assumed to fall beyond it."""

    def at(self, rate: float) -> float:
        known_rate = min(max(rate, self.lowest_rate), self.highest_rate)
        return self.floor + self.extra / (1 + known_rate / self.half_rate)


def fit_cost(points: Sequence[Point]) -> Cost:
    """Return the cost with the least relative errors. Raises ValueError with less than two rates."""
    if len({rate for rate, _ in points}) < 2:
        raise ValueError("a cost needs points at two rates or more")
    rates = [rate for rate, _ in points]
    best: tuple[float, Cost] | None = None
    steps = 60
    low, high = min(rates) / 10, max(rates) * 10
    for step in range(steps + 1):
        half_rate = low * (high / low) ** (step / steps)
        floor, extra = _fit_line([(1 / (1 + rate / half_rate), value) for rate, value in points])
        cost = Cost(floor, extra, half_rate, min(rates), max(rates))
        error = sum((cost.at(rate) / value - 1) ** 2 for rate, value in points)
        if best is None or error < best[0]:
            best = error, cost
    assert best is not None
    return best[1]


def _fit_line(points: Sequence[Point]) -> tuple[float, float]:
    """Return intercept and slope, neither below 0, with the least relative errors."""
    weights = [1 / value**2 for _, value in points]
    total = sum(weights)
    mean_x = sum(weight * x for weight, (x, _) in zip(weights, points, strict=True)) / total
    mean_y = sum(weight * y for weight, (_, y) in zip(weights, points, strict=True)) / total
    spread = sum(weight * (x - mean_x) ** 2 for weight, (x, _) in zip(weights, points, strict=True))
    common = sum(weight * (x - mean_x) * (y - mean_y) for weight, (x, y) in zip(weights, points, strict=True))
    slope = max(0.0, common / spread) if spread else 0.0
    intercept = mean_y - slope * mean_x
    if intercept >= 0:
        return intercept, slope
    return 0.0, sum(w * x * y for w, (x, y) in zip(weights, points, strict=True)) / sum(
        w * x * x for w, (x, _) in zip(weights, points, strict=True)
    )


def interpolate(points: Sequence[Point], at: float) -> float:
    """Return the value on the lines between sorted points, and that of the nearest point outside."""
    if at <= points[0][0]:
        return points[0][1]
    for (x, y), (next_x, next_y) in itertools.pairwise(points):
        if at <= next_x:
            return y + (next_y - y) * (at - x) / (next_x - x)
    return points[-1][1]


@dataclass(frozen=True)
class Ledger:
    """What an entry costs, by rows per entry: entries of one key in one segment share a row."""

    gateway_us: tuple[Point, ...]
    postgres_us: tuple[Point, ...]
    wal_bytes: tuple[Point, ...]
    disk_bytes: tuple[Point, ...]
    transaction_us: float
    """CPU of PostgreSQL per transaction, whatever it writes."""


@dataclass(frozen=True)
class Calibration:
    """The measured costs."""

    request: Cost
    """Of a gateway process with SQLite and without limits, by requests per second of the process."""
    with_redis: Cost
    with_postgres: Cost
    chunk: Cost
    """By chunks per second of the process."""
    redis: Cost
    """Of Redis, for a request with limits, by requests of one process that are waiting for it."""
    ledger: Ledger
    process_mb: float
    stream_kb: float
    idle_stream_us_per_second: float
    postgres_connections: float
    """Per gateway process."""
    redis_connections: float
    redis_key_bytes: float
    """Memory of Redis for a key with a request in each second, by 64 processes or fewer."""

    def request_us(self, rate: float) -> float:
        """CPU of a gateway process for a request with limits in Redis and the ledger in PostgreSQL."""
        both = self.with_redis.at(rate) + self.with_postgres.at(rate) - self.request.at(rate)
        return max(both, self.request.at(rate))

    def postgres_us(self, rate: float, row_share: float) -> float:
        """CPU of PostgreSQL for an entry, when a process writes `rate` entries per second."""
        transactions = min(1.0, 1 / (rate * INGEST_PAUSE_SECONDS))
        return interpolate(self.ledger.postgres_us, row_share) + self.ledger.transaction_us * transactions


def calibrate(found: dict[str, Any]) -> Calibration:
    """Return the calibration of the measured figures of `bench/scale/calibration.json`."""
    ledger = found["ledger"]

    def by_share(name: str) -> tuple[Point, ...]:
        keys = sorted({row["keys"] for row in ledger})
        return tuple((key / SEGMENT_ENTRIES, _median(ledger, name, keys=key)) for key in keys)

    per_entry = by_share("postgres_us")[0][1]  # all requests of the measurement have one key
    transactions = [
        max(0.0, row["postgres_us"] - per_entry) * max(1.0, row["per_second"] * INGEST_PAUSE_SECONDS)
        for row in found["requests"]
        if row["setup"] == "PostgreSQL"
    ]
    connections = found["connections"]["both"]
    return Calibration(
        request=fit_cost(request_points(found, "SQLite")),
        with_redis=fit_cost(request_points(found, "Redis")),
        with_postgres=fit_cost(request_points(found, "PostgreSQL")),
        chunk=fit_cost(chunk_points(found)),
        redis=fit_cost(_medians(found["redis"], "outstanding", "outstanding", "redis_us")),
        ledger=Ledger(
            by_share("gateway_us"),
            by_share("postgres_us"),
            by_share("wal_bytes"),
            by_share("disk_bytes"),
            statistics.median(transactions),
        ),
        process_mb=statistics.median(row["empty_mb"] for row in found["idle"]),
        stream_kb=max(
            _median(found["idle"], "stream_kb", streams=n) for n in {row["streams"] for row in found["idle"]}
        ),
        idle_stream_us_per_second=statistics.median(row["stream_us_per_second"] for row in found["idle"]),
        postgres_connections=connections["postgres"] / connections["workers"],
        redis_connections=connections["redis"] / connections["workers"],
        redis_key_bytes=max(row["bytes_per_key"] for row in found["redis_memory"]),
    )


def request_points(found: dict[str, Any], setup: str, field: str = "gateway_us") -> list[Point]:
    """Return the medians of the rounds: requests per second of a processor, and microseconds of CPU per request.

    All workers of the measurement share one processor. While one runs, requests for the others gather, and share their
    next wakeup. So the cost depends on the rate of the processor, and not on that of each worker.
    """
    rows = [row for row in found["requests"] if row["setup"] == setup]
    return _medians(rows, "rate", "per_second", field)


def chunk_points(found: dict[str, Any]) -> list[Point]:
    """Return the medians of the rounds: chunks per second, and microseconds of CPU per chunk."""
    return _medians(found["streams"], "streams", "per_second", "gateway_us")


def _medians(rows: Sequence[dict[str, Any]], group: str, x: str, y: str) -> list[Point]:
    return [
        (_median(rows, x, **{group: value}), _median(rows, y, **{group: value}))
        for value in sorted({row[group] for row in rows})
    ]


def _median(rows: Sequence[dict[str, Any]], field: str, **equal: Any) -> float:
    return float(
        statistics.median(row[field] for row in rows if all(row[name] == value for name, value in equal.items()))
    )


@dataclass(frozen=True)
class Load:
    """What clients ask for."""

    requests_per_second: float
    chunks_per_request: int = 0
    """0: a response without a stream."""
    stream_seconds: float = 0.0
    """Duration of a stream."""
    active_keys: int = 10_000
    """Keys that send requests, each as often as the others."""

    @property
    def open_streams(self) -> float:
        """Little's law: arrivals per second, times duration."""
        return self.requests_per_second * self.stream_seconds


@dataclass(frozen=True)
class Hardware:
    """What is bought."""

    node_cores: int = 8
    utilization: float = 0.6
    """Share of the CPU time that is planned, so that a node may fail and a load may vary."""
    redis_round_trip_seconds: float = 0.0005
    max_postgres_connections: int = 100
    """`max_connections` of PostgreSQL, by default."""
    local_ports: int = 28_232
    """Connections of a node to one address and port of a provider: Linux's default `ip_local_port_range`."""
    disk_tb: float = 2.0
    retain_days: int = 90
    """`ledger.retain_days`, by default."""
    request_bytes: int = 1_000
    chunk_bytes: int = 250


@dataclass(frozen=True)
class Sizing:
    """What a load needs."""

    processes: int
    requests_per_process: float
    nodes: int
    gateway_cores: float
    memory_gb: float
    redis_cores: float
    redis_shards: int
    redis_connections: int
    redis_memory_gb: float
    postgres_cores: float
    postgres_connections: int
    rows_per_second: float
    wal_mb_per_second: float
    disk_gb_per_day: float
    network_gbit_per_second: float
    streams_per_node: float


def process_busy(calibration: Calibration, load: Load, rate: float, redis_and_postgres: bool = True) -> float:
    """Return the CPU seconds per second of a process that gets `rate` of the requests."""
    request = calibration.request_us(rate) if redis_and_postgres else calibration.request.at(rate)
    if redis_and_postgres:
        share = row_share(rate, load.active_keys)
        one_key = calibration.ledger.gateway_us[0][1]  # is part of the measured request
        request += interpolate(calibration.ledger.gateway_us, share) - one_key
    chunks = load.chunks_per_request
    idle = rate * load.stream_seconds * calibration.idle_stream_us_per_second
    busy = rate * request + idle
    if chunks:
        busy += rate * chunks * calibration.chunk.at(rate * chunks)
    return busy * MICROSECONDS


def process_capacity(calibration: Calibration, load: Load, utilization: float) -> float:
    """Return the requests per second at which one process uses `utilization` of a core."""
    return _solve(lambda rate: process_busy(calibration, load, rate), utilization)


def _solve(function: Callable[[float], float], value: float) -> float:
    """Return where an increasing function reaches a value."""
    low, high = 0.0, 1.0
    while function(high) < value:
        high *= 2
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if function(middle) < value else (low, middle)
    return high


def row_share(rate: float, active_keys: int) -> float:
    """Return the expected rows per ledger entry of a process: the distinct keys of a segment, over its entries."""
    entries = min(float(SEGMENT_ENTRIES), max(1.0, rate * INGEST_PAUSE_SECONDS))
    distinct = active_keys * -math.expm1(entries * math.log1p(-1 / active_keys)) if active_keys > 1 else 1.0
    return min(1.0, distinct / entries)


def redis_us(calibration: Calibration, hardware: Hardware, rate: float) -> float:
    """Return the CPU of Redis per request with limits, of processes with `rate` requests per second each."""
    return calibration.redis.at(max(1.0, rate * hardware.redis_round_trip_seconds))


def size(calibration: Calibration, load: Load, hardware: Hardware) -> Sizing:
    """Return what a load needs with all keys limited in Redis, and the ledger in PostgreSQL."""
    rate = load.requests_per_second
    processes = math.ceil(rate / process_capacity(calibration, load, hardware.utilization))
    per_process = rate / processes
    share = row_share(per_process, load.active_keys)
    by_cpu = math.ceil(processes / hardware.node_cores)
    nodes = max(by_cpu, math.ceil(load.open_streams / hardware.local_ports))
    redis_cores = rate * redis_us(calibration, hardware, per_process) * MICROSECONDS
    shards = math.ceil(redis_cores / hardware.utilization)
    wal = interpolate(calibration.ledger.wal_bytes, share)
    disk = interpolate(calibration.ledger.disk_bytes, share)
    response = load.chunks_per_request * hardware.chunk_bytes or hardware.request_bytes
    return Sizing(
        processes=processes,
        requests_per_process=per_process,
        nodes=nodes,
        gateway_cores=processes * process_busy(calibration, load, per_process),
        memory_gb=(processes * calibration.process_mb + load.open_streams * calibration.stream_kb / 1000) / 1000,
        redis_cores=redis_cores,
        redis_shards=shards,
        redis_connections=math.ceil(processes * calibration.redis_connections * shards),
        redis_memory_gb=load.active_keys * calibration.redis_key_bytes / 1e9,
        postgres_cores=rate * calibration.postgres_us(per_process, share) * MICROSECONDS,
        postgres_connections=math.ceil(processes * calibration.postgres_connections),
        rows_per_second=rate * share,
        wal_mb_per_second=rate * wal / 1e6,
        disk_gb_per_day=rate * disk * SECONDS_PER_DAY / 1e9,
        network_gbit_per_second=rate * 2 * (hardware.request_bytes + response) * 8 / 1e9,
        streams_per_node=load.open_streams / nodes,
    )


def setup_capacity(calibration: Calibration, setup: str, utilization: float) -> float:
    """Return the requests per second at which one process of a measured setup uses `utilization` of a core."""
    return _solve(lambda rate: predict_cores(calibration, setup, 1, rate), utilization)


def predict_cores(calibration: Calibration, setup: str, processors: float, rate: float) -> float:
    """Return the cores of the gateway's processes in a measured setup, at `rate` requests per second in total.

    `processors` are those that the processes run on, with a process or several on each.
    """
    each = rate / processors
    cost = {
        "SQLite": calibration.request.at,
        "Redis": calibration.with_redis.at,
        "PostgreSQL": calibration.with_postgres.at,
    }.get(setup, calibration.request_us)
    return rate * cost(each) * MICROSECONDS
