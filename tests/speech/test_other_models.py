"""Installed models that are not speech models: uploads and live sessions name the right endpoint."""

import io
import wave
from collections.abc import Iterator

import httpx2
import pytest

from tests.speech.gateway import KEY, Gateway, session
from tests.speech.gateway import run_gateway as run

CONFIG = """
[[providers]]
name = "chats"
dialect = "openai"
base_url = "http://127.0.0.1:9/v1"
models = [{ id = "chatty" }]
"""


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    """`chatty` is installed and served for chat. `weights` is only installed."""
    home = tmp_path_factory.mktemp("home")
    for name in ("chatty", "weights"):
        (home / "models" / name).mkdir(parents=True)
        (home / "models" / name / "model.gguf").write_bytes(b"GGUF")
    with run(home, CONFIG) as running:
        yield running


def silence() -> bytes:
    out = io.BytesIO()
    with wave.open(out, "wb") as file:
        file.setparams((1, 2, 16000, 0, "NONE", ""))
        file.writeframes(bytes(32000))
    return out.getvalue()


CASES = pytest.mark.parametrize(
    ("model", "status", "code", "expected_text"),
    [
        ("chatty", 404, "model_not_found", "'chatty' is not a speech model. Use POST /v1/chat/completions"),
        ("weights", 400, "invalid_request", "'weights' is installed, but is not a speech model"),
    ],
)


@CASES
async def test_upload_model_of_another_kind_is_rejected(
    gateway: Gateway, model: str, status: int, code: str, expected_text: str
) -> None:
    async with httpx2.AsyncClient(headers={"Authorization": f"Bearer {KEY}"}, timeout=60) as client:
        response = await client.post(
            gateway.address + "/v1/audio/transcriptions", data={"model": model}, files={"file": ("a.wav", silence())}
        )
    error = response.json()["error"]
    assert (response.status_code, error["code"], error["param"]) == (status, code, "model")
    assert expected_text in error["message"]


@CASES
async def test_session_model_of_another_kind_is_rejected(
    gateway: Gateway, model: str, status: int, code: str, expected_text: str
) -> None:
    async with session(gateway) as client:
        await client.send_message(type="config", model=model)
        error = await client.wait_for("error")
    assert error["code"] == code
    assert expected_text in error["message"]
