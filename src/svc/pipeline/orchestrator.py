"""Runs stages that are ready: pieces flow through all of them as they are made, and the result says what each did.

input ─> [measured stage] ─> [measured stage] ─> pieces for whoever listens ─> Result
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import msgspec

from svc.errors import InternalError, SvcError
from svc.pipeline.definition import Kind, Pipeline
from svc.pipeline.plan import Ready, StageError, close, prepare
from svc.pipeline.stages.base import Item, Sound, Told, Usage


class Output(msgspec.Struct, omit_defaults=True):
    """Text, or audio with its length and, if it was written, its file."""

    kind: Kind
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
    usage: Usage | None
    output: Output | None


class Failure(msgspec.Struct):
    """Which stage failed, and why."""

    stage: str | None
    code: str
    message: str


class Result(msgspec.Struct):
    """One run; decisions, section 6."""

    pipeline: str
    input: str
    output: Output | None
    stages: list[StageResult]
    error: Failure | None


class Made(msgspec.Struct):
    """A result, and what each stage made, also what a failing one had made until then."""

    result: Result
    pieces: list[tuple[str, list[Item]]]


Listener = Callable[[str, str, Item | None], None]
"""Called with a stage's id, what happens (`started`, `piece`, `done`, `failed`), and the piece."""


class Orchestrator:
    """A pipeline that is ready to run, again and again, also from several threads. Use it as a context."""

    def __init__(self, pipeline: Pipeline, environ: Mapping[str, str], report: Any = None) -> None:
        self.pipeline = pipeline
        self._ready = prepare(pipeline, environ, report)

    def __enter__(self) -> Orchestrator:
        return self

    def __exit__(self, *_: object) -> None:
        close(self._ready)

    @property
    def stages(self) -> list[str]:
        """Their ids, in their order."""
        return [one.id for one in self._ready]

    @property
    def takes(self) -> Kind:
        """What its input is."""
        return self._ready[0].runner.takes

    @property
    def gives(self) -> Kind:
        """What its output is."""
        return self._ready[-1].runner.gives

    def run(self, given: str, item: Item, listen: Listener | None = None) -> Made:
        """Runs once on what `given` names. A failed stage is in the result, and what was made before it beside it."""
        flow: Iterator[Item] = iter([item])
        measured: list[_Measured] = []
        for ready in self._ready:
            flow = _Measured(ready, flow, listen)
            measured.append(flow)
        error = _drain(flow)
        output = measured[-1].output() if error is None else None
        stages = [one.result() for one in measured if one.begun]
        result = Result(self.pipeline.name, given, output, stages, error)
        return Made(result, [(one.id, one.pieces) for one in measured])


def _drain(flow: Iterator[Item]) -> Failure | None:
    try:
        for _ in flow:
            pass
    except StageError as error:
        return Failure(error.stage, error.cause.code, error.cause.message)
    return None


class _Measured(Iterator[Item]):
    """A stage at work: its pieces as they come, and how long it took."""

    def __init__(self, ready: Ready, given: Iterator[Item], listen: Listener | None) -> None:
        self.id, self.runner = ready.id, ready.runner
        self.told = Told()
        self.pieces: list[Item] = []
        self.complete = False
        self._given, self._listen = given, listen
        self._work: Iterator[Item] | None = None
        self._since: float | None = None
        self._until = 0.0

    @property
    def begun(self) -> bool:
        """It got something to work on."""
        return self._since is not None

    def __next__(self) -> Item:
        if self._work is None:
            self._work = self.runner.run(self._own(), self.told)
        try:
            piece = next(self._work)
        except StopIteration:
            self.complete = True
            self._say("done")
            raise
        except StageError:
            raise
        except SvcError as error:
            self._say("failed")
            raise StageError(self.id, error) from error
        except Exception as error:
            self._say("failed")
            fault = InternalError(f"{type(error).__name__}: {error}")
            raise StageError(self.id, fault) from error
        finally:
            self._until = time.monotonic()
        self.pieces.append(piece)
        self._say("piece", piece)
        return piece

    def _own(self) -> Iterator[Item]:
        """The input; this stage's time begins when the first of it is there."""
        for piece in self._given:
            if self._since is None:
                self._since = time.monotonic()
                self._say("started")
            yield piece

    def _say(self, event: str, piece: Item | None = None) -> None:
        if self._listen is not None:
            self._listen(self.id, event, piece)

    def output(self) -> Output:
        if self.runner.gives == "text":
            return Output("text", text="".join(piece for piece in self.pieces if isinstance(piece, str)))
        seconds = sum(
            len(one.data) / one.format.frame / one.format.rate for one in self.pieces if isinstance(one, Sound)
        )
        return Output("audio", seconds=round(seconds, 3))

    def result(self) -> StageResult:
        ms = 0 if self._since is None else round((self._until - self._since) * 1000)
        output = self.output() if self.complete else None
        runner = self.runner
        return StageResult(self.id, runner.route, runner.model, runner.provider, ms, self.told.usage, output)
