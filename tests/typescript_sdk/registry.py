"""A real registry with one signed bundle, for the tests of the TypeScript SDK."""

from __future__ import annotations

import contextlib
import hashlib
import json
import random
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from tests.e2e.harness import ADDRESS, SVC, environment, run


class SignedRegistry(NamedTuple):
    """A registry. `weights_sha256` is the hash of the largest file in toy@1.0.0."""

    url: str
    public_key: str
    root: Path
    weights_sha256: str


@contextlib.contextmanager
def serve_registry(home: Path) -> Iterator[SignedRegistry]:
    """Run `svc registry serve` with the bundles toy@1.0.0 and toy@1.1.0, of 3 MB each."""
    root = home / "shelf"
    state = Path(environment(home)["SVC_HOME"])
    state.mkdir(exist_ok=True)
    (state / "svc.toml").write_text("[gateway]\ncors_origins = ['*']\n")
    for version in ("1.0.0", "1.1.0"):
        content = home / version
        content.mkdir()
        metadata = {
            "model_id": "toy",
            "version": version,
            "execution_template": {"type": "Toy"},
            "files": ["weights.bin"],
        }
        (content / "model_metadata.json").write_text(json.dumps({**metadata, "description": "toy " * 200}))
        (content / "weights.bin").write_bytes(random.Random(version).randbytes(3_000_000))
        (content / "words.txt").write_text("word\n" * 1000)
        file = home / f"toy-{version}.xyb"
        for command in (("bundle", "pack", str(content), "-o", str(file)), ("registry", "sign-key")):
            completed = run(*command, home=home)
            assert completed.returncode == 0, completed.stderr
        public_key = json.loads(run("registry", "sign-key", "--json", home=home).stdout)
        added = run("registry", "add", str(file), "--sign", "--root", str(root), home=home)
        assert added.returncode == 0, added.stderr
    log = home / "registry.log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            [SVC, "registry", "serve", "--port", "0", "--root", str(root)],
            env=environment(home),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
        )
    try:
        deadline = time.monotonic() + 30
        while not (match := ADDRESS.search(log.read_text())):
            assert process.poll() is None, log.read_text()
            assert time.monotonic() < deadline, log.read_text()
            time.sleep(0.05)
        key = public_key if isinstance(public_key, str) else next(iter(public_key.values()))
        weights = hashlib.sha256((home / "1.0.0" / "weights.bin").read_bytes()).hexdigest()
        yield SignedRegistry(match.group(0), key, root, weights)
    finally:
        process.terminate()
        process.wait(10)
