"""`svc run --watch`: the stages at work, drawn in place on a terminal, a line for each event in a pipe. No verb."""

from __future__ import annotations

import shutil
import sys
import threading
import time
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Self

import msgspec

from svc.pipeline.orchestrator import Result
from svc.pipeline.stages.base import Item, Sound

EVERY = 0.1
"""Seconds between two drawings."""
MARKS = {"waiting": "·", "started": "▸", "done": "✓", "failed": "✗"}


class Screen:
    """Draws lines over those of before, on standard error; use it as a context. Without a terminal it draws nothing."""

    def __init__(self, lines: Callable[[], Sequence[str]]) -> None:
        self._lines = lines
        self._height = 0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="watch", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        self._thread.join()
        self._draw()

    def _run(self) -> None:
        while not self._stop.wait(EVERY):
            self._draw()

    def _draw(self) -> None:
        size = shutil.get_terminal_size()
        lines = [line[: size.columns - 1] for line in self._lines()][-(size.lines - 1) :]
        up = f"\x1b[{self._height}A" if self._height else ""
        sys.stderr.write(f"{up}\r\x1b[J" + "".join(f"{line}\n" for line in lines))
        sys.stderr.flush()
        self._height = len(lines)


class _Stage(msgspec.Struct):
    state: str = "waiting"
    since: float = 0.0
    until: float | None = None
    letters: int = 0
    seconds: float = 0.0

    def heard(self, event: str, piece: Item | None) -> None:
        if event != "piece":
            self.state = event
            self.since = time.monotonic() if event == "started" else self.since
            self.until = time.monotonic() if event in ("done", "failed") else None
        elif isinstance(piece, str):
            self.letters += len(piece)
        elif isinstance(piece, Sound):
            self.seconds += len(piece.data) / piece.format.frame / piece.format.rate

    def line(self, name: str, width: int) -> str:
        took = f"{(self.until or time.monotonic()) - self.since:6.1f} s" if self.since else ""
        sound = f"{self.seconds:.1f} s of audio" if self.seconds else ""
        made = f"{self.letters} characters" if self.letters else sound
        return f"{MARKS[self.state]} {name:<{width}}  {took:<8}  {made}".rstrip()


class Stages:
    """One run."""

    def __init__(self, names: Sequence[str]) -> None:
        self._stages = {name: _Stage() for name in names}
        self._width = max(map(len, names))
        self._live = sys.stderr.isatty()

    def listen(self, stage: str, event: str, piece: Item | None) -> None:
        self._stages[stage].heard(event, piece)
        if not self._live and event != "piece":
            print(f"{stage}: {event}", file=sys.stderr, flush=True)

    def lines(self) -> list[str]:
        return [stage.line(name, self._width) for name, stage in self._stages.items()]


class Batch:
    """Many runs: how many are done, and what those at work are at."""

    def __init__(self, inputs: Sequence[str], *, told: bool) -> None:
        self._inputs = inputs
        self._lock = threading.Lock()
        self._at: dict[int, str] = {}
        self._done = self._failed = 0
        self._told = told and not sys.stderr.isatty()

    def kept(self, count: int) -> None:
        with self._lock:
            self._done = count

    def listen(self, number: int, stage: str, event: str) -> None:
        if event == "started":
            with self._lock:
                self._at[number] = stage

    def done(self, number: int, result: Result) -> None:
        with self._lock:
            self._at.pop(number, None)
            self._done += 1
            self._failed += result.error is not None
            if self._told:
                state = f"failed: {result.error.message}" if result.error else "done"
                said = f"{number + 1} of {len(self._inputs)}: {_short(result.input)}: {state}"
                print(said, file=sys.stderr, flush=True)

    def lines(self) -> list[str]:
        with self._lock:
            at = sorted(self._at.items())
            failed = f", {self._failed} failed" if self._failed else ""
            head = f"{self._done} of {len(self._inputs)} done{failed}"
        return [head, *(f"{MARKS['started']} {stage}: {_short(self._inputs[number])}" for number, stage in at)]


def _short(text: str) -> str:
    return " ".join(text.split())[:60]
