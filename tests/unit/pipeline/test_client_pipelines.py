"""Pipelines of `svc.Client` and `svc.AsyncClient`, with a fake provider as their gateway."""

from __future__ import annotations

import asyncio
import io
import wave
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.fakes import openai_wire
from tests.fakes.provider import FakeProvider
from tests.fakes.script import answer
from tests.unit.pipeline.conftest import install_bundle

import svc
from svc import errors
from svc.client.pipelines import PipelineResult

ASK = "name: ask\nstages:\n  - {id: ask, target: integration, provider: openai, model: m, options: {max_tokens: 9}}\n"
SPEAK = f"{ASK}  - {{id: speak, name: voice@1.0.0}}\n"
VOICE = {"tts.json": b'{"engine": "espeak", "voice": "en-us"}'}
RunPipeline = Callable[[Any, Any], PipelineResult]


@pytest.fixture(params=["sync", "async"])
def run_pipeline(request: pytest.FixtureRequest, provider: FakeProvider) -> RunPipeline:
    """Run a definition on an input, with a client that alone knows the gateway and the key."""
    options = {"gateway_url": provider.address, "api_key": "sk-a", "retries": 0}

    def run(definition: Any, value: Any) -> PipelineResult:
        if request.param == "sync":
            with svc.Client(**options) as client, client.pipeline(definition) as pipeline:
                return pipeline.run(value)

        async def run_async() -> PipelineResult:
            async with svc.AsyncClient(**options) as client, client.pipeline(definition) as pipeline:
                return await pipeline.run(value)

        return asyncio.run(run_async())

    return run


def test_pipeline_provider_stage_calls_the_gateway_of_the_client(
    run_pipeline: RunPipeline, provider: FakeProvider, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-unused")  # `svc run` would call OpenAI with it
    result = run_pipeline(ASK, "Hi")
    assert (result.pipeline, result.text, result.audio) == ("ask", openai_wire.TEXT, None)
    [stage] = result.stages
    assert (stage.id, stage.route, stage.model, stage.finish_reason) == ("ask", "gateway", "m", "stop")
    assert (stage.text, stage.usage) == (openai_wire.TEXT, svc.client.chat.ChatUsage(11, 7, 18))
    assert (provider.requests[0].json["max_tokens"], provider.requests[0].headers["authorization"]) == (
        9,
        "Bearer sk-a",
    )


def test_pipeline_voice_returns_a_wav_file(run_pipeline: RunPipeline) -> None:
    install_bundle("voice", {"type": "Speech"}, VOICE)
    Path("ask.yaml").write_text(SPEAK)
    Path("question.txt").write_text("Hi")
    result = run_pipeline(Path("ask.yaml"), Path("question.txt"))
    assert result.text == ""
    assert result.audio is not None
    assert result.audio == result.stages[1].audio
    with wave.open(io.BytesIO(result.audio)) as file:
        assert file.getnframes() > 1000


def test_pipeline_failed_stage_raises_pipeline_failed_with_its_cause(
    run_pipeline: RunPipeline, provider: FakeProvider
) -> None:
    error = {"message": "slow down", "type": "rate_limit_error", "code": "rate_limited", "param": None}
    provider.plays(answer(429, {"error": error}))
    with pytest.raises(errors.PipelineFailed, match=r"Stage 'ask': slow down") as caught:
        run_pipeline({"name": "ask", "stages": [{"id": "ask", "target": "integration", "model": "m"}]}, "Hi")
    assert isinstance(caught.value.__cause__, errors.RateLimited)
    with pytest.raises(errors.PipelineFailed, match="Stage 'none': There is no bundle none@1"):
        run_pipeline("name: a\nstages: [none@1]", "Hi")


@pytest.mark.parametrize(
    ("definition", "value", "message"),
    [
        ("name: x\nstagse: []\n", "Hi", "pipeline:2:1: unknown key 'stagse'"),
        (Path("none.yaml"), "Hi", "none.yaml does not exist"),
        (5, "Hi", "neither YAML"),
        (ASK, "", "empty"),
        (ASK, b"\xff", "not UTF-8"),
        (ASK, Path("none.txt"), "'none.txt' does not exist"),
        (ASK, 5, "neither a text"),
    ],
)
def test_pipeline_impossible_definition_or_input_raises_usage_error(
    run_pipeline: RunPipeline, definition: Any, value: Any, message: str
) -> None:
    with pytest.raises(errors.UsageError, match=message):
        run_pipeline(definition, value)


def test_pipeline_string_is_never_the_path_of_a_file(run_pipeline: RunPipeline, provider: FakeProvider) -> None:
    Path("secret.txt").write_text("a secret")
    run_pipeline(ASK, "secret.txt")
    assert provider.requests[0].json["messages"] == [{"role": "user", "content": "secret.txt"}]


def test_pipeline_close_leaves_the_client_open(provider: FakeProvider) -> None:
    with svc.Client(gateway_url=provider.address, api_key="sk-a") as client:
        pipeline = client.pipeline(ASK)
        assert pipeline.run("Hi").text == pipeline.run("Hi").text
        pipeline.close()
        assert client.chat("Hi", model="m").text == openai_wire.TEXT
        assert pipeline.run("Hi").text == openai_wire.TEXT  # it is prepared again
