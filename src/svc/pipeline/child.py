"""The child process that checks or runs one pipeline of the console: `python -m svc.pipeline.child`.

It reads one line of JSON (`ChildTask`) from stdin, and writes one event per line to stdout. The last event of a check
is `check`, and that of a run `run.completed`. It exits when stdin is closed. The definition comes from a browser, so
the process has none of the server's keys: calls of models go to the gateway with the ephemeral key of the task.
"""

from __future__ import annotations

import base64
import binascii
import functools
import os
import re
import sys
import threading
import time
from collections.abc import Callable, Mapping
from typing import BinaryIO

import msgspec

from svc.client.address import with_v1_suffix
from svc.errors import InvalidRequest, PermissionDenied, SvcError, UsageError
from svc.pipeline.definition import Pipeline, parse_pipeline
from svc.pipeline.files import encode_wav
from svc.pipeline.orchestrator import Orchestrator, RunError, RunResult, StageOutput
from svc.pipeline.plan import StageError, plan_stages
from svc.pipeline.provider_validation import check_stage_names
from svc.pipeline.stages.base import AudioChunk, StageChunk
from svc.speech.audio import parse_wav
from svc.wire.pipeline import ChildTask, PipelineCheck, PipelineInput, PipelineProblem

SOURCE_NAME = "pipeline"
NICENESS = 5
"""Inference in the stages must not delay the gateway."""
MAX_OUTPUT_AUDIO_BYTES = 16 << 20
"""Maximum bytes of the WAV file in an event. A longer output is reported without its audio."""
_LOCATION = re.compile(rf"{SOURCE_NAME}(?::(\d+):(\d+))?: (.*)", re.DOTALL)

NO_KEY = "none"
"""The API key of a task without one, which no gateway accepts."""

WriteEvent = Callable[..., None]


def main() -> None:
    """Do the task of the first line, then exit."""
    events = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what libraries print must not come between the events
    os.nice(NICENESS)
    task = msgspec.json.decode(sys.stdin.buffer.readline(), type=ChildTask)
    threading.Thread(target=_exit_with_parent, daemon=True).start()
    os.environ.update(task.environ)
    os.environ["SVC_API_KEY"] = task.api_key or NO_KEY  # the SDK would use the key of `svc up` without one
    write = functools.partial(_write_event, events, threading.Lock())
    if task.input is None:
        write("check", **msgspec.structs.asdict(check(task)))
    else:
        run(task, task.input, write)
    events.close()
    os._exit(0)  # threads of libraries may still run


def check(task: ChildTask) -> PipelineCheck:
    """Return the plan of a definition, or what is wrong with it."""
    pipeline = None
    try:
        pipeline = parse_pipeline(task.yaml, SOURCE_NAME)
        restricted = restrict_pipeline(pipeline, task)
        planned = plan_stages(restricted, task.environ, check_names=functools.partial(_check_names, task))
    except SvcError as error:
        return PipelineCheck(
            valid=False,
            name=pipeline.name if pipeline else None,
            input=pipeline.input if pipeline else None,
            problems=[_locate_problem(error, pipeline)],
        )
    return PipelineCheck(valid=True, name=pipeline.name, input=pipeline.input, stages=planned)


def run(task: ChildTask, given: PipelineInput, write: WriteEvent) -> None:
    """Run a definition, and write an event for each step."""
    try:
        pipeline = parse_pipeline(task.yaml, SOURCE_NAME)
        restricted = restrict_pipeline(pipeline, task)
        _check_names(task, restricted, task.environ)
        _check_has_key(task, restricted)
        chunk = _read_input(given)
    except SvcError as error:
        write("invalid", problem=_locate_problem(error, None), param=error.param)
        return
    write("run.started", pipeline=pipeline.name, stages=[stage.id for stage in pipeline.stages])
    input_name = (given.text or "")[:200] if given.text is not None else "audio"
    try:
        with Orchestrator(restricted, task.environ) as orchestrator:
            _check_input_kind(orchestrator, chunk)
            result = orchestrator.run(input_name, chunk, _StageReporter(orchestrator, write).on_event).result
    except StageError as error:
        result = RunResult(
            pipeline.name, input_name, None, [], RunError(error.stage_id, error.cause.code, error.cause.message)
        )
    except SvcError as error:
        result = RunResult(pipeline.name, input_name, None, [], RunError(None, error.code, error.message))
    write("run.completed", result=result)


def restrict_pipeline(pipeline: Pipeline, task: ChildTask) -> Pipeline:
    """Return the pipeline with all calls of models sent to this gateway.

    Raises UsageError for another gateway, and for a registry other than the configured one.
    """
    registry = pipeline.registry
    configured_registry = task.environ.get("SVC_REGISTRY_URL")
    remote_url = registry.remote.base_url if registry.remote else None
    if registry.local_path is not None or (remote_url is not None and remote_url != configured_registry):
        raise UsageError(
            f"{pipeline.locations['', 'registry']}: a pipeline of the console cannot choose its registry: "
            "remove 'registry'. Bundles come from this gateway's registry."
        )
    stages = []
    for stage in pipeline.stages:
        if stage.options.gateway_url is not None and not _is_this_gateway(stage.options.gateway_url, task):
            raise UsageError(
                f"{pipeline.locations[stage.id, 'stage']}: Stage {stage.id!r}: a pipeline of the console cannot choose "
                "its gateway: remove 'gateway_url'."
            )
        if stage.target == "integration":
            options = msgspec.structs.replace(stage.options, gateway_url=task.gateway_url)
            stage = msgspec.structs.replace(stage, options=options)
        stages.append(stage)
    return msgspec.structs.replace(pipeline, stages=tuple(stages))


class _StageReporter:
    """Writes an event when a stage starts, produces text, and ends."""

    def __init__(self, orchestrator: Orchestrator, write: WriteEvent) -> None:
        self._runners = orchestrator.runners
        self._write = write
        self._started_at: dict[str, float] = {}
        self._chunks: dict[str, list[StageChunk]] = {}

    def on_event(self, stage: str, event: str, chunk: StageChunk | None) -> None:
        if event == "started":
            self._started_at[stage] = time.monotonic()
            runner = self._runners[stage]
            self._write("stage.started", stage=stage, route=runner.route, model=runner.model, provider=runner.provider)
        elif event == "chunk" and chunk is not None:
            self._chunks.setdefault(stage, []).append(chunk)
            if isinstance(chunk, str):
                self._write("stage.delta", stage=stage, text=chunk)
        elif event in ("done", "failed"):
            self._report_end(stage, event)

    def _report_end(self, stage: str, event: str) -> None:
        ended_at = time.monotonic()
        chunks = self._chunks.get(stage, [])
        runner = self._runners[stage]
        audio = [chunk for chunk in chunks if isinstance(chunk, AudioChunk)]
        wav = None
        if audio:
            frames = sum(len(chunk.data) // chunk.format.frame_bytes for chunk in audio)
            output = StageOutput("audio", seconds=round(frames / audio[0].format.rate, 3))
            if sum(len(chunk.data) for chunk in audio) <= MAX_OUTPUT_AUDIO_BYTES:
                wav = base64.b64encode(encode_wav(audio)).decode()
        else:
            output = StageOutput("text", text="".join(chunk for chunk in chunks if isinstance(chunk, str)))
        self._write(
            "stage.finished" if event == "done" else "stage.failed",
            stage=stage,
            ms=round((ended_at - self._started_at.get(stage, ended_at)) * 1000),
            route=runner.route,
            model=runner.model,
            provider=runner.provider,
            output=output,
            audio=wav,
        )


def _read_input(given: PipelineInput) -> StageChunk:
    if (given.text is None) == (given.audio is None):
        raise InvalidRequest("input: give either `text` or `audio`.", param="input")
    if given.text is not None:
        if not given.text.strip():
            raise InvalidRequest("input.text is empty.", param="input.text")
        return given.text
    try:
        wav = parse_wav(base64.b64decode(given.audio or "", validate=True))
    except InvalidRequest as error:
        raise InvalidRequest(f"input.audio: {error.message}", param="input.audio") from error
    except (binascii.Error, ValueError):
        raise InvalidRequest("input.audio is not base64.", param="input.audio") from None
    return AudioChunk(wav.format, bytes(wav.samples))


def _check_input_kind(orchestrator: Orchestrator, chunk: StageChunk) -> None:
    given_kind = "text" if isinstance(chunk, str) else "audio"
    if orchestrator.input_kind != given_kind:
        raise InvalidRequest(f"This pipeline takes {orchestrator.input_kind}, and the input is {given_kind}.")


def _check_names(task: ChildTask, pipeline: Pipeline, environ: Mapping[str, str]) -> None:
    for stage in pipeline.stages:
        if stage.target == "integration":
            check_stage_names(pipeline, stage, task.models_by_provider)


def _check_has_key(task: ChildTask, pipeline: Pipeline) -> None:
    for stage in pipeline.stages:
        if stage.target == "integration" and task.api_key is None:
            raise PermissionDenied(f"This API key lacks the scope 'chat', which the stage {stage.id!r} needs.")


def _is_this_gateway(url: str, task: ChildTask) -> bool:
    try:
        return with_v1_suffix(url) == task.gateway_url
    except InvalidRequest:
        return False


def _locate_problem(error: SvcError, pipeline: Pipeline | None) -> PipelineProblem:
    text, stage = error.message, None
    code = error.code if error.code != UsageError.code else InvalidRequest.code
    if isinstance(error, StageError):
        text, stage, code = error.cause.message, error.stage_id, error.cause.code
        text = f"{location}: {text}" if (location := error.find_location(pipeline)) else text
    located = _LOCATION.fullmatch(text)
    if located is None:
        return PipelineProblem(message=text, stage=stage, code=code)
    line, column, message = located.groups()
    return PipelineProblem(
        message=message,
        line=int(line) if line else None,
        column=int(column) if column else None,
        stage=stage,
        code=code,
    )


def _write_event(events: BinaryIO, lock: threading.Lock, kind: str, **fields: object) -> None:
    with lock:
        events.write(msgspec.json.encode({"type": kind, **fields}) + b"\n")
        events.flush()


def _exit_with_parent() -> None:
    sys.stdin.buffer.read()
    os._exit(1)


if __name__ == "__main__":
    main()
