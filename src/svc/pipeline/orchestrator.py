"""Runs stages that are ready: pieces flow through all of them as they are made, and the result says what each did.

input ─> [measured stage] ─> [measured stage] ─> pieces for whoever listens ─> Result
"""

from __future__ import annotations

import io
import re
import time
import wave
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec

from svc.errors import InternalError, InvalidRequest, SvcError, UsageError
from svc.pipeline.definition import Kind, Pipeline, parse
from svc.pipeline.plan import Ready, StageError, close, prepare
from svc.pipeline.stages.base import Item, Picture, Sound, Told, Usage
from svc.speech.audio import read_wav

MAX_INPUT = 512 << 20


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


Listener = Callable[[str, str, Item | None], None]
"""Called with a stage's id, what happens (`started`, `piece`, `done`, `failed`), and the piece."""


def load(path: str | Path) -> Pipeline:
    """Reads a definition from a file. Raises UsageError."""
    try:
        text = Path(path).read_text(encoding="utf-8")
    except FileNotFoundError:
        raise UsageError(f"There is no pipeline at {path}.") from None
    except UnicodeDecodeError:
        raise UsageError(f"{path} is not text in UTF-8.") from None
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}.") from None
    return parse(text, str(path))


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
    def last(self) -> str:
        """The id of the last stage."""
        return self._ready[-1].id

    @property
    def takes(self) -> Kind:
        """What its input is."""
        return self._ready[0].runner.takes

    @property
    def gives(self) -> Kind:
        """What its output is."""
        return self._ready[-1].runner.gives

    def run(
        self, given: str, *, out: Path | None = None, keep: Path | None = None, listen: Listener | None = None
    ) -> Result:
        """Runs once. A failed stage is in the result; what was made before is kept in `keep`, if that is given.

        Raises UsageError for an input that is none.
        """
        flow: Iterator[Item] = iter([read_input(given, self.takes)])
        measured: list[_Measured] = []
        for ready in self._ready:
            flow = _Measured(ready, flow, listen)
            measured.append(flow)
        error = _drain(flow)
        if keep is not None:
            _keep(measured, keep)
        output = None
        if error is None:
            output = measured[-1].output()
            if out is not None:
                write(measured[-1].pieces, out)
                output.path = str(out) if output.kind == "audio" else None
        return Result(self.pipeline.name, given, output, [one.result() for one in measured if one.begun], error)


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


# what comes in, what goes out


def read_input(given: str, kind: Kind) -> Item:
    """A text or a file. Raises UsageError."""
    path = Path(given) if 0 < len(given) < 4096 and "\0" not in given and "\n" not in given else None
    try:
        is_file = path is not None and path.is_file()
    except OSError:
        is_file = False
    if kind == "audio":
        return _read_audio(given, path if is_file else None)
    if kind == "image":
        return Picture(_read_file(given, path if is_file else None, kind))
    if path is None or not is_file:
        if not given.strip():
            raise UsageError("The input is empty.")
        return given
    try:
        if path.stat().st_size > MAX_INPUT:
            raise UsageError(f"{path} is larger than {MAX_INPUT >> 20} MiB.")
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise UsageError(f"{path} is not text in UTF-8, which this pipeline takes.") from None


def _read_audio(given: str, path: Path | None) -> Sound:
    try:
        wav = read_wav(_read_file(given, path, "audio"))
    except InvalidRequest as error:
        raise UsageError(f"{path}: {error.message}") from None
    return Sound(wav.format, bytes(wav.samples))


def _read_file(given: str, path: Path | None, kind: Kind) -> bytes:
    if path is None:
        raise UsageError(f"This pipeline takes {kind}, and there is no file {given[:200]!r}.")
    if path.stat().st_size > MAX_INPUT:
        raise UsageError(f"{path} is larger than {MAX_INPUT >> 20} MiB.")
    return path.read_bytes()


def write(pieces: list[Item], path: Path) -> None:
    """Text, or a WAV file."""
    sounds = [piece for piece in pieces if isinstance(piece, Sound)]
    path.parent.mkdir(parents=True, exist_ok=True)
    if not sounds:
        text = "".join(piece for piece in pieces if isinstance(piece, str))
        path.write_text(text if text.endswith("\n") else f"{text}\n", encoding="utf-8")
        return
    made = io.BytesIO()
    with wave.open(made, "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(sounds[0].format.rate)
        file.writeframes(b"".join(sound.data for sound in sounds))
    path.write_bytes(made.getvalue())


def _keep(measured: list[_Measured], folder: Path) -> None:
    """`01-hear.txt`, `02-answer.txt`, `03-speak.wav`: also what a stage had made when it failed."""
    for number, one in enumerate(measured, 1):
        if one.pieces:
            ending = "txt" if one.runner.gives == "text" else "wav"
            name = re.sub(r"[^A-Za-z0-9._-]+", "_", one.id)[:64]
            write(one.pieces, folder / f"{number:02}-{name}.{ending}")
