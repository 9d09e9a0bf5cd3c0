"""The plug-in of the guide: an installed package adds a dialect and a command, without a change to svc."""

from __future__ import annotations

import shutil
import tomllib
from collections.abc import Iterator
from pathlib import Path

import openai
import pytest

from tests.e2e.harness import GPT, HI, KEY, Gateway, provider_environment, run
from tests.fakes import openai_wire
from tests.fakes.provider import FakeProvider
from tests.fakes.script import answer, sse
from tests.fakes.vendor_wire import VendorWire

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "plug-in"
CONFIG = """
[[providers]]
name = "acme"
dialect = "acme"
base_url = "{address}"
api_key_env = "ACME_API_KEY"
models = [{{ id = "acme-large" }}]
"""

ENDPOINT = '''
"""`POST /v1/tones`: chat completions under another path, with a codec of its own."""

import json

from svc.dialects import openai
from svc.dialects.base import EncodedRequest, EncodedResponse
from svc.dialects.chat_codec import ChatEndpoint
from svc.dialects.endpoint import Codec
from svc.dialects.openai.routing_info import decode_routing_info


class ToneCodec(Codec):
    def encode_request(self, body, routing_info, profile, decode):
        return EncodedRequest(json.dumps({**json.loads(body.raw), "model": profile.model}).encode())

    def decode_response(self, raw):
        return EncodedResponse(raw, None, "stop", json.loads(raw)["model"])


class Tones(ChatEndpoint):
    def decode_routing_info(self, body):
        return decode_routing_info(body)


endpoint = Tones("/v1/tones", openai.dialect, ToneCodec("/chat/completions"))
'''


@pytest.fixture
def packages(tmp_path: Path) -> Path:
    """A folder with the installed example, as pip leaves it."""
    folder = tmp_path / "packages"
    shutil.copytree(EXAMPLE / "svc_acme", folder / "svc_acme", ignore=shutil.ignore_patterns("__pycache__"))
    info = folder / "svc_acme-1.0.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: svc-acme\nVersion: 1.0.0\n")
    groups = tomllib.loads((EXAMPLE / "pyproject.toml").read_text())["project"]["entry-points"]
    lines = [
        f"[{group}]\n" + "".join(f"{name} = {module}\n" for name, module in groups[group].items()) for group in groups
    ]
    lines.append("[svc.gateway.endpoints]\ntones = svc_acme.tones\n")
    (folder / "svc_acme" / "tones.py").write_text(ENDPOINT)
    (info / "entry_points.txt").write_text("\n".join(lines))
    return folder


@pytest.fixture
def acme() -> Iterator[FakeProvider]:
    with FakeProvider(VendorWire("/generate", key_header="x-acme-key"), key="sk-acme") as fake:
        yield fake


@pytest.fixture
def gateway(tmp_path: Path, packages: Path, acme: FakeProvider, provider_a: FakeProvider) -> Iterator[Gateway]:
    env = {"PYTHONPATH": str(packages), "ACME_API_KEY": acme.key, **provider_environment({"A": provider_a})}
    started = Gateway(tmp_path, env=env, config=CONFIG.format(address=acme.address))
    try:
        yield started.start()
    finally:
        started.stop()


@pytest.mark.parametrize("name", ["pyproject.toml", "svc_acme/dialect.py"])
def test_plug_in_guide_shows_the_files_of_the_example(name: str) -> None:
    guide = (ROOT / "docs" / "how-to" / "write-a-plug-in.md").read_text()
    assert (EXAMPLE / name).read_text().strip() in guide


def test_plug_in_dialect_serves_json_and_streams_of_both_apis(gateway: Gateway, acme: FakeProvider) -> None:
    with gateway.openai() as client:
        response = client.chat.completions.create(model="acme-large", messages=HI)
        chunks = list(client.chat.completions.create(model="acme-large", messages=HI, stream=True))
    with gateway.anthropic() as client:
        message = client.messages.create(model="acme-large", messages=HI, max_tokens=9)
    text = openai_wire.TEXT
    assert response.choices[0].message.content == text
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices) == text
    assert message.content[0].text == text
    assert acme.complaints == []


@pytest.mark.parametrize("model", ["acme-large", GPT])
def test_plug_in_endpoint_serves_its_own_dialect_and_others(gateway: Gateway, model: str) -> None:
    got = gateway.request("POST", "/v1/tones", {"model": model, "messages": HI}, key=KEY)
    assert got.json["choices"][0]["message"]["content"] == openai_wire.TEXT


def test_plug_in_dialect_decodes_the_error_of_its_provider(gateway: Gateway, acme: FakeProvider) -> None:
    acme.plays(answer(400, {"detail": "Acme knows no such tone."}))
    with gateway.openai() as client, pytest.raises(openai.BadRequestError, match=r"Acme knows no such tone\."):
        client.chat.completions.create(model="acme-large", messages=HI)


def test_plug_in_broken_stream_is_reported(gateway: Gateway, acme: FakeProvider) -> None:
    acme.plays(sse(openai_wire.stream("Hello world")[:2]))
    with gateway.openai() as client, pytest.raises(openai.APIError):
        list(client.chat.completions.create(model="acme-large", messages=HI, stream=True))


def test_plug_in_command_runs_and_has_help(tmp_path: Path, packages: Path) -> None:
    (tmp_path / "svc.toml").write_text(CONFIG.format(address="http://127.0.0.1:9"))
    env = {"PYTHONPATH": str(packages)}
    listed = run("acme-models", home=tmp_path, env=env)
    assert (listed.returncode, listed.stdout) == (0, "acme-large\n"), listed.stderr
    assert (
        "acme-models  Print the models of Acme that the configuration has."
        in run("--help", home=tmp_path, env=env).stdout
    )
