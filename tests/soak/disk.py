"""The gateway's disk fills up under load and is freed again: no data is corrupt, and every request has an entry.

    python -m tests.soak.disk --seconds 20        # a real file system of 24 MiB (needs root, to mount it)

The short run lets the kernel refuse every write to a file instead (RLIMIT_FSIZE).
"""

from __future__ import annotations

import argparse
import contextlib
import resource
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from tests.soak.clients import Clients, pretty
from tests.soak.cluster import Cluster, running

Policy = Literal["continue", "refuse"]


@dataclass
class Report:
    policy: Policy
    before: Counter[int]
    during: Counter[int]
    """Statuses while the disk was full, from the moment that the gateway noticed it."""
    after: Counter[int]
    degraded: list[str]
    refusal: bytes
    missing: int
    doubled: int
    check: str
    """Result of SQLite's integrity check."""
    broken: bool
    """Whether the log reports broken lines of a journal."""

    def __str__(self) -> str:
        return (
            f"when_full = {self.policy}: before {pretty(self.before)}, without room {pretty(self.during)}, after "
            f"{pretty(self.after)}; reported as degraded: {self.degraded}; responses without an entry {self.missing}, "
            f"with two {self.doubled}; database {self.check}; broken lines {self.broken}"
        )


def fill(
    cluster: Cluster,
    *,
    policy: Policy,
    clients: int,
    seconds: float,
    full: Callable[[], None],
    free: Callable[[], None],
) -> Report:
    """Fill the disk with `full` and free it with `free`, on one node."""
    made = cluster.key("writer", "--rpm", "1000000", "--budget-usd", "1000")
    with Clients(cluster.ports, made["key"], clients, streams=0.3, pause=0.02) as many:
        time.sleep(seconds / 2)
        full()
        _wait(lambda: "journal" in cluster.degraded()[0], 20)
        noticed = time.monotonic()
        time.sleep(seconds)
        degraded = cluster.degraded()[0]
        freed = time.monotonic()
        free()
        _wait(lambda: not cluster.degraded()[0], 20)
        well = time.monotonic()
        time.sleep(seconds / 2)
    complete = {answer.id for answer in many.let_through()}
    noted = [entry.request_id for entry in cluster.settled(made["id"], complete)]
    (node,) = cluster.nodes
    with contextlib.closing(sqlite3.connect(cluster.home / "svc.db")) as database:
        check = str(database.execute("PRAGMA integrity_check").fetchone()[0])
    return Report(
        policy=policy,
        before=Counter(answer.status for answer in many.answers if answer.got < noticed),
        during=Counter(answer.status for answer in many.answers if noticed < answer.sent and answer.got < freed),
        after=Counter(answer.status for answer in many.answers if answer.sent > well),
        degraded=degraded,
        refusal=next((answer.body for answer in many.answers if answer.status == 507), b""),
        missing=len(complete - set(noted)),
        doubled=len(noted) - len(set(noted)),
        check=check,
        broken="broken" in node.log or "cut off" in node.log,
    )


def _wait(condition: Callable[[], bool], seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError("the expected state was not reached")
        time.sleep(0.02)


def by_limit(cluster: Cluster) -> tuple[Callable[[], None], Callable[[], None]]:
    """Make every write to a file fail, by RLIMIT_FSIZE, and allow it again."""
    pid = cluster.nodes[0].process.pid
    before = resource.prlimit(pid, resource.RLIMIT_FSIZE)
    return (
        lambda: (resource.prlimit(pid, resource.RLIMIT_FSIZE, (0, before[1])), None)[1],
        lambda: (resource.prlimit(pid, resource.RLIMIT_FSIZE, before), None)[1],
    )


@contextlib.contextmanager
def small_disk(size: str) -> Iterator[Path]:
    """Mount a small file system."""
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", folder], check=True)
        try:
            yield Path(folder)
        finally:
            subprocess.run(["umount", "-l", folder], check=True)


def by_filling(disk: Path) -> tuple[Callable[[], None], Callable[[], None]]:
    """Fill the file system with one file, and remove it."""
    filler = disk / "filler"

    def full() -> None:
        with contextlib.suppress(OSError), filler.open("wb", buffering=0) as file:
            while True:
                file.write(b"x" * 4096)

    return full, filler.unlink


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=20)
    parser.add_argument("--clients", type=int, default=10)
    args = parser.parse_args()
    policies: tuple[Policy, ...] = ("continue", "refuse")
    for policy in policies:
        config = f'access_log = false\n[ledger]\nwhen_full = "{policy}"\n'
        with (
            small_disk("24m") as disk,
            running(disk, nodes=1, workers=1, redis=False, postgres=False, config=config) as cluster,
        ):
            full, free = by_filling(disk)
            report = fill(cluster, policy=policy, clients=args.clients, seconds=args.seconds, full=full, free=free)
        sys.stdout.write(f"{report}\n")


if __name__ == "__main__":
    main()
