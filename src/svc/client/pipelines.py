"""Pipelines of a client: stages on this machine and at the client's gateway. `svc.pipeline` runs them."""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from svc import plugins
from svc.client.chat import ChatUsage
from svc.client.http_session import error_from_code
from svc.errors import PipelineFailed, UsageError

if TYPE_CHECKING:
    from svc.client.core import ClientCore

PipelineDefinition = str | os.PathLike[str] | Mapping[str, Any]
PipelineInput = str | bytes | os.PathLike[str]


class PipelineStageResult(msgspec.Struct, frozen=True):
    """The result of one stage. `ms` is its time in milliseconds. `audio` is a WAV file.

    `route` is `device` or `gateway`. The times of stages overlap. `usage` and `finish_reason` are those of a language
    model, and `provider` is the one that responded.
    """

    id: str
    route: str
    model: str
    provider: str | None
    ms: int
    usage: ChatUsage | None
    finish_reason: str | None
    text: str = ""
    audio: bytes | None = None


class PipelineResult(msgspec.Struct, frozen=True):
    """The output of a pipeline: `text`, or `audio` as a WAV file."""

    pipeline: str
    stages: tuple[PipelineStageResult, ...]
    text: str = ""
    audio: bytes | None = None


class PipelineRuns:
    """A definition, which is prepared at the first run. Runs can overlap.

    `client` is the blocking client of the provider stages. Without it, they get one of their own.
    """

    def __init__(self, core: ClientCore, definition: PipelineDefinition, client: Any = None) -> None:
        parsed = _parse(definition)
        if core.registry and parsed.registry.remote is None:
            parsed = plugins.load("pipeline", "definition").with_registry(parsed, core.registry)
        self.name: str = parsed.name
        self._definition, self._core, self._client = parsed, core, client
        self._owns_client = client is None
        self._lock = threading.Lock()
        self._orchestrator: Any = None

    def run(self, input: PipelineInput) -> PipelineResult:
        """Run all stages. Blocking. Raises PipelineFailed and UsageError."""
        orchestrator = self._prepare()
        files = plugins.load("pipeline", "files")
        outcome = orchestrator.run("input", files.convert_input(input, orchestrator.input_kind))
        if (error := outcome.result.error) is not None:
            stage = f"Stage {error.stage!r}: " if error.stage else ""
            raise PipelineFailed(f"{stage}{error.message}") from error_from_code(error.code, error.message)
        outputs = {stage: files.join_output(chunks) for stage, chunks in outcome.stage_chunks}
        stages = tuple(_to_stage_result(stage, *outputs[stage.id]) for stage in outcome.result.stages)
        text, audio = outputs[orchestrator.stages[-1]]
        return PipelineResult(self.name, stages, text, audio)

    def close(self) -> None:
        """Release the models of the stages. Blocking."""
        with self._lock:
            orchestrator, self._orchestrator = self._orchestrator, None
            if orchestrator is not None:
                orchestrator.close()
            if self._owns_client and self._client is not None:
                self._client.close()
                self._client = None

    def _prepare(self) -> Any:
        with self._lock:
            if self._orchestrator is None:
                environ = dict(os.environ)
                if self._core.api_key:
                    environ.setdefault("SVC_REGISTRY_KEY", self._core.api_key)
                self._client = self._client or _to_blocking_client(self._core)
                self._orchestrator = plugins.load("pipeline", "orchestrator").Orchestrator(
                    self._definition, environ, client=self._client
                )
            return self._orchestrator


def _parse(definition: PipelineDefinition) -> Any:
    source = "pipeline"
    if isinstance(definition, os.PathLike):
        source = os.fspath(definition)
        text = plugins.load("pipeline", "files").read_definition(Path(definition))
    elif isinstance(definition, Mapping):
        text = msgspec.yaml.encode(definition).decode()
    elif isinstance(definition, str):
        text = definition
    else:
        raise UsageError(f"The definition is neither YAML, an object nor a path, but {type(definition).__name__}.")
    return plugins.load("pipeline", "definition").parse_pipeline(text, source)


def _to_blocking_client(core: ClientCore) -> Any:
    """Return a blocking client with the same gateway, key and limits."""
    key = core.session.headers.get("authorization", "").removeprefix("Bearer ") or None
    return plugins.load("client", "client").Client(
        gateway_url=core.session.base_url,
        api_key=key,
        registry=core.registry,
        retries=core.session.retries,
        timeout=core.session.timeouts.idle,
    )


def _to_stage_result(stage: Any, text: str, audio: bytes | None) -> PipelineStageResult:
    usage = stage.usage
    return PipelineStageResult(
        id=stage.id,
        route=stage.route,
        model=stage.model,
        provider=stage.provider,
        ms=stage.ms,
        usage=ChatUsage(usage.prompt_tokens, usage.completion_tokens, usage.total_tokens) if usage else None,
        finish_reason=stage.finish_reason,
        text=text,
        audio=audio,
    )
