"""Workers are killed with SIGKILL under load. Every response that a client received completely has one ledger entry.

python -m tests.soak.kills --kills 200
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from tests.fakes import openai_wire
from tests.fakes.script import sse
from tests.soak.clients import Clients
from tests.soak.cluster import Cluster, running


@dataclass
class Report:
    kills: int
    complete: int
    """Responses that a client received completely."""
    lost: int
    """Requests whose connection ended before the response was complete."""
    missing: int
    doubled: int
    left: int
    """Journals that no process has ingested."""

    def __str__(self) -> str:
        return (
            f"{self.kills} kills; {self.complete} complete responses, {self.lost} truncated by a kill; "
            f"without an entry {self.missing}, with two {self.doubled}; journals left {self.left}"
        )


def kill(cluster: Cluster, *, kills: int, clients: int, every: float) -> Report:
    """Kill workers at intervals between 0.5 and 1.5 times `every` seconds."""
    made = cluster.key("killed", "--rpm", "1000000", "--budget-usd", "1000")
    workers = len(cluster.workers())
    cluster.fake.always_plays(sse(openai_wire.stream("one two three four five six seven", usage=True), every=0.01))
    with (
        Clients(cluster.ports, made["key"], clients, keep=False, streams=1.0) as streams,
        Clients(cluster.ports, made["key"], clients // 2, keep=True, streams=1.0) as kept,
    ):
        for _ in range(kills):
            time.sleep(random.uniform(0.5, 1.5) * every)
            os.kill(random.choice(cluster.workers()), signal.SIGKILL)
        deadline = time.monotonic() + 20
        while len(cluster.workers()) < workers and time.monotonic() < deadline:
            time.sleep(0.05)
        time.sleep(0.5)
    complete = {answer.id for group in (streams, kept) for answer in group.answers if answer.status == 200}
    noted = [entry.request_id for entry in cluster.settled(made["id"], complete)]
    time.sleep(1)
    present = len(cluster.workers()) * 1
    journals = sum(len(list((node.home / "svc" / "journal").glob("*.journal"))) for node in cluster.nodes)
    return Report(
        kills=kills,
        complete=len(complete),
        lost=streams.lost + kept.lost,
        missing=len(complete - set(noted)),
        doubled=len(noted) - len(set(noted)),
        left=max(0, journals - present),
    )


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--clients", type=int, default=40)
    parser.add_argument("--every", type=float, default=0.6)
    args = parser.parse_args()
    with (
        tempfile.TemporaryDirectory() as folder,
        running(Path(folder), nodes=1, workers=args.workers, redis=False, postgres=False) as cluster,
    ):
        report = kill(cluster, kills=args.kills, clients=args.clients, every=args.every)
    sys.stdout.write(f"{report}\n")


if __name__ == "__main__":
    main()
