"""Measures publishes per second of a local registry with many entries.

python -m bench.registry_publish [--entries 60000]
"""

from __future__ import annotations

import argparse
import contextlib
import shutil
import sqlite3
import tempfile
import threading
import time
from pathlib import Path

from tests.soak.registry_kill import bundle, fill

from svc.stores.bundles.base import BundleDraft
from svc.stores.bundles.folder import FolderStore
from svc.wire.bundle import BundleEntry


def records(store: FolderStore, count: int) -> tuple[float, float]:
    """Insert records, with a commit and a projection each. Return records per second and CPU seconds per record."""
    began, used = time.perf_counter(), time.process_time()
    for number in range(count):
        key = f"new{number}"
        entry = BundleEntry(
            model_id=key, version="1", target="any", size_bytes=1, path="x", sha256="0" * 64, created="x"
        )
        store.records.insert(entry)
        store.index_file.mark_changed()
    return count / (time.perf_counter() - began), (time.process_time() - used) / count


def bare(root: Path, count: int) -> float:
    """Insert rows into SQLite, with a durable commit each, as a baseline of the disk under its current load."""
    with contextlib.closing(sqlite3.connect(root / "bare.sqlite", isolation_level=None)) as db:
        for line in ("PRAGMA journal_mode = WAL", "PRAGMA synchronous = FULL", "CREATE TABLE t (name PRIMARY KEY, at)"):
            db.execute(line)
        began = time.perf_counter()
        for number in range(count):
            db.execute("INSERT INTO t VALUES (?, ?)", (f"new{number}", "0" * 64))
        return count / (time.perf_counter() - began)


def publishes(store: FolderStore, count: int, threads: int) -> float:
    """Publish small bundles completely: hash, check, fsync, move, fsync, commit."""
    made = [(f"whole{number}", bundle(f"whole{number}", "1")) for number in range(count)]
    began = time.perf_counter()

    def work(mine: list[tuple[str, bytes]]) -> None:
        for name, data in mine:
            spool = store.create_upload(len(data))
            spool.write(data)
            store.publish(spool, BundleDraft(name, "1", "any"))

    workers = [threading.Thread(target=work, args=(made[start::threads],)) for start in range(threads)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    return count / (time.perf_counter() - began)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--entries", type=int, default=60000)
    parser.add_argument("--count", type=int, default=5000)
    args = parser.parse_args()
    root = Path(tempfile.mkdtemp(prefix="svc-publish-"))
    try:
        fill(root, args.entries)
        with FolderStore(root) as store:
            store.index_file.sync()
            ours, used = records(store, args.count)
            print(f"{args.entries} entries: {ours:.0f} records/s (>= 1000), {used * 1e6:.0f} us of CPU each")
            print(f"SQLite alone, one commit per row, on this disk now: {bare(root, args.count // 2):.0f}/s")
            print(f"complete publishes of small bundles: {publishes(store, args.count // 2, 4):.0f}/s")
    finally:
        shutil.rmtree(root)


if __name__ == "__main__":
    main()
