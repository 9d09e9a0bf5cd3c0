"""Keys are revoked under load. One second later, every node rejects them.

python -m tests.soak.key_revocation --keys 50
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from tests.soak.clients import Clients
from tests.soak.cluster import Cluster, running


@dataclass
class Report:
    keys: int
    answers: int
    """Responses with a key before its revocation."""
    latest: float
    """Seconds between a key's revocation in the database and the last admitted request with that key."""
    never: int
    """Nodes that admitted a key until the end."""

    def __str__(self) -> str:
        return (
            f"{self.keys} keys revoked under load, {self.answers} responses before; the last admitted request was "
            f"sent {self.latest:.2f} s after its key was revoked; nodes that never rejected it: {self.never}"
        )


def revoke(cluster: Cluster, *, keys: int, clients: int) -> Report:
    """Revoke keys one after the other while the load continues."""
    other = cluster.key("other")
    report = Report(keys=keys, answers=0, latest=0.0, never=0)
    with Clients(cluster.ports, other["key"], clients, streams=0.3, keep=False):
        for number in range(keys):
            made = cluster.key(f"leaver {number}", "--rpm", "100000")
            with Clients(cluster.ports, made["key"], clients, keep=number % 2 == 0, pause=0.02) as many:
                time.sleep(0.5)
                revoked = cluster.revoke(made["id"]) - time.time() + time.monotonic()
                time.sleep(1.3)
            through = many.let_through()
            report.answers += sum(answer.sent <= revoked for answer in through)
            report.latest = max([report.latest, *(answer.sent - revoked for answer in through)])
            refused = {answer.node for answer in many.answers if answer.status == 401}
            report.never += len(set(range(len(cluster.ports))) - refused)
    return report


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--keys", type=int, default=50)
    parser.add_argument("--nodes", type=int, default=2)
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--clients", type=int, default=16)
    args = parser.parse_args()
    with (
        tempfile.TemporaryDirectory() as folder,
        running(Path(folder), nodes=args.nodes, workers=args.workers) as cluster,
    ):
        report = revoke(cluster, keys=args.keys, clients=args.clients)
    sys.stdout.write(f"{report}\n")


if __name__ == "__main__":
    main()
