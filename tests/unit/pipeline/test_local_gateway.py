"""svc run beside a gateway that `svc up` runs: it is taken when nothing names one, and its key goes nowhere else."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.fakes.openai_wire import OpenAIWire
from tests.fakes.provider import FakeProvider
from tests.unit.pipeline.conftest import run

from svc.cli import _local_gateway
from svc.client import config

ASK = "name: one\nstages:\n  - {id: ask, target: integration, provider: openai, model: gpt-4o-mini%s}\n"


@pytest.fixture
def up(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeProvider]:
    """The fake stands for the gateway of `svc up`: this process says where it is, as that one does."""
    monkeypatch.setattr(config, "_config_holder", config._ConfigHolder())
    home = Path("home")
    with FakeProvider(OpenAIWire(), key=_local_gateway.ensure_api_key(home)) as fake:
        _local_gateway.write_gateway_record(home, f"{fake.address}/v1")
        yield fake


def test_the_gateway_of_svc_up_is_found(up: FakeProvider, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(ASK % "", "--check") == 0
    assert f"{up.address}/v1" in capsys.readouterr().out
    assert run(ASK % "", "--input", "Hi") == 0
    assert up.wait(1).path == "/v1/chat/completions"


def test_its_key_goes_nowhere_else(up: FakeProvider, capsys: pytest.CaptureFixture[str]) -> None:
    with FakeProvider(OpenAIWire(), key="sk-other") as other:
        named = f", options: {{gateway_url: '{other.address}'}}"
        assert run(ASK % named, "--input", "Hi") == 1
        assert "authentication_error" in capsys.readouterr().err
        assert "authorization" not in other.wait(1).headers
    assert up.requests == []


def test_what_is_named_comes_first(up: FakeProvider, gateway: FakeProvider, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(ASK % "", "--input", "Hi") == 0
    assert gateway.wait(1).path == "/v1/chat/completions"
    assert up.requests == []
