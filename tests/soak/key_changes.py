"""Keys are created and changed while nodes use them. One second later, every worker of every node uses the new values.

python -m tests.soak.key_changes --rounds 10
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from svc.keys import lifecycle
from svc.keys.lifecycle import Change, NewKey, Rotation
from svc.stores.database.base import Database
from tests.e2e.harness import GPT, HI
from tests.fakes.http_client import RawClient
from tests.soak.cluster import Cluster, running

SECONDS = 1.2
"""Seconds for which each change is observed."""
ASKED = 24
"""Connections to each node before a change, so that all of its workers have cached the key."""
CHANGES: dict[str, tuple[Change, int]] = {
    "limit": (Change(rpm=1), 429),
    "no limit": (Change(rpm=None), 200),
    "allow-list": (Change(models=("gpt-4o",)), 404),
    "no allow-list": (Change(models=None), 200),
    "scopes": (Change(scopes=("metrics",)), 403),
}
"""Changes of a key in order, with the expected status of its requests."""


@dataclass
class Report:
    latest: dict[str, float] = field(default_factory=dict)
    """Per change: seconds between the commit and the last request with the old result."""
    answers: int = 0
    wrong: list[tuple[str, int]] = field(default_factory=list)
    """Results that are neither the old nor the new one."""

    def __str__(self) -> str:
        found = ", ".join(f"{name} {seconds:.2f} s" for name, seconds in self.latest.items())
        return f"{self.answers} responses; the last with the old result: {found}; wrong: {self.wrong[:5]}"


def change(cluster: Cluster, *, rounds: int) -> Report:
    """Apply all kinds of changes, `rounds` times."""
    report = Report()
    with cluster.database() as database:
        for _ in range(rounds):
            _round(cluster, database, report)
    return report


def _round(cluster: Cluster, database: Database, report: Report) -> None:
    made = lifecycle.create_key(database, NewKey(name="changing", rpm=1_000_000))
    _watch(cluster, report, "made", made.key, 401, 200)
    turned = made.key

    def rotate() -> None:
        nonlocal turned
        turned = lifecycle.rotate_key(database, made.id, Rotation(grace=0)).key

    _watch(cluster, report, "rotated", made.key, 200, 401, rotate)
    _watch(cluster, report, "new secret", turned, 401, 200)
    before = 200
    for name, (wanted, after) in CHANGES.items():
        _watch(
            cluster,
            report,
            name,
            turned,
            before,
            after,
            lambda wanted=wanted: lifecycle.update_key(database, made.id, wanted),
        )
        before = after


def _watch(
    cluster: Cluster,
    report: Report,
    name: str,
    key: str,
    before: int,
    after: int,
    do: Callable[[], object] | None = None,
) -> None:
    if do is not None:
        for port in cluster.ports:
            report.wrong += [(name, got) for _ in range(ASKED) if (got := _ask(port, key)) != before]
        do()
    began = time.monotonic()
    latest = report.latest.get(name, 0.0)
    while time.monotonic() < began + SECONDS:
        for port in cluster.ports:
            sent = time.monotonic() - began
            got = _ask(port, key)
            report.answers += 1
            if got == before:
                latest = max(latest, sent)
            elif got != after:
                report.wrong.append((name, got))
    report.latest[name] = latest


def _ask(port: int, key: str) -> int:
    """Send one request on a new connection."""
    with RawClient(port) as raw:
        return raw.request("POST", "/v1/chat/completions", {"model": GPT, "messages": HI}, key=key).status


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--nodes", type=int, default=2)
    parser.add_argument("--workers", type=int, default=4)
    args = parser.parse_args()
    with (
        tempfile.TemporaryDirectory() as folder,
        running(Path(folder), nodes=args.nodes, workers=args.workers) as cluster,
    ):
        report = change(cluster, rounds=args.rounds)
    sys.stdout.write(f"{report}\n")


if __name__ == "__main__":
    main()
