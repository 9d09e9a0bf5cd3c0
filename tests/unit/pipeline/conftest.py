"""Fixtures of pipeline tests: a clean environment, a fake gateway and unpacked bundles."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.fakes.openai_wire import OpenAIWire
from tests.fakes.provider import FakeProvider

from svc.cli import main

Run = Callable[..., int]


@pytest.fixture
def provider() -> Iterator[FakeProvider]:
    with FakeProvider(OpenAIWire(), key="sk-a") as fake:
        yield fake
        assert fake.complaints == []


@pytest.fixture(autouse=True)
def clean(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for letter, vendor in zip("ABC", ("OPENAI", "ANTHROPIC", "GROQ"), strict=True):
        for name in (f"PROVIDER_{letter}_API_KEY", f"PROVIDER_{letter}_BASE_URL", f"{vendor}_API_KEY"):
            monkeypatch.delenv(name, raising=False)
    for name in ("SVC_GATEWAY_URL", "SVC_PLATFORM_URL", "SVC_API_KEY", "SVC_REGISTRY_URL", "SVC_REGISTRY_ROOT"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("SVC_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def gateway(provider: FakeProvider, monkeypatch: pytest.MonkeyPatch) -> FakeProvider:
    """Use the fake provider as the gateway, because both have the same API."""
    monkeypatch.setenv("SVC_GATEWAY_URL", f"{provider.address}/v1")
    monkeypatch.setenv("SVC_API_KEY", "sk-a")
    return provider


def run(text: str, *arguments: str) -> int:
    Path("p.yaml").write_text(text)
    return main(["run", "p.yaml", *arguments])


def result(capsys: pytest.CaptureFixture[str]) -> Any:
    return json.loads(capsys.readouterr().out)


def install_bundle(model_id: str, template: dict[str, Any], files: dict[str, bytes], **about: Any) -> Path:
    """Write an unpacked bundle to the local registry and return its folder."""
    folder = Path("home/registry", model_id, "1.0.0/any/content")
    folder.mkdir(parents=True, exist_ok=True)
    metadata = {"model_id": model_id, "version": "1.0.0", "execution_template": template, "files": [*files], **about}
    (folder / "model_metadata.json").write_text(json.dumps(metadata))
    for name, data in files.items():
        (folder / name).write_bytes(data)
    return folder
