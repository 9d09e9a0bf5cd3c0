"""How many publishes per second a local registry takes, with many entries in it.

python -m bench.registry_publish [--entries 60000]
"""

from __future__ import annotations

import argparse
import shutil
import tempfile
import threading
import time
from pathlib import Path

from tests.soak.registry_kill import bundle, fill

from svc.stores.bundles.base import Draft
from svc.stores.bundles.folder import FolderStore
from svc.wire.bundle import Entry


def records(store: FolderStore, count: int) -> float:
    """Records alone: a commit and its projection each."""
    began = time.perf_counter()
    for number in range(count):
        key = f"new{number}"
        entry = Entry(model_id=key, version="1", target="any", size_bytes=1, path="x", sha256="0" * 64, created="x")
        store.records.insert(entry)
        store.projection.changed()
    return count / (time.perf_counter() - began)


def publishes(store: FolderStore, count: int, threads: int) -> float:
    """Whole publishes of small bundles: hash, check, fsync, move, fsync, commit."""
    made = [(f"whole{number}", bundle(f"whole{number}", "1")) for number in range(count)]
    began = time.perf_counter()

    def work(mine: list[tuple[str, bytes]]) -> None:
        for name, data in mine:
            spool = store.spool(len(data))
            spool.write(data)
            store.publish(spool, Draft(name, "1", "any"))

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
            store.projection.sync()
            print(f"{args.entries} entries: {records(store, args.count):.0f} records/s (>= 1000)")
            print(f"whole publishes of small bundles: {publishes(store, args.count // 2, 4):.0f}/s")
    finally:
        shutil.rmtree(root)


if __name__ == "__main__":
    main()
