"""Publishers are killed at random times: no acknowledged bundle is lost or damaged, and no temporary file remains.

    python -m tests.soak.registry_kill --kills 1000 --entries 60000

Each round forks publishers that write small bundles to one folder, kills all of them with SIGKILL after a random time,
and opens the folder again. Publishers write each acknowledgement to a pipe. Most are killed while they publish, some
while they open the folder. At the end, every acknowledged bundle is checked once more.
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

from svc.bundles.digest import sha256_file
from svc.stores.bundles.base import BundleDraft
from svc.stores.bundles.folder import FolderStore
from svc.wire.bundle import BundleEntry

READY = b"ready"


def bundle(model_id: str, version: str) -> bytes:
    buffer = io.BytesIO()
    about = {"model_id": model_id, "version": version, "execution_template": {"type": "X"}, "files": []}
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr("model_metadata.json", json.dumps(about))
        archive.writestr("w.bin", os.urandom(random.randrange(1, 20000)))
    return buffer.getvalue()


PUBLISHERS = 4
OPENING = 0.2
"""The share of rounds whose publishers may be killed before they have opened the folder."""
SECONDS = 0.4
"""The maximum lifetime of a publisher in seconds."""


def publish_forever(root: Path, pipe: int, prefix: str) -> None:
    store = FolderStore(root)
    os.write(pipe, READY + b"\n")
    number = 0
    while True:
        number += 1
        draft = BundleDraft(prefix, str(number), "any")
        upload = store.create_upload()
        upload.write(bundle(prefix, str(number)))
        entry, _ = store.publish(upload, draft)
        os.write(pipe, f"{entry.key} {entry.sha256}\n".encode())


def fork_publisher(root: Path, pipe: int, prefix: str) -> int:
    pid = os.fork()
    if pid == 0:
        try:
            publish_forever(root, pipe, prefix)
        finally:
            os._exit(1)
    return pid


class Pipe:
    """The output of the publishers of a round."""

    def __init__(self) -> None:
        self.reading, self.writing = os.pipe()
        self._data = b""

    def _take(self, seconds: float) -> bool:
        if select.select([self.reading], [], [], seconds)[0]:
            self._data += os.read(self.reading, 1 << 20)
            return True
        return False

    def read_for(self, seconds: float) -> None:
        """Drain a pipe. A full pipe would block the publishers."""
        deadline = time.monotonic() + seconds
        while (left := deadline - time.monotonic()) > 0:
            self._take(left)

    def wait_until_ready(self, count: int) -> None:
        deadline = time.monotonic() + 120
        while self._data.count(READY) < count:
            assert time.monotonic() < deadline, "a publisher did not open the folder"
            self._take(1)

    def close(self) -> dict[str, str]:
        """Return the acknowledged bundles: the hash of every key."""
        while self._take(0):
            pass
        os.close(self.reading)
        os.close(self.writing)
        lines = self._data.decode().splitlines()
        return dict(line.split() for line in lines if line != READY.decode())


def check(root: Path, prefix: str, acknowledged: dict[str, str]) -> None:
    """Open the folder and check every bundle of the models with this prefix."""
    with FolderStore(root) as store:
        entries = {entry.key: entry for entry in store.entries()}
        index = json.loads((root / "index.json").read_text())
        assert set(index) == set(entries), "index.json does not match the records"
        for key, sha256 in acknowledged.items():
            assert entries[key].sha256 == sha256, f"{key} is lost"
        fresh = [entry for entry in entries.values() if entry.model_id.startswith(prefix)]
        for entry in fresh:
            assert sha256_file(store.bundle_path(entry)) == entry.sha256, f"{entry.key} is torn"
        assert len(list(root.glob(f"{prefix}*/*/*/*.xyb"))) == len(fresh), "a file has no record"
        for name in ("uploads", "unpacking", "aside"):
            assert not list((root / ".registry" / name).iterdir()), f"litter in {name}"


def fill(root: Path, count: int) -> None:
    """Insert records of bundles without files."""
    with FolderStore(root) as store:
        store.records.insert_all(
            BundleEntry(
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


def soak(root: Path, kills: int, entries: int, seed: int) -> int:
    """Run one round and return the number of acknowledged publishes."""
    chance, total = random.Random(seed), {}
    fill(root, entries)
    for number in range(0, kills, PUBLISHERS):
        pipe, prefix = Pipe(), f"round{number}-"
        pids = [fork_publisher(root, pipe.writing, f"{prefix}{each}") for each in range(PUBLISHERS)]
        if chance.random() >= OPENING:
            pipe.wait_until_ready(PUBLISHERS)
        pipe.read_for(chance.uniform(0.0, SECONDS))
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
        for pid in pids:
            os.waitpid(pid, 0)
        acknowledged = pipe.close()
        check(root, prefix, acknowledged)
        total |= acknowledged
    check(root, "round", total)
    return len(total)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--kills", type=int, default=1000)
    parser.add_argument("--entries", type=int, default=60000)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    args = parser.parse_args()
    root = Path(tempfile.mkdtemp(prefix="svc-soak-"))
    began = time.monotonic()
    try:
        total = soak(root, args.kills, args.entries, args.seed)
    finally:
        shutil.rmtree(root)
    sys.stdout.write(
        f"{args.kills} kills at {args.entries} entries, seed {args.seed}: {total} publishes acknowledged, "
        f"0 lost, 0 torn, no litter, {time.monotonic() - began:.0f} s\n"
    )


if __name__ == "__main__":
    main()
