"""Renders the page about scale and its chart from the calibration. Pure functions."""

from __future__ import annotations

import math
import statistics
import textwrap
from dataclasses import dataclass
from typing import Any

from bench.scale.model import (
    SEGMENT_ENTRIES,
    Calibration,
    Hardware,
    Load,
    Point,
    calibrate,
    chunk_points,
    predict_cores,
    process_capacity,
    redis_us,
    request_points,
    setup_capacity,
    size,
)

Found = dict[str, Any]
HARDWARE = Hardware()
JSON_LOADS = tuple((f"{rate:,} requests/s", Load(rate)) for rate in (1_000, 10_000, 100_000))
STREAM_SECONDS, STREAM_CHUNKS = 20.0, 400
STREAM_LOADS = tuple(
    (f"{streams:,} open streams", Load(streams / STREAM_SECONDS, STREAM_CHUNKS, STREAM_SECONDS))
    for streams in (20_000, 200_000, 1_000_000)
)
SETUPS = ("SQLite", "Redis", "PostgreSQL", "both", "both, 2 workers")
FITTED = ("SQLite", "Redis", "PostgreSQL")
"""The setups that the model is fitted to. It predicts the others."""
DELETED_ENTRIES_PER_SECOND = 10_000 / 0.45
"""Of PostgreSQL, one batch after the other: `docs/explanation/accounting.md`."""
MAX_REDIS_CLIENTS = 10_000
"""`maxclients` of Redis, by default."""

TOP = """# Scale

This page says what a load needs: nodes, Redis, PostgreSQL, and what breaks first. `python -m bench.scale measure`
measures the costs on one machine and writes `bench/scale/calibration.json`. `python -m bench.scale page` calculates
this page from that file with the functions of `bench/scale/model.py`. No load above a few thousand requests per second
was run. The larger figures are calculated.

"""


@dataclass(frozen=True)
class Part:
    """A part of the system that has a limit, and the change that raises it."""

    name: str
    limit: float
    """Requests per second at which it is used up, for the first load of its table."""
    change: str


def render(found: Found) -> tuple[str, str]:
    """Return the page in Markdown and the chart in SVG."""
    calibration = calibrate(found)
    parts = [
        TOP,
        _machine(found),
        _costs(found, calibration),
        _comparison(found, calibration),
        _sizing("Responses without streams", "", JSON_LOADS, calibration),
        _sizing(
            "Open streams",
            f"A stream has {STREAM_CHUNKS} chunks in {STREAM_SECONDS:.0f} s, so {100 / STREAM_SECONDS:.0f} % of the open streams start and end in "
            "each second.",
            STREAM_LOADS,
            calibration,
        ),
        _breaks(calibration),
        ASSUMPTIONS.format(
            hardware=HARDWARE,
            utilization=HARDWARE.utilization * 100,
            round_trip=HARDWARE.redis_round_trip_seconds * 1e3,
        ),
    ]
    return "\n".join(part.rstrip("\n") + "\n" for part in parts), chart(found, calibration)


def _machine(found: Found) -> str:
    before, after = found["load_average"]
    return _paragraph(
        f"The measurements are of {found['when']}: {found['program']}, {found['rounds']} rounds of {found['seconds']:g} s "
        f"for each figure, in {found['minutes']:g} minutes. {found['machine']}. The load average was {before:g} before and "
        f"{after:g} after, because other programs ran. They use the caches too, so every cost is higher than on an idle "
        "machine. [Performance](performance.md) has figures of a quieter one."
    )


def _costs(found: Found, calibration: Calibration) -> str:
    rows = ["| Cost | Median | Rounds |", "|---|---:|---:|"]
    for setup in FITTED:
        for rate in sorted({row["rate"] for row in found["requests"]}):
            some = [row for row in found["requests"] if (row["setup"], row["rate"]) == (setup, rate)]
            reached = statistics.median(row["per_second"] for row in some)
            rows.append(_row(f"Gateway, {setup}, {reached:,.0f} requests/s", [row["gateway_us"] for row in some], "µs"))
    for streams in sorted({row["streams"] for row in found["streams"]}):
        some = [row for row in found["streams"] if row["streams"] == streams]
        rows.append(_row(f"Gateway, a chunk, {streams} streams", [row["gateway_us"] for row in some], "µs"))
    for waiting in sorted({row["outstanding"] for row in found["redis"]}):
        some = [row for row in found["redis"] if row["outstanding"] == waiting]
        rows.append(_row(f"Redis, a request, {waiting} waiting", [row["redis_us"] for row in some], "µs"))
    for row in found["redis_memory"]:
        processes = "1 process" if row["processes"] == 1 else f"{row['processes']} processes"
        activity = f"a request in each second, {processes}" if row["is_busy"] else "one request"
        compact = f", listpack up to {row['compact_fields']}" if row["is_busy"] else ""
        rows.append(f"| Memory of Redis, a key with {activity}{compact} | {row['bytes_per_key']:,} bytes | – |")
    for keys in sorted({row["keys"] for row in found["ledger"]}):
        some = [row for row in found["ledger"] if row["keys"] == keys]
        name = f"a ledger entry, {keys:,} keys in {SEGMENT_ENTRIES:,} entries"
        rows.append(_row(f"PostgreSQL, {name}", [row["postgres_us"] for row in some], "µs"))
        rows.append(_row(f"WAL, {name}", [row["wal_bytes"] for row in some], "bytes"))
        rows.append(_row(f"Disk, {name}", [row["disk_bytes"] for row in some], "bytes"))
    for streams in sorted({row["streams"] for row in found["idle"]}):
        some = [row for row in found["idle"] if row["streams"] == streams]
        rows.append(_row(f"Memory of a stream, {streams:,} open", [row["stream_kb"] for row in some], "kB"))
        rows.append(
            _row(f"CPU of a silent stream, {streams:,} open", [row["stream_us_per_second"] for row in some], "µs/s")
        )
    rows.append(_row("Memory of a process without streams", [row["empty_mb"] for row in found["idle"]], "MB"))
    rows.append(f"| Connections of a process to PostgreSQL | {calibration.postgres_connections:g} | – |")
    rows.append(f"| Connections of a process to Redis | {calibration.redis_connections:g} | – |")
    return (
        "## Measured costs\n\nA cost is CPU time that the kernel accounted, per operation. All requests are varied, as in\n"
        "[the comparison](compare.md). The third column has the lowest and the highest round.\n\n"
        + "\n".join(rows)
        + "\n\n"
        + _paragraph(_describe_redis_memory(found))
    )


def _describe_redis_memory(found: Found) -> str:
    busy = {
        (row["processes"], row["compact_fields"]): row["bytes_per_key"]
        for row in found["redis_memory"]
        if row["is_busy"]
    }
    most = max(processes for processes, _ in busy)
    compact = sorted({fields for _, fields in busy})
    saved = 1 - busy[most, compact[-1]] / busy[most, compact[0]]
    return (
        "A key takes memory in Redis until an hour after its last request. The memory grows with the seconds of the last "
        "minute that had requests, and with the gateway processes that count for the key. Redis stores a hash of up to "
        f"`hash-max-listpack-entries` fields compactly. Its default is {compact[0]} since version 7, and was "
        f"{compact[-1]} before. With {compact[-1]}, a key that {most} processes count takes {_percent(saved)} less memory. "
        "These bytes do not depend on the load of the machine."
    )


def _row(name: str, values: list[float], unit: str) -> str:
    return f"| {name} | {_short(statistics.median(values))} {unit} | {_short(min(values))}–{_short(max(values))} |"


def _percent(value: float, signed: bool = False) -> str:
    rounded = round(value * 100)
    return f"{rounded:+d} %" if signed and rounded else f"{rounded} %"


def _paragraph(text: str) -> str:
    return textwrap.fill(text, 118, break_on_hyphens=False, break_long_words=False) + "\n"


def _short(value: float) -> str:
    if value == 0:
        return "0"
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.2g}"


def measured_and_calculated(found: Found, calibration: Calibration) -> list[tuple[str, float, float, float]]:
    """Return setup, requests per second, measured and calculated cores of the gateway, for each rate."""
    rows = []
    for setup in SETUPS:
        for rate, value in request_points(found, setup):
            rows.append((setup, rate, rate * value / 1e6, predict_cores(calibration, setup, 1, rate)))
    return rows


def errors(found: Found, calibration: Calibration, setups: tuple[str, ...]) -> list[float]:
    """Return the relative error of the model at each measured point of some setups."""
    rows = measured_and_calculated(found, calibration)
    return [abs(calculated / measured - 1) for setup, _, measured, calculated in rows if setup in setups]


def _spread(found: Found, rate: int) -> float:
    """Return how much the highest round exceeds the lowest at a rate, in the setup where it is most."""
    rows = [
        [row["gateway_us"] for row in found["requests"] if (row["setup"], row["rate"]) == (setup, rate)]
        for setup in SETUPS
    ]
    return max(max(values) / min(values) - 1 for values in rows)


def _comparison(found: Found, calibration: Calibration) -> str:
    rows = ["| Setup | Requests/s | Cores, measured | Cores, calculated | Error |", "|---|---:|---:|---:|---:|"]
    for setup, rate, measured, calculated in measured_and_calculated(found, calibration):
        error = calculated / measured - 1
        rows.append(f"| {setup} | {rate:,.0f} | {measured:.3f} | {calculated:.3f} | {_percent(error, signed=True)} |")
    fitted = errors(found, calibration, FITTED)
    others = errors(found, calibration, tuple(set(SETUPS) - set(FITTED)))
    chunks = [abs(calibration.chunk.at(rate) / value - 1) for rate, value in chunk_points(found)]
    return (
        "## Model and measurement\n\nThe lines of the chart are the model, and the dots are the measurements.\n\n"
        "![CPU of the model and of the measurements](scale.svg)\n\n"
        + _paragraph(
            f"The model is fitted to the setups {', '.join(FITTED[:-1])} and {FITTED[-1]}. The error there is "
            f"{_percent(statistics.median(fitted))} in the median and at most {_percent(max(fitted))}. The model "
            "calculates the setups with both stores from these, with 1 and with 2 workers. The error there is "
            f"{_percent(statistics.median(others))} in the median and at most {_percent(max(others))}. For chunks it is at "
            f"most {_percent(max(chunks))}. The model does not assume that a cost falls below that of the highest measured "
            "rate, or rises above that of the lowest. All workers of the measurement run on one processor, whose rate "
            "decides how many requests share a wakeup. At 100 requests/s each request has its own, which costs more while other "
            "programs use the caches. The figures there differ most: the rounds themselves by up to "
            f"{_percent(_spread(found, 100))}."
        )
        + "\n"
        + "\n".join(rows)
        + "\n"
    )


def _sizing(title: str, text: str, loads: tuple[tuple[str, Load], ...], calibration: Calibration) -> str:
    sizes = [size(calibration, load, HARDWARE) for _, load in loads]
    streams = any(load.open_streams for _, load in loads)
    rows = [f"| Needed | {' | '.join(name for name, _ in loads)} |", f"|---|{'---:|' * len(loads)}"]

    def add(name: str, values: list[str]) -> None:
        rows.append(f"| {name} | {' | '.join(values)} |")

    if streams:
        add("Requests/s", [f"{load.requests_per_second:,.0f}" for _, load in loads])
        add("Chunks/s", [f"{load.requests_per_second * load.chunks_per_request:,.0f}" for _, load in loads])
    add(f"Nodes with {HARDWARE.node_cores} cores", [f"{each.nodes:,}" for each in sizes])
    add("Worker processes", [f"{each.processes:,}" for each in sizes])
    add("Cores in use, gateway", [_short(each.gateway_cores) for each in sizes])
    add("Memory, gateway", [f"{_short(each.memory_gb)} GB" for each in sizes])
    if streams:
        add("Open streams per node", [f"{each.streams_per_node:,.0f}" for each in sizes])
    add("Network, all nodes", [f"{_short(each.network_gbit_per_second)} Gbit/s" for each in sizes])
    add("Redis: cores in use", [_short(each.redis_cores) for each in sizes])
    add("Redis: shards", [f"{each.redis_shards:,}" for each in sizes])
    add("Redis: memory for the keys", [f"{_short(each.redis_memory_gb)} GB" for each in sizes])
    add("PostgreSQL: cores in use", [_short(each.postgres_cores) for each in sizes])
    add("PostgreSQL: rows/s", [f"{each.rows_per_second:,.0f}" for each in sizes])
    add("PostgreSQL: connections", [f"{each.postgres_connections:,}" for each in sizes])
    add("PostgreSQL: WAL", [f"{_short(each.wal_mb_per_second)} MB/s" for each in sizes])
    add("PostgreSQL: disk", [f"{_short(each.disk_gb_per_day)} GB per day" for each in sizes])
    add(
        f"PostgreSQL: disk for {HARDWARE.retain_days} days",
        [f"{_short(each.disk_gb_per_day * HARDWARE.retain_days / 1000)} TB" for each in sizes],
    )
    add("Breaks first", [_first(calibration, load, 0) for _, load in loads])
    add("Breaks next", [_first(calibration, load, 1) for _, load in loads])
    return f"## {title}\n\n" + (f"{text}\n\n" if text else "") + "\n".join(rows) + "\n"


def _first(calibration: Calibration, load: Load, place: int) -> str:
    """Return the part that is used up first, if the load needs more than it has."""
    broken = [part for part in limits(calibration, load) if part.limit < load.requests_per_second]
    return broken[place].name if len(broken) > place else "nothing"


def limits(calibration: Calibration, load: Load) -> list[Part]:
    """Return the parts in the order in which they are used up: one node, one Redis and one PostgreSQL, by default."""
    hardware = HARDWARE
    process = process_capacity(calibration, load, hardware.utilization)
    node = process * hardware.node_cores
    redis = hardware.utilization / (redis_us(calibration, hardware, process) / 1e6)
    one = size(calibration, Load(node, load.chunks_per_request, load.stream_seconds, load.active_keys), hardware)
    database = hardware.utilization * hardware.node_cores / (one.postgres_cores / node)
    connections = (hardware.max_postgres_connections - 3) / calibration.postgres_connections * process
    clients = MAX_REDIS_CLIENTS / calibration.redis_connections * process
    found = [
        Part("CPU of one node", node, "Add nodes. They share nothing but the stores"),
        Part(
            "CPU of one Redis",
            redis,
            "Redis Cluster: the keys of the limits are spread over its shards, and the gateway supports it",
        ),
        Part(
            "Connections of PostgreSQL",
            connections,
            "Raise `max_connections`. Beyond some thousand: one ledger writer per node. Not built: each process has its own",
        ),
        Part(
            "CPU of one PostgreSQL",
            database,
            "More cores. Beyond that, a database for each group of gateways. Entries already arrive by `COPY`",
        ),
        Part(
            "Deletion after `retain_days`",
            DELETED_ENTRIES_PER_SECOND,
            "Partitions of the ledger by month and `DROP` of the oldest: `svc migrate --partition`",
        ),
        Part(
            f"Disk of PostgreSQL, {hardware.disk_tb:g} TB for {hardware.retain_days} days",
            hardware.disk_tb * 1e3 / hardware.retain_days / (one.disk_gb_per_day / node),
            "Shorten `retain_days`, since the sums stay, or add disk",
        ),
        Part("Clients of one Redis", clients, "Raise `maxclients` of Redis"),
    ]
    if load.stream_seconds:
        ports = hardware.local_ports / load.stream_seconds
        found.append(
            Part(
                "Local ports of one node",
                ports,
                "Add nodes, addresses of the provider, or a wider `net.ipv4.ip_local_port_range`",
            )
        )
    return sorted(found, key=lambda part: part.limit)


def _breaks(calibration: Calibration) -> str:
    text = "## What breaks first\n\n" + _paragraph(
        "The start is one node, one Redis and one PostgreSQL with its defaults, on equal machines. A part breaks when its "
        "planned share is used up. The limits of a key are in one slot of Redis, so a single key never has more requests "
        "than one shard serves."
    )
    for title, load in (("Responses without streams", JSON_LOADS[0][1]), ("Streams", STREAM_LOADS[0][1])):
        text += f"\n### {title}\n\n| Part | Breaks at | Change |\n|---|---:|---|\n"
        for part in limits(calibration, load):
            at = f"{_round(part.limit):,.0f} requests/s"
            if load.stream_seconds:
                at = f"{_round(part.limit * load.stream_seconds):,.0f} open streams"
            text += f"| {part.name} | {at} | {part.change} |\n"
    return text


def _round(value: float) -> float:
    """Two significant digits."""
    digits = 10.0 ** (math.floor(math.log10(value)) - 1)
    return round(value / digits) * digits


ASSUMPTIONS = """## Assumptions

| Assumption | Value |
|---|---|
| Planned use of every CPU | {utilization:.0f} %, so that a node may fail and a load may vary |
| Time to Redis and back | {round_trip:g} ms. The scripts of the requests that wait at the same time share a round trip |
| Keys with requests | 10,000, each as often as the others. Fewer keys make fewer rows, which cost less |
| Request, response without a stream | {hardware.request_bytes:,} bytes each |
| Chunk | {hardware.chunk_bytes} bytes |
| Local ports | {hardware.local_ports:,} for each address of a provider, Linux's default range |
| Disk | {hardware.disk_tb:g} TB, and `retain_days` = {hardware.retain_days}. The measured bytes include indexes and the sums of four minutes, so they are an upper bound |
| Every request | Has a key with limits in Redis, and an entry in PostgreSQL |

Add a node to each number of nodes, so that one may fail. The model leaves out TLS, the network cards, the load balancer
in front, and the time that PostgreSQL needs for vacuum and replication. Plan these separately, and repeat the
measurement on the hardware that you use.
"""

WIDTH, HEIGHT, LEFT, BOTTOM = 720, 340, 60, 290
COLOURS = ("#2f6fde", "#e0a030", "#3a9a5b", "#c05050", "#7a52b3")


@dataclass(frozen=True)
class Axes:
    """A panel with two logarithmic axes."""

    left: float
    width: float
    x: Point
    y: Point

    def place(self, x: float, y: float) -> Point:
        across = math.log(x / self.x[0]) / math.log(self.x[1] / self.x[0])
        up = math.log(y / self.y[0]) / math.log(self.y[1] / self.y[0])
        return self.left + across * self.width, BOTTOM - up * (BOTTOM - 40)


def chart(found: Found, calibration: Calibration) -> str:
    """Draw cores by requests per second, and the CPU of a chunk by chunks per second."""
    parts = []
    axes = Axes(LEFT, 380, (50, 100_000), (0.01, 100))
    parts += _grid(axes, "Cores of the gateway, by requests/s", (100, 1_000, 10_000, 100_000), (0.01, 0.1, 1, 10, 100))
    points = measured_and_calculated(found, calibration)
    for number, setup in enumerate(SETUPS):
        most = setup_capacity(calibration, setup, HARDWARE.utilization)

        def cores(rate: float, setup: str = setup, most: float = most) -> float:
            """A process serves up to the planned share of a core. Beyond, there are more processes."""
            return predict_cores(calibration, setup, max(1.0, rate / most), rate)

        rates = [50 * (100_000 / 50) ** (step / 60) for step in range(61)]
        parts.append(_line([axes.place(rate, cores(rate)) for rate in rates], COLOURS[number]))
        parts += [
            _dot(axes.place(rate, measured), COLOURS[number]) for name, rate, measured, _ in points if name == setup
        ]
        parts.append(_dot((LEFT + 20, 56 + 16 * number), COLOURS[number]))
        parts.append(f'<text x="{LEFT + 30}" y="{60 + 16 * number}">{setup}</text>')
    measured = chunk_points(found)
    top = 10 ** math.ceil(math.log10(max(value for _, value in measured)))
    axes = Axes(500, 200, (100, 100_000), (1, top))
    ticks = tuple(10.0**power for power in range(round(math.log10(top)) + 1))
    parts += _grid(axes, "µs per chunk, by chunks/s", (100, 1_000, 10_000, 100_000), ticks)
    rates = [100 * 1000 ** (step / 60) for step in range(61)]
    parts.append(_line([axes.place(rate, calibration.chunk.at(rate)) for rate in rates], COLOURS[0]))
    parts += [_dot(axes.place(rate, value), COLOURS[0]) for rate, value in measured]
    body = "\n".join(parts)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" height="{HEIGHT}" font-family="sans-serif" font-size="12">\n'
        f'<rect width="100%" height="100%" fill="white"/>\n{body}\n'
        f'<text x="10" y="{HEIGHT - 8}" font-size="11">Lines: the model. Dots: medians of the measurements. All axes are logarithmic.</text>\n</svg>\n'
    )


def _grid(axes: Axes, title: str, xs: tuple[float, ...], ys: tuple[float, ...]) -> list[str]:
    parts = [f'<text x="{axes.left}" y="24" font-weight="bold">{title}</text>']
    for x in xs:
        at, _ = axes.place(x, axes.y[0])
        parts.append(f'<line x1="{at:.1f}" y1="40" x2="{at:.1f}" y2="{BOTTOM}" stroke="#ddd"/>')
        parts.append(f'<text x="{at:.1f}" y="{BOTTOM + 16}" text-anchor="middle">{_tick(x)}</text>')
    for y in ys:
        _, at = axes.place(axes.x[0], y)
        parts.append(
            f'<line x1="{axes.left}" y1="{at:.1f}" x2="{axes.left + axes.width}" y2="{at:.1f}" stroke="#ddd"/>'
        )
        parts.append(f'<text x="{axes.left - 6}" y="{at + 4:.1f}" text-anchor="end">{_tick(y)}</text>')
    return parts


def _tick(value: float) -> str:
    return f"{value / 1000:g} k" if value >= 1000 else f"{value:g}"


def _line(points: list[Point], colour: str) -> str:
    text = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    return f'<polyline points="{text}" fill="none" stroke="{colour}" stroke-width="1.5"/>'


def _dot(point: Point, colour: str) -> str:
    return f'<circle cx="{point[0]:.1f}" cy="{point[1]:.1f}" r="3.5" fill="{colour}"/>'
