"""`svc run --check` rejects unknown providers and models without a network call."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from tests.unit.pipeline.conftest import run

from svc.client import config

STAGE = "name: one\nstages:\n  - {id: ask, target: integration, %s}\n"


@pytest.fixture(autouse=True)
def reset_config(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(config, "_config_holder", config._ConfigHolder())


@pytest.mark.parametrize(
    ("names", "words"),
    [
        ("provider: opnai, model: gpt-4o-mini", ["unknown provider 'opnai'. Did you mean 'openai'?", "groq"]),
        ("provider: openai, model: gpt-4o-mimi", ["openai has no model 'gpt-4o-mimi'", "'gpt-4o-mini'", "gpt-4-turbo"]),
        ("provider: groq, model: gpt-4o-mini", ["groq has no model 'gpt-4o-mini'", "llama-3.1-8b-instant"]),
        ("provider: local, model: mine", ["local has no model 'mine'", "svc models add NAME"]),
        ("model: nothing", ["no provider has a model 'nothing'", "gpt-4o", "claude-3-opus-20240229", "smollm2-135m"]),
    ],
)
@pytest.mark.parametrize("key", [None, "sk-1"])
def test_check_unknown_provider_or_model_error_lists_known_names(
    names: str, words: list[str], key: str | None, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    if key:
        monkeypatch.setenv("PROVIDER_A_API_KEY", key)
    assert run(STAGE % names, "--check") == 2
    error = capsys.readouterr().err
    wrong = names.split(", ")[0 if "unknown" in words[0] or "no provider" in words[0] else 1]
    column = (STAGE % names).splitlines()[2].index(wrong) + wrong.index(" ") + 2
    assert re.match(rf"svc: \S+:3:{column}: Stage 'ask': ", error), error
    assert error.count("\n") == 1
    for word in words:
        assert word in error


@pytest.mark.parametrize(
    "names",
    ["provider: openai, model: gpt-4o", "provider: Anthropic, model: claude-3-haiku-20240307", "model: smollm2-135m"],
)
def test_check_known_names_pass_without_api_key(names: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(STAGE % names, "--check") == 0


def test_check_stage_without_model_is_rejected(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("name: one\nstages:\n  - {id: ask, target: integration, provider: openai}\n", "--check") == 2
    assert "needs a 'model'" in capsys.readouterr().err


def test_check_configured_provider_and_model_pass(capsys: pytest.CaptureFixture[str]) -> None:
    text = '[[providers]]\nname = "vllm"\nbase_url = "http://10.0.0.5:8000/v1"\napi_key_env = "NO_SUCH_KEY"\n'
    Path("svc.toml").write_text(text + 'models = [{ id = "qwen3-32b" }]\n')
    assert run(STAGE % "provider: vllm, model: qwen3-32b", "--check") == 0
    assert run(STAGE % "model: qwen3-32b", "--check") == 0
    assert run(STAGE % "provider: vllm, model: qwen3", "--check") == 2
    assert "Did you mean 'qwen3-32b'?" in capsys.readouterr().err


def test_check_remote_gateway_skips_name_validation(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    remote_stage = "model: custom, options: {gateway_url: 'http://10.0.0.5:3000'}"
    assert run(STAGE % remote_stage, "--check") == 0
    assert run(STAGE % remote_stage.replace("10.0.0.5", "127.0.0.1"), "--check") == 2
    monkeypatch.setenv("SVC_GATEWAY_URL", "https://gateway.example/v1")
    assert run(STAGE % "provider: custom, model: custom", "--check") == 0
    monkeypatch.setenv("SVC_GATEWAY_URL", "http://localhost:3000/v1")
    assert run(STAGE % "provider: custom, model: custom", "--check") == 2


@pytest.mark.parametrize("key", [None, "sk-1"])
def test_check_alias_of_a_model_of_the_provider_passes_and_of_another_exits_2(
    key: str | None, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    if key:
        monkeypatch.setenv("PROVIDER_A_API_KEY", key)
    Path("svc.toml").write_text('[[aliases]]\nname = "fast"\nmodel = "gpt-4o-mini"\n')
    assert run(STAGE % "model: fast", "--check") == 0
    assert run(STAGE % "provider: openai, model: fast", "--check") == 0
    assert run(STAGE % "provider: groq, model: fast", "--check") == 2
