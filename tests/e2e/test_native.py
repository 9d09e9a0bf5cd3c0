"""The same gateway from its plain source and with its hot path compiled: either is what ran here before."""

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
def plain(tmp_path: Path) -> Iterator[tuple[Gateway, FakeProvider]]:
    """A gateway whose modules are all Python files."""
    source = tmp_path / "source"
    shutil.copytree(ROOT / "src" / "svc", source / "svc", ignore=shutil.ignore_patterns("*.so", "__pycache__"))
    with FakeProvider(OpenAIWire(), key="sk-upstream-a-secret") as fake:
        gateway = Gateway(tmp_path, env={**provider_environment({"A": fake}), "PYTHONPATH": str(source)})
        gateway.command = [sys.executable, "-m", "svc"]
        try:
            yield gateway.start(), fake
        finally:
            gateway.stop()


def test_the_plain_source_answers(plain: tuple[Gateway, FakeProvider]) -> None:
    gateway, _ = plain
    with gateway.openai() as client:
        whole = client.chat.completions.create(model=GPT, messages=HI)
        pieces = list(client.chat.completions.create(model=GPT, messages=HI, stream=True))
    assert whole.choices[0].message.content
    assert pieces[-1].choices[0].finish_reason == "stop"


def test_the_plain_source_answers_each_of_many_in_advance(plain: tuple[Gateway, FakeProvider]) -> None:
    """One behind the other: answered one within the other, some hundreds would be more than Python takes."""
    gateway, fake = plain
    gate, refused = Gate(), b"POST /v1/messages HTTP/1.1\r\nhost:\r\n\r\n"
    fake.plays(hold(gate) + answer(200, openai_wire.chat("one")))
    with gateway.raw() as raw:
        raw.send(request_bytes("POST", "/v1/chat/completions", {"model": GPT, "messages": HI}, key=KEY))
        fake.wait()
        raw.send(refused * 600)
        gate.opened.set()
        assert raw.read().json["choices"][0]["message"]["content"] == "one"
        assert [raw.read().status for _ in range(600)] == [401] * 600


def test_compiled_modules_are_those_of_the_present_source() -> None:
    """Where they are not, `make native` or `make pure` helps: Python takes a compiled module before its source."""
    assert subprocess.run([sys.executable, str(COMPILE), "check"], timeout=60, check=False).returncode == 0
