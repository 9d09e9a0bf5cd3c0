"""Runs stages that are ready: pieces flow through all of them as they are made, and the result says what each did.

input ─> [measured stage] ─> [measured stage] ─> pieces for whoever listens ─> Result
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import msgspec

from svc.errors import InternalError, SvcError
from svc.pipeline.definition import DataKind, Pipeline
from svc.pipeline.plan import PreparedStage, StageError, close_stages, prepare_stages
from svc.pipeline.stages.base import AudioChunk, StageChunk, StageRunInfo, StageUsage


class StageOutput(msgspec.Struct, omit_defaults=True):
    """Text, or audio with its length and, if it was written, its file."""

    kind: DataKind
    text: str | None = None
    path: str | None = None
    seconds: float | None = None


class StageResult(msgspec.Struct):
    """What one stage did. `ms` is the time from its first work to its last piece, beside other stages."""

    id: str
    route: str
    model: str
    provider: str | None
    ms: int
    usage: StageUsage | None
    output: StageOutput | None


class RunError(msgspec.Struct):
    """Which stage failed, and why."""

    stage: str | None
    code: str
    message: str


class RunResult(msgspec.Struct):
    """One run; decisions, section 6."""

    pipeline: str
    input: str
    output: StageOutput | None
    stages: list[StageResult]
    error: RunError | None


class RunOutcome(msgspec.Struct):
    """A result, and what each stage made, also what a failing one had made until then."""

    result: RunResult
    stage_chunks: list[tuple[str, list[StageChunk]]]


StageListener = Callable[[str, str, StageChunk | None], None]
"""Called with a stage's id, what happens (`started`, `piece`, `done`, `failed`), and the piece."""


class Orchestrator:
    """A pipeline that is ready to run, again and again, also from several threads. Use it as a context."""

    def __init__(self, pipeline: Pipeline, environ: Mapping[str, str], report: Any = None) -> None:
        self.pipeline = pipeline
        self._prepared_stages = prepare_stages(pipeline, environ, report)

    def __enter__(self) -> Orchestrator:
        return self

    def __exit__(self, *_: object) -> None:
        close_stages(self._prepared_stages)

    @property
    def stages(self) -> list[str]:
        """Their ids, in their order."""
        return [one.id for one in self._prepared_stages]

    @property
    def input_kind(self) -> DataKind:
        """What its input is."""
        return self._prepared_stages[0].runner.input_kind

    @property
    def output_kind(self) -> DataKind:
        """What its output is."""
        return self._prepared_stages[-1].runner.output_kind

    def run(self, input_name: str, input_chunk: StageChunk, on_event: StageListener | None = None) -> RunOutcome:
        """Runs once on what `given` names. A failed stage is in the result, and what was made before it beside it."""
        chunks: Iterator[StageChunk] = iter([input_chunk])
        measured_stages: list[_MeasuredStage] = []
        for stage in self._prepared_stages:
            chunks = _MeasuredStage(stage, chunks, on_event)
            measured_stages.append(chunks)
        error = _run_to_end(chunks)
        output = measured_stages[-1].build_output() if error is None else None
        stages = [one.build_result() for one in measured_stages if one.has_started]
        result = RunResult(self.pipeline.name, input_name, output, stages, error)
        return RunOutcome(result, [(one.id, one.chunks) for one in measured_stages])


def _run_to_end(chunks: Iterator[StageChunk]) -> RunError | None:
    try:
        for _ in chunks:
            pass
    except StageError as error:
        return RunError(error.stage_id, error.cause.code, error.cause.message)
    return None


class _MeasuredStage(Iterator[StageChunk]):
    """A stage at work: its pieces as they come, and how long it took."""

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
        """It got something to work on."""
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
        self._emit_event("piece", chunk)
        return chunk

    def _timed_input(self) -> Iterator[StageChunk]:
        """The input; this stage's time begins when the first of it is there."""
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
            return StageOutput("text", text="".join(piece for piece in self.chunks if isinstance(piece, str)))
        seconds = sum(
            len(one.data) / one.format.frame_bytes / one.format.rate
            for one in self.chunks
            if isinstance(one, AudioChunk)
        )
        return StageOutput("audio", seconds=round(seconds, 3))

    def build_result(self) -> StageResult:
        ms = 0 if self._started_at is None else round((self._ended_at - self._started_at) * 1000)
        output = self.build_output() if self.is_complete else None
        runner = self.runner
        return StageResult(self.id, runner.route, runner.model, runner.provider, ms, self.run_info.usage, output)
