"""Each message that tells a user to install an extra is produced, in a process where no extra is installed."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
HINTS = {
    "svc.cli._doctor_checks": "doctor",
    "svc.cli._model_files": "hub",
    "svc.cli.registry._signing": "signing",
    "svc.cli.run": "ray",
    "svc.cli.transcribe": "speech",
    "svc.cli.up": "local",
    "svc.client.bundles": "signing",
    "svc.gateway.local_model.supervisor": "local",
    "svc.pipeline.stages.generation": "local",
    "svc.pipeline.stages.onnx": "onnx",
    "svc.pipeline.stages.recognition": "speech",
    "svc.speech.audio_files": "speech",
    "svc.speech.model_catalog": "speech",
    "svc.speech.synthesis.encoders": "speech",
    "svc.speech.synthesis.voice": "voice",
    "svc.speech.upload_endpoint": "speech",
    "svc.speech.worker": "speech,whisper",
    "svc.stores.bundles.factory": "s3",
    "svc.stores.database.factory": "postgres",
    "svc.stores.redis.factory": "redis",
}
"""Each module with such a message, and the extra that its message names below."""


@pytest.fixture(scope="module")
def messages() -> dict[str, str]:
    command = [sys.executable, "-m", "tests.missing_extras"]
    completed = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False, cwd=ROOT)
    assert completed.returncode == 0, completed.stderr
    found: dict[str, str] = json.loads(completed.stdout)
    return found


def test_hints_every_module_with_a_message_is_run(messages: dict[str, str]) -> None:
    modules = {
        ".".join(path.relative_to(ROOT / "src").with_suffix("").parts)
        for path in (ROOT / "src" / "svc").rglob("*.py")
        if re.search(r"(?<!def )install_command\(", path.read_text(encoding="utf-8"))
    }
    assert modules == HINTS.keys() == messages.keys()


@pytest.mark.parametrize("module", [name for name, extra in HINTS.items() if extra != "doctor"])
def test_hint_without_the_extra_names_distribution_and_extra(messages: dict[str, str], module: str) -> None:
    assert f"pip install 'svc-gateway[{HINTS[module]}]'" in messages[module]


def test_hints_of_doctor_name_distribution_and_each_extra(messages: dict[str, str]) -> None:
    found = re.findall(r"pip install '([^']+)'", messages["svc.cli._doctor_checks"])
    assert found.count("svc-gateway[s3]") == 2
    assert {"svc-gateway[local]", "svc-gateway[speech]", "svc-gateway[postgres]"} <= set(found)
    assert all(re.fullmatch(r"svc-gateway\[[a-z0-9]+\]", name) for name in found)
