"""Child processes that parse untrusted input have no secrets in their environment."""

from __future__ import annotations

import io
import os
from pathlib import Path

import msgspec
import numpy as np
import pytest
import soundfile

from svc.bundles.metadata import BundleMetadata
from svc.client.bundles import Bundle
from svc.pipeline.definition import parse_pipeline
from svc.pipeline.stages import generation
from svc.speech.audio_files import open_audio
from tests.e2e.harness import KEY, Gateway
from tests.processes import SECRETS, child, environment_of


def check(pid: int) -> None:
    """Check that the process has PATH and none of its parent's secrets."""
    given = environment_of(pid)
    assert given["PATH"] == os.environ["PATH"]
    assert not set(SECRETS) & set(given)
    assert not [value for value in given.values() if "secret" in value or KEY in value]


@pytest.mark.usefixtures("speech_model")
def test_child_environment_speech_worker_and_local_model_have_no_secrets(model_home: Path, tmp_path: Path) -> None:
    environ = {**SECRETS, "SVC_REGISTRY_ROOT": str(model_home / "registry")}
    gateway = Gateway(tmp_path, env=environ, config="[local]\nenabled = true\n").start(60)
    try:
        for module in ("svc.gateway.local_model.process", "svc.speech.worker"):
            check(child(gateway.process.pid, module))
    finally:
        assert gateway.stop() == 0, gateway.log


async def test_child_environment_decoder_has_no_secrets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in SECRETS.items():
        monkeypatch.setenv(name, value)
    sound = io.BytesIO()
    noise = np.random.default_rng(1).integers(-9000, 9000, 16000 * 20).astype(np.int16)
    soundfile.write(sound, noise, 16000, format="FLAC")
    (tmp_path / "sound.flac").write_bytes(sound.getvalue())
    with (tmp_path / "sound.flac").open("rb") as file:
        async with open_audio(file, 60):  # its output is not read, so it waits
            check(child(os.getpid(), "svc.speech.decoder"))


def test_child_environment_pipeline_text_generation_has_no_secrets(
    model_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in SECRETS.items():
        monkeypatch.setenv(name, value)
    template = {"type": "Gguf", "model_file": model_path.name, "context_length": 512}
    about = msgspec.convert(
        {"model_id": "m", "version": "1", "execution_template": template, "files": []}, BundleMetadata
    )
    bundle = Bundle("m@1", model_path.parent, about)
    (stage,) = parse_pipeline("name: p\nstages: [{id: say, target: device, model: m@1}]\n", "p.yaml").stages
    runner = generation.make(stage, bundle)
    try:
        runner._start_process()
        check(child(os.getpid(), "svc.gateway.local_model.process"))
    finally:
        runner.close()
