"""An unconfigured client uses the gateway of `svc up` with the same SVC_HOME, and sends that key only there."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.fakes.openai_wire import OpenAIWire
from tests.fakes.provider import FakeProvider

import svc
from svc.cli import _local_gateway
from svc.client import discovery
from svc.wire.production_gateway import PRODUCTION_GATEWAY

VARIABLES = ("SVC_GATEWAY_URL", "SVC_PLATFORM_URL", "SVC_API_KEY", "SVC_REGISTRY_URL", "SVC_REGISTRY_KEY")


@pytest.fixture(autouse=True)
def home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Path]:
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("SVC_HOME", str(tmp_path))
    svc.init()
    yield tmp_path
    svc.init()


@pytest.fixture
def up(home: Path) -> Iterator[FakeProvider]:
    """A fake in place of the gateway of `svc up`. This process writes the record, as `svc up` does."""
    with FakeProvider(OpenAIWire(), key=_local_gateway.ensure_api_key(home)) as fake:
        _local_gateway.write_gateway_record(home, f"{fake.address}/v1")
        yield fake


def test_client_without_configuration_uses_url_and_key_of_svc_up(up: FakeProvider, home: Path) -> None:
    with svc.Client() as client:
        assert client.gateway_url == f"{up.address}/v1"
        client.chat("Hi", model="gpt-4o-mini")
    assert up.wait(1).headers["authorization"] == f"Bearer {discovery.read_local_api_key(home)}"


async def test_async_client_without_configuration_uses_svc_up(up: FakeProvider) -> None:
    async with svc.AsyncClient() as client:
        await client.chat("Hi", model="gpt-4o-mini")
    assert up.wait(1).path == "/v1/chat/completions"


def test_client_with_configured_gateway_does_not_send_key_of_svc_up(
    up: FakeProvider, monkeypatch: pytest.MonkeyPatch
) -> None:
    with FakeProvider(OpenAIWire(), key="sk-other") as other:
        monkeypatch.setenv("SVC_GATEWAY_URL", f"{other.address}/v1")
        with svc.Client(retries=0) as client, pytest.raises(svc.SvcError, match="key"):
            client.chat("Hi", model="gpt-4o-mini")
        assert "authorization" not in other.wait(1).headers
    assert up.requests == []


def test_client_with_url_of_svc_up_uses_its_key(up: FakeProvider, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SVC_GATEWAY_URL", f"{up.address}/v1")
    with svc.Client() as client:
        client.chat("Hi", model="gpt-4o-mini")
    assert "authorization" in up.wait(1).headers


def test_client_with_own_key_sends_it_to_svc_up(up: FakeProvider, home: Path) -> None:
    up_key = discovery.read_local_api_key(home)
    with svc.Client(api_key="sk-mine", retries=0) as client, pytest.raises(svc.SvcError):
        client.chat("Hi", model="gpt-4o-mini")
    sent = up.wait(1).headers["authorization"]
    assert sent == "Bearer sk-mine"
    assert up_key not in sent


@pytest.mark.parametrize("record", ["", "[]", '{"url": "http://127.0.0.1:1/v1"}', '{"url": "x", "pid": 4194304999}'])
def test_client_with_record_of_dead_process_uses_default_url(home: Path, record: str) -> None:
    (home / "gateway.json").write_text(record)
    assert svc.Client().gateway_url == PRODUCTION_GATEWAY


def test_client_with_unreadable_record_uses_default_url(home: Path) -> None:
    (home / "gateway.json").mkdir()
    assert svc.Client().gateway_url == PRODUCTION_GATEWAY


def test_discovery_reads_record_in_state_folder(home: Path) -> None:
    _local_gateway.write_gateway_record(home, "http://127.0.0.1:3000/v1")
    assert json.loads((home / "gateway.json").read_text())["url"] == discovery.find_gateway(home)
    assert discovery.state_folder({"SVC_HOME": str(home)}) == home
    assert discovery.state_folder({}) == Path("~/.svc").expanduser()
