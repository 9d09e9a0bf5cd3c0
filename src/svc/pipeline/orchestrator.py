"""Runs prepared stages. Chunks flow through all stages as they are produced, and each stage is measured.

input ─> [measured stage] ─> [measured stage] ─> chunks for the listener ─> RunResult
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import msgspec

from svc.client.client import Client
from svc.errors import GatewayFailed, InternalError, SvcError
from svc.pipeline.definition import DataKind, Pipeline
from svc.pipeline.plan import PreparedStage, StageError, close_stages, prepare_stages
from svc.pipeline.stages.base import AudioChunk, StageChunk, StageRunInfo, StageRunner, StageUsage


class StageOutput(msgspec.Struct, omit_defaults=True):
    """The output of a stage: text, or audio with its duration in seconds and, if written, its file."""

    kind: DataKind
    text: str | None = None
    path: str | None = None
    seconds: float | None = None


class StageResult(msgspec.Struct, omit_defaults=True):
    """The result of one stage. `ms` is the time from its first input to its last chunk. Stages overlap.

    Stages with a language model have its `finish_reason`, such as `length` for an output that was cut off. `provider`
    is the one that responded.
    """

    id: str
    route: str
    model: str
    provider: str | None
    ms: int
    usage: StageUsage | None
    output: StageOutput | None
    finish_reason: str | None = None


class RunError(msgspec.Struct):
    """The stage that failed, and why."""

    stage: str | None
    code: str
    message: str


class RunResult(msgspec.Struct):
    """The result of one run: a line of `svc run --json`."""

    pipeline: str
    input: str
    output: StageOutput | None
    stages: list[StageResult]
    error: RunError | None


class RunOutcome(msgspec.Struct):
    """A result with the output of each stage. A failed stage has the output until its failure."""

    result: RunResult
    stage_chunks: list[tuple[str, list[StageChunk]]]
    is_outage: bool = False
    """Whether a stage failed because its gateway or provider could not be reached."""


StageListener = Callable[[str, str, StageChunk | None], None]
"""Called with the id of a stage, an event (`started`, `chunk`, `done`, `failed`), and the chunk, if any."""


class Orchestrator:
    """A prepared pipeline. Can run repeatedly and from several threads. Use it as a context manager."""

    def __init__(
        self, pipeline: Pipeline, environ: Mapping[str, str], report: Any = None, client: Client | None = None
    ) -> None:
        """`client` calls the models of provider stages that have no `gateway_url`. The caller closes it."""
        self.pipeline = pipeline
        self._prepared_stages = prepare_stages(pipeline, environ, report, client)

    def __enter__(self) -> Orchestrator:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Release the resources of the stages."""
        close_stages(self._prepared_stages)

    @property
    def stages(self) -> list[str]:
        """The ids of the stages in order."""
        return [stage.id for stage in self._prepared_stages]

    @property
    def runners(self) -> dict[str, StageRunner]:
        """The runner of each stage, by its id."""
        return {stage.id: stage.runner for stage in self._prepared_stages}

    @property
    def input_kind(self) -> DataKind:
        """The kind of the pipeline's input."""
        return self._prepared_stages[0].runner.input_kind

    @property
    def output_kind(self) -> DataKind:
        """The kind of the pipeline's output."""
        return self._prepared_stages[-1].runner.output_kind

    def run(self, input_name: str, input_chunk: StageChunk, on_event: StageListener | None = None) -> RunOutcome:
        """Run once on an input. The outcome has the failed stage, if any, and the output before it."""
        chunks: Iterator[StageChunk] = iter([input_chunk])
        measured_stages: list[_MeasuredStage] = []
        for stage in self._prepared_stages:
            chunks = _MeasuredStage(stage, chunks, on_event)
            measured_stages.append(chunks)
        failure = _run_to_end(chunks)
        error = None
        if failure is not None:
            error = RunError(failure.stage_id, failure.cause.code, failure.cause.message)
        output = measured_stages[-1].build_output() if error is None else None
        stages = [stage_run.build_result() for stage_run in measured_stages if stage_run.has_started]
        result = RunResult(self.pipeline.name, input_name, output, stages, error)
        stage_chunks = [(stage_run.id, stage_run.chunks) for stage_run in measured_stages]
        return RunOutcome(result, stage_chunks, failure is not None and _is_outage(failure.cause))


def _is_outage(error: SvcError) -> bool:
    """Return whether the gateway, or a provider that was called directly, could not be reached."""
    return any(isinstance(cause, GatewayFailed) and cause.is_outage for cause in (error, error.__cause__))


def _run_to_end(chunks: Iterator[StageChunk]) -> StageError | None:
    try:
        for _ in chunks:
            pass
    except StageError as error:
        return error
    return None


class _MeasuredStage(Iterator[StageChunk]):
    """One run of a stage: yields its chunks and measures its time."""

    def __init__(
        self, stage: PreparedStage, input_chunks: Iterator[StageChunk], on_event: StageListener | None
    ) -> None:
        self.id, self.runner = stage.id, stage.runner
        self.run_info = StageRunInfo()
        self.chunks: list[StageChunk] = []
        self.is_complete = False
        self._input_chunks, self._on_event = input_chunks, on_event
        self._output_chunks: Iterator[StageChunk] | None = None
        self._started_at: float | None = None
        self._ended_at = 0.0

    @property
    def has_started(self) -> bool:
        """Whether the stage received input."""
        return self._started_at is not None

    def __next__(self) -> StageChunk:
        if self._output_chunks is None:
            self._output_chunks = self.runner.run(self._timed_input(), self.run_info)
        try:
            chunk = next(self._output_chunks)
        except StopIteration:
            self.is_complete = True
            self._emit_event("done")
            raise
        except StageError:
            raise
        except SvcError as error:
            self._emit_event("failed")
            raise StageError(self.id, error) from error
        except Exception as error:
            self._emit_event("failed")
            internal_error = InternalError(f"{type(error).__name__}: {error}")
            raise StageError(self.id, internal_error) from error
        finally:
            self._ended_at = time.monotonic()
        self.chunks.append(chunk)
        self._emit_event("chunk", chunk)
        return chunk

    def _timed_input(self) -> Iterator[StageChunk]:
        """Yield the input. The stage's time starts with the first chunk."""
        for chunk in self._input_chunks:
            if self._started_at is None:
                self._started_at = time.monotonic()
                self._emit_event("started")
            yield chunk

    def _emit_event(self, event: str, chunk: StageChunk | None = None) -> None:
        if self._on_event is not None:
            self._on_event(self.id, event, chunk)

    def build_output(self) -> StageOutput:
        if self.runner.output_kind == "text":
            return StageOutput("text", text="".join(chunk for chunk in self.chunks if isinstance(chunk, str)))
        seconds = sum(
            len(chunk.data) / chunk.format.frame_bytes / chunk.format.rate
            for chunk in self.chunks
            if isinstance(chunk, AudioChunk)
        )
        return StageOutput("audio", seconds=round(seconds, 3))

    def build_result(self) -> StageResult:
        ms = 0 if self._started_at is None else round((self._ended_at - self._started_at) * 1000)
        output = self.build_output() if self.is_complete else None
        runner, run_info = self.runner, self.run_info
        provider = (run_info.provider if runner.route == "gateway" else None) or runner.provider
        return StageResult(
            *(self.id, runner.route, runner.model, provider, ms, run_info.usage, output),
            finish_reason=run_info.finish_reason,
        )
