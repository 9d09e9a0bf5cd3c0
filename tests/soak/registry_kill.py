"""Publishers that are killed at any moment: nothing acknowledged may be lost, nothing torn, no litter left.

    python -m tests.soak.registry_kill --kills 1000 --entries 60000

Each round forks two publishers that write small bundles to one folder, kills both with SIGKILL after a random time, and
opens the folder again. What a publisher has acknowledged went through a pipe.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import random
import select
import shutil
import signal
import sys
import tempfile
import time
import zipfile
from pathlib import Path

from svc.bundles.digest import sha256_of
from svc.stores.bundles.base import Draft
from svc.stores.bundles.folder import FolderStore
from svc.wire.bundle import Entry


def bundle(model_id: str, version: str) -> bytes:
    buffer = io.BytesIO()
    about = {"model_id": model_id, "version": version, "execution_template": {"type": "X"}, "files": []}
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr("model_metadata.json", json.dumps(about))
        archive.writestr("w.bin", os.urandom(random.randrange(1, 20000)))
    return buffer.getvalue()


def publish_forever(root: Path, pipe: int, prefix: str) -> None:
    store = FolderStore(root)
    number = 0
    while True:
        number += 1
        draft = Draft(prefix, str(number), "any")
        spool = store.spool()
        spool.write(bundle(prefix, str(number)))
        entry, _ = store.publish(spool, draft)
        os.write(pipe, f"{entry.key} {entry.sha256}\n".encode())


def fork_publisher(root: Path, pipe: int, prefix: str) -> int:
    pid = os.fork()
    if pid == 0:
        try:
            publish_forever(root, pipe, prefix)
        finally:
            os._exit(1)
    return pid


def drain(pipe: int) -> dict[str, str]:
    data = b""
    while select.select([pipe], [], [], 0)[0] and (piece := os.read(pipe, 1 << 20)):
        data += piece
    return dict(line.split() for line in data.decode().splitlines())


def check(root: Path, acknowledged: dict[str, str]) -> int:
    """Opens the folder and looks at everything that the round could have touched; gives the number of records."""
    with FolderStore(root) as store:
        entries = {entry.key: entry for entry in store.entries()}
        index = json.loads((root / "index.json").read_text())
        assert set(index) == set(entries), "index.json does not follow the records"
        for key, sha256 in acknowledged.items():
            assert entries[key].sha256 == sha256, f"{key} is lost"
        fresh = [entry for entry in entries.values() if entry.model_id.startswith("round")]
        for entry in fresh:
            assert sha256_of(store.path(entry)) == entry.sha256, f"{entry.key} is torn"
        assert len(list(root.glob("round*/*/*/*.xyb"))) == len(fresh), "a file has no record"
        for name in ("uploads", "unpacking", "aside"):
            assert not list((root / ".registry" / name).iterdir()), f"litter in {name}"
        return len(entries)


def fill(root: Path, count: int) -> None:
    """Records of bundles whose files do not matter here."""
    with FolderStore(root) as store:
        store.records.insert_all(
            Entry(
                model_id=f"model{number % 2000}",
                version=f"1.0.{number // 2000}",
                target="any",
                size_bytes=number,
                path=f"model{number % 2000}/1.0.{number // 2000}/any/model{number % 2000}.xyb",
                sha256=f"{number:064x}",
                created="2026-01-01T00:00:00Z",
            )
            for number in range(count)
        )


def soak(root: Path, kills: int, entries: int, seed: int, longest: float = 0.25) -> int:
    """Gives the number of acknowledged publishes."""
    chance, total = random.Random(seed), 0
    fill(root, entries)
    for number in range(0, kills, 2):
        reading, writing = os.pipe()
        pids = [fork_publisher(root, writing, f"round{number + each}") for each in range(2)]
        time.sleep(chance.uniform(0.005, longest))
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
        for pid in pids:
            os.waitpid(pid, 0)
        acknowledged = drain(reading)
        os.close(reading)
        os.close(writing)
        total += len(acknowledged)
        check(root, acknowledged)
        with FolderStore(root) as store:  # so that later rounds do not look at it again
            for entry in store.entries():
                if entry.model_id.startswith("round"):
                    store.records.remove(entry.key)
        for folder in root.glob("round*"):
            shutil.rmtree(folder)
    return total


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--kills", type=int, default=1000)
    parser.add_argument("--entries", type=int, default=60000)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    args = parser.parse_args()
    root = Path(tempfile.mkdtemp(prefix="svc-soak-"))
    began = time.monotonic()
    longest = 0.25 + args.entries / 100_000
    try:
        total = soak(root, args.kills, args.entries, args.seed, longest)
    finally:
        shutil.rmtree(root)
    sys.stdout.write(
        f"{args.kills} kills at {args.entries} entries, seed {args.seed}: {total} publishes acknowledged, "
        f"0 lost, 0 torn, no litter, {time.monotonic() - began:.0f} s\n"
    )


if __name__ == "__main__":
    main()
