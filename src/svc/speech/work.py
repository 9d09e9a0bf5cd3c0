"""The work of a speech process for one request. The metrics count it, and a span describes it."""

from __future__ import annotations

import time
from typing import Literal

import msgspec

SpeechOperation = Literal["transcribe", "synthesize"]


class SpeechWork(msgspec.Struct, kw_only=True):
    """One stream of audio in a speech worker, or one text in the process that speaks. Times are in seconds."""

    request_id: str
    """The gateway's request id."""
    operation: SpeechOperation
    model: str
    pid: int
    """The id of the process."""
    start_ns: int
    """Nanoseconds since 1970."""
    end_ns: int
    queue_seconds: float = 0.0
    """Total time that inferences waited for a thread. A text also waits until its voice is loaded."""
    engine_seconds: float = 0.0
    """Total time of the inferences."""
    audio_seconds: float = 0.0
    """Length of the audio that was received or made."""
    inferences: int = 0
    status: Literal["ok", "error", "cancelled"] = "ok"
    code: str | None = None
    """The code of the error."""


class SpeechWorkTimer:
    """Adds up the work of one request until `finish`."""

    def __init__(self, request_id: str, operation: SpeechOperation, model: str, pid: int) -> None:
        now = time.time_ns()
        self._started_at = time.monotonic()
        self._work = SpeechWork(
            request_id=request_id, operation=operation, model=model, pid=pid, start_ns=now, end_ns=now
        )

    def add_inference(self, queue_seconds: float, engine_seconds: float) -> None:
        """Add an inference."""
        self._work.inferences += 1
        self._work.queue_seconds += queue_seconds
        self._work.engine_seconds += engine_seconds

    def add_wait_since_start(self) -> None:
        """Count the time since the start as waiting."""
        self._work.queue_seconds += time.monotonic() - self._started_at

    def add_audio(self, seconds: float) -> None:
        """Add audio."""
        self._work.audio_seconds += seconds

    def set_error(self, code: str) -> None:
        """Record an error."""
        self._work.status, self._work.code = "error", code

    def set_cancelled(self) -> None:
        """Record that the client disconnected."""
        self._work.status = "cancelled"

    def finish(self) -> SpeechWork:
        """Return the work. Its end is now."""
        self._work.end_ns = self._work.start_ns + int((time.monotonic() - self._started_at) * 1e9)
        return self._work
