"""Measures the CPU time that traces add to a request: `python -m bench.traces [--rounds 12] [--requests 1000]`.

Three gateways get the same requests in turns: without traces, with one request in ten sampled, and with all sampled.
The figure is the CPU time of the whole process, with the thread that exports. The collector is another process.
"""

from __future__ import annotations

import argparse
import multiprocessing
import statistics
import sys
import tempfile
from contextlib import ExitStack
from multiprocessing.connection import Connection
from pathlib import Path

from bench.replay import Replay, gateway
from bench.replay import socket as replay_socket
from tests.e2e.harness import SVC
from tests.fakes.collector import Collector

SHARES = {"off": None, "1 in 10": 0.1, "all": 1.0}


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.traces", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--requests", type=int, default=1000, help="requests of one round")
    given = parser.parse_args()
    ours, theirs = multiprocessing.Pipe()
    collector = multiprocessing.Process(target=collect, args=(theirs,))
    collector.start()
    try:
        print_figures(ours.recv(), given.rounds, given.requests)
        ours.send("stop")
        print(f"the collector received {ours.recv():,} spans")
    finally:
        collector.join(10)
        collector.kill()
    return 0


def collect(pipe: Connection) -> None:
    """Run a collector until a message arrives, and reply with the number of spans."""
    with Collector() as collector:
        pipe.send(collector.url)
        pipe.recv()
        pipe.send(len(collector.spans))


def print_figures(url: str, rounds: int, requests: int) -> None:
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="svc-traces-")))
        replays, pids = {}, {}
        for number, (name, share) in enumerate(SHARES.items()):
            home = folder / str(number)
            home.mkdir()
            listener = stack.enter_context(replay_socket.create_server(("127.0.0.1", 0)))
            process, port = stack.enter_context(gateway(home, listener, command_of(url, share)))
            replays[name], pids[name] = Replay(listener, port), process.pid
            for _ in range(requests):
                replays[name].json()
        figures: dict[str, list[float]] = {name: [] for name in SHARES}
        for _ in range(rounds):
            for name, replay in replays.items():
                before = cpu_nanoseconds(pids[name])
                for _ in range(requests):
                    replay.json()
                figures[name].append((cpu_nanoseconds(pids[name]) - before) / requests / 1000)
        for name, values in figures.items():
            added = statistics.median(value - off for value, off in zip(values, figures["off"], strict=True))
            print(f"{name:8} {statistics.median(values):7.1f} µs of CPU time per request, {added:+6.1f} µs")


def command_of(url: str, share: float | None) -> list[str]:
    """Return the command of a gateway that samples this share, or none."""
    if share is None:
        return [SVC, "gateway", "--port", "0"]
    variables = (
        f"OTEL_EXPORTER_OTLP_ENDPOINT={url}",
        "OTEL_TRACES_SAMPLER=traceidratio",
        f"OTEL_TRACES_SAMPLER_ARG={share}",
        "OTEL_BSP_SCHEDULE_DELAY=500",
    )
    return ["env", *variables, SVC, "gateway", "--port", "0"]


def cpu_nanoseconds(pid: int) -> int:
    """Return the CPU time of all threads of a process."""
    return sum(int(path.read_text().split()[0]) for path in Path(f"/proc/{pid}/task").glob("*/schedstat"))


if __name__ == "__main__":
    sys.exit(main())
