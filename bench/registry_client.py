"""Measures how fast a client downloads, hashes and writes a bundle, compared with the machine's raw sha256 speed.

    python bench/registry_client.py [--size MiB] [--rounds N]

Every round first measures raw sha256 over the same number of bytes. Memory is the client process's peak.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

PULL = """
import os, resource, sys, time
from pathlib import Path
from svc.bundles.registry_client import HttpBundleSource, RegistryClient
from svc.stores.bundles.fetch import fetch_into
from svc.stores.bundles.folder import FolderStore
url, root, unpack = sys.argv[1], Path(sys.argv[2]), sys.argv[3] == "unpack"
client = RegistryClient(url)
entry = client.fetch_index("big")[0]
with FolderStore(root) as store:
    began, used = time.perf_counter(), time.process_time()
    on_fetched = (lambda stored: store.unpack(stored, trusted=True)) if unpack else (lambda stored: None)
    fetch_into(store, entry, HttpBundleSource(client), on_fetched=on_fetched)
    took, used = time.perf_counter() - began, time.process_time() - used
    print(took, used, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)
"""


def raw(size: int) -> tuple[float, float]:
    """Return seconds and CPU seconds of sha256 alone."""
    block = os.urandom(1 << 20)
    digest, began, used = hashlib.sha256(), time.perf_counter(), time.process_time()
    for _ in range(size >> 20):
        digest.update(block)
    return time.perf_counter() - began, time.process_time() - used


def pull(url: str, folder: Path, how: str) -> tuple[float, float, float]:
    """Return seconds, CPU seconds, and the peak memory in MiB."""
    root = folder / "client"
    done = subprocess.run([sys.executable, "-c", PULL, url, str(root), how], capture_output=True, text=True, check=True)
    shutil.rmtree(root)
    seconds, used, memory = done.stdout.split()
    return float(seconds), float(used), float(memory)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--size", type=int, default=1024)
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()
    size, folder = args.size << 20, Path(tempfile.mkdtemp(prefix="svc-bench-"))
    source, root = folder / "big", folder / "root"
    source.mkdir()
    about = '{"model_id": "big", "version": "1", "execution_template": {"type": "X"}, "files": ["w.bin"]}'
    (source / "model_metadata.json").write_text(about)
    with (source / "w.bin").open("wb") as file:
        for _ in range(args.size):
            file.write(os.urandom(1 << 20))
    environ = {**os.environ, "SVC_HOME": str(folder)}
    svc = [sys.executable, "-m", "svc"]
    subprocess.run([*svc, "bundle", "pack", str(source), "-o", str(folder / "b.xyb")], check=True, env=environ)
    subprocess.run([*svc, "registry", "add", str(folder / "b.xyb"), "--root", str(root)], check=True, env=environ)
    (folder / "b.xyb").unlink()
    server = subprocess.Popen(
        [*svc, "registry", "serve", "--port", "0", "--root", str(root)], env=environ, stdout=subprocess.PIPE, text=True
    )
    try:
        assert server.stdout is not None
        url = server.stdout.readline().split()[-1]
        rows = [(raw(size), pull(url, folder, "keep"), pull(url, folder, "unpack")) for _ in range(args.rounds)]
        speeds = [alone[0] / plain[0] for alone, plain, _ in rows]
        costs = [alone[1] / plain[1] for alone, plain, _ in rows]
        extraction = [unpacked[0] / plain[0] for _, plain, unpacked in rows]
        memory = max(plain[2] for _, plain, _ in rows)
        print(f"raw sha256 {size / 1e6 / statistics.median(alone[0] for alone, _, _ in rows):.0f} MB/s")
        print(
            f"download, hash, write: {statistics.median(speeds):.2f} of it (>= 0.55; {min(speeds):.2f}-{max(speeds):.2f})"
        )
        print(f"of its CPU: {statistics.median(costs):.2f} ({min(costs):.2f}-{max(costs):.2f})")
        print(f"with extraction: {statistics.median(extraction):.2f} times as long (<= 2)")
        print(f"memory: {memory:.0f} MiB (<= 64)")
    finally:
        server.terminate()
        server.wait(20)
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()
