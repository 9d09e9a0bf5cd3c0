"""The gateway from pure Python source. The other tests use the compiled modules, if there are any."""

import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.harness import GPT, HI, KEY, Gateway, provider_environment
from tests.fakes import openai_wire
from tests.fakes.http_client import request_bytes
from tests.fakes.openai_wire import OpenAIWire
from tests.fakes.provider import FakeProvider
from tests.fakes.script import Gate, answer, hold

ROOT = Path(__file__).parents[2]
COMPILE = ROOT / "native" / "compile.py"


@pytest.fixture
def pure_python(tmp_path: Path) -> Iterator[tuple[Gateway, FakeProvider]]:
    """A gateway whose modules are all pure Python files."""
    source = tmp_path / "source"
    shutil.copytree(ROOT / "src" / "svc", source / "svc", ignore=shutil.ignore_patterns("*.so", "__pycache__"))
    with FakeProvider(OpenAIWire(), key="sk-upstream-a-secret") as fake:
        gateway = Gateway(tmp_path, env={**provider_environment({"A": fake}), "PYTHONPATH": str(source)})
        gateway.command = [sys.executable, "-m", "svc"]
        try:
            yield gateway.start(), fake
        finally:
            gateway.stop()


def test_pure_python_gateway_answers_json_and_stream(pure_python: tuple[Gateway, FakeProvider]) -> None:
    gateway, _ = pure_python
    with gateway.openai() as client:
        response = client.chat.completions.create(model=GPT, messages=HI)
        chunks = list(client.chat.completions.create(model=GPT, messages=HI, stream=True))
    assert response.choices[0].message.content
    assert chunks[-1].choices[0].finish_reason == "stop"


@pytest.mark.slow
def test_pure_python_gateway_answers_600_pipelined_requests(pure_python: tuple[Gateway, FakeProvider]) -> None:
    """Answering recursively would exceed Python's recursion limit after some hundred requests."""
    gateway, fake = pure_python
    gate, rejected_request = Gate(), b"POST /v1/messages HTTP/1.1\r\nhost:\r\n\r\n"
    fake.plays(hold(gate) + answer(200, openai_wire.chat("one")))
    with gateway.raw() as raw:
        raw.send(request_bytes("POST", "/v1/chat/completions", {"model": GPT, "messages": HI}, key=KEY))
        fake.wait()
        raw.send(rejected_request * 600)
        gate.opened.set()
        assert raw.read().json["choices"][0]["message"]["content"] == "one"
        assert [raw.read().status for _ in range(600)] == [401] * 600


def test_compiled_modules_match_source() -> None:
    """If this fails, run `make native` or `make pure`: Python prefers a compiled module to its source."""
    assert subprocess.run([sys.executable, str(COMPILE), "check"], timeout=60, check=False).returncode == 0
