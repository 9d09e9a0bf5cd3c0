"""`GET /v1/audio/voices`: voices and speech models, those of an uploaded bundle too."""

from __future__ import annotations

import io
import json
import time
import zipfile
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.accounts.test_admin import Admin
from tests.e2e.accounts.test_keys import create
from tests.e2e.harness import Gateway

VOICES = "/v1/audio/voices"
CONFIG = """
[[providers]]
name = "speaker"
base_url = "http://127.0.0.1:9/v1"
models = [{ id = "remote-voice", kind = "speech" }]
"""


def speech_bundle(model_id: str, file_name: str, described: dict[str, Any], metadata: dict[str, Any]) -> bytes:
    about = {
        "model_id": model_id,
        "version": "1.0",
        "execution_template": {"type": "Speech"},
        "files": [file_name],
        "metadata": metadata,
    }
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("model_metadata.json", json.dumps(about))
        archive.writestr(file_name, json.dumps(described))
    return file.getvalue()


@pytest.mark.skipif(
    any(find_spec(name) is None for name in ("espeakng_loader", "sherpa_onnx", "soundfile", "soxr")),
    reason="needs the extras voice and speech",
)
def test_voices_of_uploaded_bundles_appear_with_their_languages(tmp_path: Path) -> None:
    gateway = Gateway(tmp_path, env={}, config=CONFIG, is_forked=True).start()
    try:
        admin = Admin(gateway)
        voice = speech_bundle("toy-voice", "tts.json", {"engine": "espeak", "voice": "de"}, {})
        named = speech_bundle("named-voice", "tts.json", {"engine": "espeak"}, {"languages": ["fr", "nl"]})
        model = speech_bundle(
            "toy-model",
            "stt.json",
            {"engine": "moonshine", "family": "moonshine", "files": {}, "languages": ["en", "es"]},
            {},
        )
        for name, bundle in (("toy-voice", voice), ("named-voice", named), ("toy-model", model)):
            path = f"/v1/admin/bundles/{name}/1.0/any"
            assert gateway.request("PUT", path, bundle, key=admin.key).status == 201
        key = create(gateway, "--name", "speaker", "--scope", "speech")["key"]
        deadline = time.monotonic() + 10
        while True:
            got = gateway.request("GET", VOICES, key=key)
            admin.check("GET", VOICES, got)
            found = {each["model"]: each for each in got.json["data"]}
            if len(found) == 3 and got.json["transcription_models"]:
                break
            assert time.monotonic() < deadline, got.json
            time.sleep(0.1)
        assert {name: each["languages"] for name, each in found.items()} == {
            "toy-voice": ["de"],
            "named-voice": ["fr", "nl"],
            "remote-voice": [],
        }
        assert (found["toy-voice"]["quality"], found["toy-voice"]["provider"]) == ("fast", "local")
        assert (found["remote-voice"]["quality"], found["remote-voice"]["provider"]) == (None, "speaker")
        assert got.json["transcription_models"] == [
            {"model": "toy-model", "languages": ["en", "es"], "is_default": False}
        ]
        limited = create(gateway, "--name", "limited", "--scope", "speech", "--models", "toy-voice")["key"]
        mine = gateway.request("GET", VOICES, key=limited).json
        assert ([each["model"] for each in mine["data"]], mine["transcription_models"]) == (["toy-voice"], [])
        chatter = create(gateway, "--name", "chatter", "--scope", "chat")["key"]
        assert gateway.request("GET", VOICES, key=chatter).status == 403
        assert gateway.request("GET", VOICES, key=None).status == 401
    finally:
        gateway.stop()
