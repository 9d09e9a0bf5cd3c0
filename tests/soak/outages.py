"""PostgreSQL stops under load and restarts, then Redis. No request is rejected, and every entry is in the ledger.

python -m tests.soak.outages --seconds 60
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from tests.soak.clients import Clients, pretty
from tests.soak.cluster import Cluster, running


@dataclass
class Report:
    seconds: float
    statuses: Counter[int]
    lost: int
    degraded: dict[str, list[list[str]]]
    """Degraded parts that each node reported during the outage."""
    back: dict[str, float]
    """Seconds until no node reported a degraded part."""
    missing: int
    doubled: int

    def __str__(self) -> str:
        back = ", ".join(f"{name} {seconds:.1f} s" for name, seconds in self.back.items())
        return (
            f"each down for {self.seconds:g} s: responses {pretty(self.statuses)}, connections lost {self.lost}; "
            f"reported as degraded: {self.degraded}; recovered after {back}; without an entry {self.missing}, "
            f"with two {self.doubled}"
        )


def outages(cluster: Cluster, *, seconds: float, clients: int) -> Report:
    """Stop and restart each store. Needs both stores."""
    assert cluster.redis is not None
    made = cluster.key("steady", "--rpm", "1000000", "--budget-usd", "1000", "--concurrency", "1000")
    degraded: dict[str, list[list[str]]] = {}
    back: dict[str, float] = {}
    with Clients(cluster.ports, made["key"], clients, streams=0.3, keep=False, pause=0.05, max_tokens=20) as many:
        time.sleep(1)
        for name, stop, start in (
            ("postgres", cluster.postgres.stop, cluster.postgres.start),
            ("redis", cluster.redis.kill, cluster.redis.start),
        ):
            stop()
            time.sleep(seconds)
            degraded[name] = cluster.degraded()
            start()
            began = time.monotonic()
            while any(cluster.degraded()) and time.monotonic() < began + 30:
                time.sleep(0.05)
            back[name] = time.monotonic() - began
            time.sleep(1)
    complete = {answer.id for answer in many.let_through()}
    noted = [entry.request_id for entry in cluster.settled(made["id"], complete)]
    return Report(
        seconds=seconds,
        statuses=many.statuses(),
        lost=many.lost,
        degraded=degraded,
        back=back,
        missing=len(complete - set(noted)),
        doubled=len(noted) - len(set(noted)),
    )


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--nodes", type=int, default=2)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--clients", type=int, default=20)
    args = parser.parse_args()
    with (
        tempfile.TemporaryDirectory() as folder,
        running(Path(folder), nodes=args.nodes, workers=args.workers) as cluster,
    ):
        report = outages(cluster, seconds=args.seconds, clients=args.clients)
    sys.stdout.write(f"{report}\n")


if __name__ == "__main__":
    main()
