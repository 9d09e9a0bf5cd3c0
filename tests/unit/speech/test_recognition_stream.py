"""What work a voice has, and what may wait for what: the engine here is one that says how much it has heard."""

from typing import Any

import numpy as np
import pytest

from svc.speech import ipc
from svc.speech.recognition_stream import (
    URGENCY_FIRST_PARTIAL,
    URGENCY_FLUSH,
    URGENCY_INSTANT,
    URGENCY_NEXT_PARTIAL,
    URGENCY_PREDECODE,
    URGENCY_SEGMENT_END,
    DecodeJob,
    RecognitionStream,
)

SPEECH, SILENCE = (np.full(512, level, "<i2").tobytes() for level in (9000, 0))
"""Windows of 32 ms."""


class LoudnessDetector:
    """A detector that takes every sound for speech, and nothing else."""

    def is_speech(self, window: Any) -> bool:
        return bool(window.any())

    def reset(self) -> None:
        """It has no state."""


class WordCountEngine:
    """An engine and its own hearing: a word for each second of audio that it is given, and one more."""

    details = ipc.DecodingDetails()

    def __init__(self, *, incremental: bool = False) -> None:
        self.is_incremental = incremental

    def begin_segment(self, language: str | None) -> "WordCountEngine":
        return self

    def decode_partial(self, samples: Any) -> str:
        return " ".join(f"w{number}" for number in range(len(samples) // 16000 + 1))

    decode_final = decode_partial


class StreamDriver:
    """A voice, what it said, and the jobs that it gave out."""

    def __init__(self, **engine: bool) -> None:
        self.messages: list[Any] = []
        self.stream = RecognitionStream(1, WordCountEngine(**engine), LoudnessDetector(), emit=self._emit)  # type: ignore[arg-type]

    def _emit(self, message: ipc.WorkerToGateway) -> None:
        if not isinstance(message, ipc.AudioProcessed):
            self.messages.append(message)

    def send_audio(self, window: bytes, count: int) -> None:
        for _ in range(count):
            self.stream.enqueue(window)
            while self.stream.advance(64):
                pass

    def flush(self) -> None:
        self.stream.enqueue(ipc.FlushStream(1))
        while self.stream.advance(64):
            pass

    def urgency(self) -> int | None:
        due = self.stream.pending_work()
        return due[0] if due else None

    def start_job(self, urgency: int) -> DecodeJob:
        """A job of that urgency, which has begun and has not ended."""
        assert self.urgency() == urgency
        job = self.stream.start_work()
        assert job is not None
        return job

    def complete_job(self, job: DecodeJob) -> None:
        self.stream.complete_job(job, job.decode())


@pytest.fixture
def person() -> StreamDriver:
    """One who speaks, and whose partial is out: others keep the core from it."""
    person = StreamDriver()
    start_partial(person)
    return person


def start_partial(person: StreamDriver) -> DecodeJob:
    person.send_audio(SPEECH, 8)
    person.complete_job(person.start_job(URGENCY_FIRST_PARTIAL))
    person.send_audio(SPEECH, 40)
    job = person.start_job(URGENCY_NEXT_PARTIAL)
    assert person.urgency() is None
    return job


def test_a_flush_after_a_pause_is_answered_from_what_is_there_whatever_is_out(person: StreamDriver):
    person.send_audio(SILENCE, 2)
    person.complete_job(person.start_job(URGENCY_PREDECODE))
    person.send_audio(SILENCE, 7)
    person.flush()
    assert person.urgency() == URGENCY_INSTANT
    assert person.stream.start_work() is None
    assert isinstance(person.messages[-1], ipc.FinalTranscript)
    assert person.messages[-1].text == "w0 w1"


def test_a_flush_does_not_wait_for_a_partial(person: StreamDriver):
    person.flush()
    person.complete_job(person.start_job(URGENCY_FLUSH))
    assert isinstance(person.messages[-1], ipc.FinalTranscript)


def test_the_end_of_a_segment_does_not_wait_for_a_partial(person: StreamDriver):
    person.send_audio(SILENCE, 60)
    person.complete_job(person.start_job(URGENCY_SEGMENT_END))
    assert person.messages[-1] == ipc.RecognitionHypothesis(1, 0, "w0 w1", is_stable=True)


def test_a_partial_that_comes_late_is_not_told():
    person = StreamDriver()
    late = start_partial(person)
    person.send_audio(SILENCE, 2)
    person.complete_job(person.start_job(URGENCY_PREDECODE))
    told = len(person.messages)
    person.complete_job(late)
    person.send_audio(SPEECH, 2)
    assert len(person.messages) == told
    person.send_audio(SPEECH, 20)
    person.complete_job(person.start_job(URGENCY_NEXT_PARTIAL))
    assert len(person.messages) > told


def test_the_next_utterance_begins_while_a_partial_of_the_last_one_is_out():
    person = StreamDriver()
    late = start_partial(person)
    person.flush()
    person.complete_job(person.start_job(URGENCY_FLUSH))
    person.send_audio(SPEECH, 8)
    person.complete_job(person.start_job(URGENCY_FIRST_PARTIAL))
    told = list(person.messages)
    person.send_audio(SPEECH, 40)
    assert person.urgency() is None  # one partial at a time
    person.complete_job(late)
    assert person.messages == told
    person.complete_job(person.start_job(URGENCY_NEXT_PARTIAL))
    assert person.messages[-1].text == "w0 w1"


def test_an_incremental_engine_is_asked_one_thing_at_a_time():
    person = StreamDriver(incremental=True)
    partial = start_partial(person)
    person.send_audio(SILENCE, 2)
    assert person.urgency() is None
    person.complete_job(partial)
    assert person.urgency() == URGENCY_PREDECODE
