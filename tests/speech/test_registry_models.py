"""Models that a session names by reference and the gateway downloads from a registry."""

import asyncio
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx2
import pytest

from tests.speech import material
from tests.speech.gateway import KEY, Gateway, session
from tests.speech.gateway import run_gateway as run

pytestmark = pytest.mark.slow

SVC = [sys.executable, "-m", "svc"]


class Registry:
    """A registry in a process of its own."""

    def __init__(self, root: Path) -> None:
        command = [*SVC, "registry", "serve", "--root", str(root), "--port", "0"]
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert self._process.stdout is not None
        self.url = self._process.stdout.readline().split()[1]

    def stop(self) -> None:
        self._process.kill()
        self._process.wait(10)


def publish(model: Path, root: Path, work: Path, version: str) -> None:
    """Publish a copy of the default model under another name."""
    folder = work / version
    shutil.copytree(model, folder)
    (folder / "stt.json").write_text((folder / "stt.json").read_text().replace("moonshine-tiny-en", "from-afar"))
    about = json.loads((folder / "model_metadata.json").read_text())
    (folder / "model_metadata.json").write_text(json.dumps({**about, "model_id": "from-afar", "version": version}))
    bundle = work / f"{version}.xyb"
    subprocess.run([*SVC, "bundle", "pack", str(folder), "-o", str(bundle)], check=True, capture_output=True)
    environ = {**os.environ, "SVC_REGISTRY_ROOT": str(root)}
    subprocess.run([*SVC, "registry", "add", str(bundle)], check=True, capture_output=True, env=environ)


@pytest.fixture
def registry(tmp_path: Path, model: Path) -> Iterator[Registry]:
    publish(model, tmp_path / "there", tmp_path, "1.0")
    running = Registry(tmp_path / "there")
    yield running
    running.stop()


async def transcribe_hello(gateway: Gateway, clips: dict[str, Path], model: str) -> None:
    async with session(gateway) as client:
        await client.send_message(type="config", model=model)
        assert (await client.wait_for("ready"))["model"] == "from-afar"
        await client.send_audio(material.read_pcm(clips["en-hello-world"]))
        await client.send_message(type="flush")
        assert material.words((await client.wait_for("final"))["text"]) == ["hello", "world"]


async def test_session_registry_model_is_downloaded_on_first_use(
    registry: Registry, clips: dict[str, Path], model: Path, tmp_path: Path
):
    local_root, home = tmp_path / "here", tmp_path / "home"
    home.mkdir()
    config = '[speech]\ndefault_model = "from-afar@1.0"\n'
    with run(home, config, SVC_REGISTRY_ROOT=str(local_root), SVC_REGISTRY_URL=registry.url) as gateway:
        await asyncio.gather(*(transcribe_hello(gateway, clips, "from-afar@1.0") for _ in range(3)))
        async with session(gateway) as client:
            await client.send_message(type="config", model="not-there@1.0")
            assert (await client.wait_for("error"))["code"] == "model_not_found"
        registry.stop()
        for reference in ("from-afar@1.0", "from-afar@1", "from-afar@latest", "from-afar"):
            await transcribe_hello(gateway, clips, reference)  # the local copy is used
        async with session(gateway) as client:
            await client.send_message(type="config", model="from-afar@2.0")
            assert (await client.wait_for("error"))["code"] == "model_not_found"
    assert sorted(path.name for path in local_root.iterdir() if not path.name.startswith(".")) == [
        "from-afar",
        "index.json",
    ]


async def test_models_list_includes_packed_bundle(model: Path, tmp_path: Path):
    local_root, home = tmp_path / "here", tmp_path / "home"
    home.mkdir()
    publish(model, local_root, tmp_path, "1.0")
    with run(home, '[speech]\ndefault_model = "none"\n', SVC_REGISTRY_ROOT=str(local_root)) as gateway:
        async with httpx2.AsyncClient(headers={"Authorization": f"Bearer {KEY}"}) as client:
            listed = (await client.get(gateway.address + "/v1/models")).json()["data"]
            one = (await client.get(gateway.address + "/v1/models/from-afar")).json()
    assert one in listed
    assert one["owned_by"] == "local"
    assert not (local_root / "from-afar" / "1.0" / "any" / "content").exists()


async def test_session_partial_version_downloads_newest_match(
    registry: Registry, clips: dict[str, Path], model: Path, tmp_path: Path
):
    home = tmp_path / "home"
    home.mkdir()
    local_root = tmp_path / "here"
    config = '[speech]\ndefault_model = "from-afar@1.0"\n'
    with run(home, config, SVC_REGISTRY_ROOT=str(local_root), SVC_REGISTRY_URL=registry.url) as gateway:
        await transcribe_hello(gateway, clips, "from-afar@1")
        publish(model, tmp_path / "there", tmp_path, "1.1")
        await transcribe_hello(gateway, clips, "from-afar")
        assert not (local_root / "from-afar" / "1.1").exists()
        await transcribe_hello(gateway, clips, "from-afar@1")
        assert (local_root / "from-afar" / "1.1").exists()
