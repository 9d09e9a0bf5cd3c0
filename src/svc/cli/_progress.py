"""Progress of `svc run --watch`: lines that a terminal redraws, or one line per event in a pipe."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Sequence

import msgspec

from svc.pipeline.orchestrator import RunResult
from svc.pipeline.stages.base import AudioChunk, StageChunk

STATE_SYMBOLS = {"waiting": "·", "started": "▸", "done": "✓", "failed": "✗"}

CUT_OUTPUTS = {"length": "at the maximum tokens", "content_filter": "by the content filter"}
"""Finish reasons of an incomplete output."""


class _StageState(msgspec.Struct):
    state: str = "waiting"
    started_at: float = 0.0
    ended_at: float | None = None
    characters: int = 0
    audio_seconds: float = 0.0

    def record_event(self, event: str, chunk: StageChunk | None) -> None:
        if event != "chunk":
            self.state = event
            self.started_at = time.monotonic() if event == "started" else self.started_at
            self.ended_at = time.monotonic() if event in ("done", "failed") else None
        elif isinstance(chunk, str):
            self.characters += len(chunk)
        elif isinstance(chunk, AudioChunk):
            self.audio_seconds += len(chunk.data) / chunk.format.frame_bytes / chunk.format.rate

    def format_line(self, name: str, width: int) -> str:
        elapsed = f"{(self.ended_at or time.monotonic()) - self.started_at:6.1f} s" if self.started_at else ""
        audio_text = f"{self.audio_seconds:.1f} s of audio" if self.audio_seconds else ""
        output_text = f"{self.characters} characters" if self.characters else audio_text
        return f"{STATE_SYMBOLS[self.state]} {name:<{width}}  {elapsed:<8}  {output_text}".rstrip()


class StageProgress:
    """The stages of one run."""

    def __init__(self, names: Sequence[str]) -> None:
        self._stages = {name: _StageState() for name in names}
        self._width = max(map(len, names))
        self._is_terminal = sys.stderr.isatty()

    def on_stage_event(self, stage: str, event: str, chunk: StageChunk | None) -> None:
        self._stages[stage].record_event(event, chunk)
        if not self._is_terminal and event != "chunk":
            print(f"{stage}: {event}", file=sys.stderr, flush=True)

    def format_lines(self) -> list[str]:
        return [stage.format_line(name, self._width) for name, stage in self._stages.items()]


class BatchProgress:
    """Many runs: the number of finished inputs, and the stage of each running input."""

    def __init__(self, inputs: Sequence[str], *, print_lines: bool) -> None:
        self._inputs = inputs
        self._lock = threading.Lock()
        self._running_stages: dict[int, str] = {}
        self._done = self._failed = 0
        self.cut_count = 0
        """Inputs of this run with a stage whose output was cut off."""
        self._print_lines = print_lines and not sys.stderr.isatty()

    def on_resumed(self, count: int) -> None:
        with self._lock:
            self._done = count

    def on_stage_event(self, number: int, stage: str, event: str) -> None:
        if event == "started":
            with self._lock:
                self._running_stages[number] = stage

    def on_input_done(self, number: int, result: RunResult) -> None:
        with self._lock:
            self._running_stages.pop(number, None)
            self._done += 1
            self._failed += result.error is not None
            self.cut_count += any(stage.finish_reason in CUT_OUTPUTS for stage in result.stages)
            if self._print_lines:
                state = f"failed: {result.error.message}" if result.error else "done"
                line = f"{number + 1} of {len(self._inputs)}: {_shorten(result.input)}: {state}"
                print(line, file=sys.stderr, flush=True)

    def format_lines(self) -> list[str]:
        with self._lock:
            running = sorted(self._running_stages.items())
            failed = f", {self._failed} failed" if self._failed else ""
            summary = f"{self._done} of {len(self._inputs)} done{failed}"
        return [
            summary,
            *(f"{STATE_SYMBOLS['started']} {stage}: {_shorten(self._inputs[number])}" for number, stage in running),
        ]


def _shorten(text: str) -> str:
    return " ".join(text.split())[:60]
