"""Real models, published to a real registry, behind a real gateway with the embedded model."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from tests import fork_server
from tests.e2e.harness import KEY, SVC, Gateway, environment
from tests.speech import material

ADDRESS = re.compile(r"http://127\.0\.0\.1:\d+")


class Machine(msgspec.Struct):
    """A new machine: its SVC_HOME holds only the bundles that it fetches."""

    home: Path
    gateway: Gateway
    registry: str

    def environ(self, name: str) -> dict[str, str]:
        """Return the environment for a new, empty SVC_HOME of that name."""
        folder = self.home / name
        folder.mkdir(parents=True, exist_ok=True)
        named = {"SVC_GATEWAY_URL": f"{self.gateway.url}/v1", "SVC_API_KEY": KEY, "SVC_REGISTRY_URL": self.registry}
        return environment(folder, named)

    def run(self, name: str, *arguments: str, status: int = 0) -> str:
        """Run `svc …` there and return its standard output."""
        done = fork_server.run_command(arguments, self.environ(name), self.home, timeout=110)
        assert done.returncode == status, done.stderr
        return done.stdout


@pytest.fixture(scope="session")
def clips() -> dict[str, Path]:
    return material.make_clips()


@pytest.fixture(scope="session")
def registry(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A registry over HTTP with the speech model and the voice."""
    home = tmp_path_factory.mktemp("publisher")
    environ = environment(home)
    subprocess.run([SVC, "models", "add", "espeak-en-us"], env=environ, check=True, timeout=60, capture_output=True)
    folders = (material.make_model(), next((home / "svc" / "registry" / "espeak-en-us").glob("*/*/content")))
    root = home / "published"
    for folder in folders:
        bundle = home / f"{folder.parts[-4]}.xyb"
        packed = [SVC, "bundle", "pack", str(folder), "-o", str(bundle)]
        subprocess.run(packed, env=environ, check=True, timeout=60, capture_output=True)
        added = [SVC, "registry", "add", str(bundle), "--root", str(root)]
        subprocess.run(added, env=environ, check=True, timeout=60, capture_output=True)
    shutil.rmtree(home / "svc")
    log = home / "registry.log"
    with log.open("wb") as sink:
        process = subprocess.Popen(
            [SVC, "registry", "serve", "--root", str(root), "--port", "0"], env=environ, stdout=sink, stderr=sink
        )
    try:
        deadline = time.monotonic() + 20
        while not (match := ADDRESS.search(log.read_text())):
            assert process.poll() is None, log.read_text()
            assert time.monotonic() < deadline, log.read_text()
            time.sleep(0.02)
        yield match[0]
    finally:
        process.terminate()
        process.wait(10)


def _replace(source: str, target: str) -> str:
    """Copy a file. A link at `target` is removed: other tests read the same file, which a write would truncate."""
    Path(target).unlink(missing_ok=True)
    return shutil.copy(source, target)


@pytest.fixture(scope="session")
def machine(
    tmp_path_factory: pytest.TempPathFactory, model_home: Path, embedding_home: Path, registry: str
) -> Iterator[Machine]:
    home = tmp_path_factory.mktemp("machine")
    served = home / "served"
    served.mkdir()
    root = {"SVC_REGISTRY_ROOT": str(served / "registry")}
    # Link bundles only: a write through a linked records file would damage the model's own registry.
    own = shutil.ignore_patterns(".registry", ".staging", "index.json")
    for models in (model_home, embedding_home):
        shutil.copytree(models / "registry", served / "registry", copy_function=os.link, ignore=own, dirs_exist_ok=True)
    shutil.copytree(material.HOME / "registry", served / "registry", copy_function=_replace, dirs_exist_ok=True)
    gateway = Gateway(served, env=root, config="[local]\nenabled = true\n", is_forked=True).start(60)
    yield Machine(home, gateway, registry)
    assert gateway.stop(20) == 0, gateway.log
    assert sys.executable
