"""Measures the gain of a second worker: `python -m bench.workers`. Needs root on Linux with two processors.

A machine with two processors has none left for the load generator. So each worker gets the same small share of a
processor through a control group quota, and the load generator uses the rest of the second processor. One worker and
two workers do the same work in turns at full load. Twice the processor time should give twice the responses.
"""

from __future__ import annotations

import argparse
import os
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path

from bench.compare.__main__ import WORKS, measure, running_target, wait_until_healthy
from bench.compare.kernel import family
from bench.compare.targets import free_port, target

GROUPS = Path("/sys/fs/cgroup")
PERIOD = 10_000
"""The quota's period in microseconds. It is short, so that a worker that has used its quota does not pause for long."""
SETTLED = 4.0
"""Seconds after the start."""


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.workers", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--share", type=float, default=0.15, help="share of a processor for each worker")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=5.0, help="duration of each measurement")
    given = parser.parse_args()
    if not 0.1 <= given.share <= 0.5 or given.rounds < 1 or given.seconds <= 0:
        parser.error("--share is from 0.1 to 0.5; --rounds and --seconds must be more than 0")
    if os.geteuid() or not GROUPS.is_dir():
        parser.error("needs control groups, and root to create them")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # terminate child processes, as with Ctrl-C
    ratios = []
    for number in range(given.rounds):
        one, two = (flat_out(workers, given.share, given.seconds) for workers in (1, 2))
        ratios.append(two / one)
        print(f"round {number + 1}: one worker {one:,} requests/s, two {two:,}: {two / one:.2f} times", flush=True)
    print(f"median: {statistics.median(ratios):.2f} times, with {given.share:.0%} of a processor for each worker")
    return 0


def flat_out(workers: int, share: float, seconds: float) -> int:
    """Return the number of responses per second."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="workers-")))
        (folder / "svc.toml").write_text(f"[gateway]\nworkers = {workers}\n")
        port, provider = free_port(), free_port()
        one = target("svc", folder, port, provider)
        one = replace(one, command=[*one.command, "--config", str(folder / "svc.toml")])
        groups = [
            stack.enter_context(limited(f"svc-worker-{os.getpid()}-{number}", share)) for number in range(workers)
        ]
        process = stack.enter_context(running_target(one, folder))  # must end before its control groups
        if not wait_until_healthy(port, one.health, process):
            sys.exit(f"the gateway did not start: {(folder / 'log').read_text(errors='replace')[-300:]}")
        time.sleep(SETTLED)
        everybody = family(process.pid)
        serving = everybody[1 : workers + 1] if workers > 1 else everybody[:1]  # the supervisor is first
        for number, pid in enumerate(serving):
            (groups[number] / "cgroup.procs").write_text(str(pid))
            for task in Path(f"/proc/{pid}/task").iterdir():
                os.sched_setaffinity(int(task.name), {number})
        found = measure(one, process.pid, port, provider, WORKS[0], seconds)
    if found["faults"]:
        sys.exit(f"the load failed: {found['fault']}")
    return int(found["per_second"])


@contextmanager
def limited(name: str, share: float) -> Iterator[Path]:
    """Create a control group (version 1 or 2) with this share of a processor."""
    first = GROUPS / "cpu"
    group = (first if first.is_dir() else GROUPS) / name
    group.mkdir()
    quota = int(PERIOD * share)
    try:
        if first.is_dir():
            (group / "cpu.cfs_period_us").write_text(str(PERIOD))
            (group / "cpu.cfs_quota_us").write_text(str(quota))
        else:
            (group / "cpu.max").write_text(f"{quota} {PERIOD}")
        yield group
    finally:
        for _ in range(50):
            if not (group / "cgroup.procs").read_text():  # otherwise processes are still exiting
                break
            time.sleep(0.1)
        group.rmdir()


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
