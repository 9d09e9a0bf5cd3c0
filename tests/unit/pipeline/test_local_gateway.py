"""`svc run` uses the gateway of `svc up` by default, and sends its key to no other server."""

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
def local_gateway(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeProvider]:
    """A fake gateway whose address this process records as `svc up` does."""
    monkeypatch.setattr(config, "_config_holder", config._ConfigHolder())
    home = Path("home")
    with FakeProvider(OpenAIWire(), key=_local_gateway.ensure_api_key(home)) as fake:
        _local_gateway.write_gateway_record(home, f"{fake.address}/v1")
        yield fake


def test_run_gateway_of_svc_up_is_used(local_gateway: FakeProvider, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(ASK % "", "--check") == 0
    assert f"{local_gateway.address}/v1" in capsys.readouterr().out
    assert run(ASK % "", "--input", "Hi") == 0
    assert local_gateway.wait(1).path == "/v1/chat/completions"


def test_run_local_gateway_key_is_not_sent_elsewhere(
    local_gateway: FakeProvider, capsys: pytest.CaptureFixture[str]
) -> None:
    with FakeProvider(OpenAIWire(), key="sk-other") as other:
        options = f", options: {{gateway_url: '{other.address}'}}"
        assert run(ASK % options, "--input", "Hi") == 1
        assert "authentication_error" in capsys.readouterr().err
        assert "authorization" not in other.wait(1).headers
    assert local_gateway.requests == []


def test_run_configured_gateway_precedes_local_gateway(
    local_gateway: FakeProvider, gateway: FakeProvider, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(ASK % "", "--input", "Hi") == 0
    assert gateway.wait(1).path == "/v1/chat/completions"
    assert local_gateway.requests == []
