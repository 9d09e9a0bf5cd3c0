"""Scheduling of a stream's decoding jobs. The fake engine reports how much audio it decoded."""

from typing import Any

import numpy as np
import pytest

from svc.speech import ipc
from svc.speech.endpointer import PRE_ROLL_WINDOWS
from svc.speech.recognition_stream import (
    PREDECODE_SILENCE_WINDOWS,
    URGENCY_FIRST_PARTIAL,
    URGENCY_FLUSH,
    URGENCY_INSTANT,
    URGENCY_NEXT_PARTIAL,
    URGENCY_PREDECODE,
    URGENCY_SEGMENT_END,
    DecodeJob,
    RecognitionStream,
)
from svc.wire.speech import WordTime

SPEECH, SILENCE = (np.full(512, level, "<i2").tobytes() for level in (9000, 0))
"""Windows of 32 ms."""


class LoudnessDetector:
    """A detector that treats every nonzero window as speech."""

    def is_speech(self, window: Any) -> bool:
        return bool(window.any())

    def reset(self) -> None:
        """The detector has no state."""


class WordCountEngine:
    """An engine that decodes one word for each second of audio, and one more."""

    def __init__(self, *, incremental: bool = False) -> None:
        self.is_incremental = incremental

    def begin_segment(self, language: str | None, *, with_words: bool = False) -> "WordCountEngine":
        return self

    def decode_partial(self, samples: Any) -> ipc.Hypothesis:
        count = len(samples) // 16000 + 1
        words = tuple(WordTime(f"w{number}", 1000 * number, 1000 * number + 500) for number in range(count))
        return ipc.Hypothesis(" ".join(word.word for word in words), words=words)

    decode_final = decode_partial


class StreamDriver:
    """A recognition stream, its messages and its decoding jobs."""

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
        """Start a job, which must have this urgency."""
        assert self.urgency() == urgency
        job = self.stream.start_work()
        assert job is not None
        return job

    def complete_job(self, job: DecodeJob) -> None:
        self.stream.complete_job(job, job.decode())


@pytest.fixture
def driver() -> StreamDriver:
    """A stream with speech whose partial is running."""
    driver = StreamDriver()
    start_partial(driver)
    return driver


def start_partial(driver: StreamDriver) -> DecodeJob:
    driver.send_audio(SPEECH, 8)
    driver.complete_job(driver.start_job(URGENCY_FIRST_PARTIAL))
    driver.send_audio(SPEECH, 40)
    job = driver.start_job(URGENCY_NEXT_PARTIAL)
    assert driver.urgency() is None
    return job


def test_stream_flush_after_silence_uses_predecoded_text_at_once(driver: StreamDriver):
    driver.send_audio(SILENCE, PREDECODE_SILENCE_WINDOWS)
    driver.complete_job(driver.start_job(URGENCY_PREDECODE))
    driver.send_audio(SILENCE, 7)
    driver.flush()
    assert driver.urgency() == URGENCY_INSTANT
    assert driver.stream.start_work() is None
    assert isinstance(driver.messages[-1], ipc.FinalTranscript)
    assert driver.messages[-1].text == "w0 w1"


def test_stream_flush_does_not_wait_for_running_partial(driver: StreamDriver):
    driver.flush()
    driver.complete_job(driver.start_job(URGENCY_FLUSH))
    assert isinstance(driver.messages[-1], ipc.FinalTranscript)


def test_stream_segment_end_does_not_wait_for_running_partial(driver: StreamDriver):
    driver.send_audio(SILENCE, 60)
    driver.complete_job(driver.start_job(URGENCY_SEGMENT_END))
    assert driver.messages[-1] == ipc.RecognitionHypothesis(1, 0, "w0 w1", is_stable=True)


def test_stream_end_of_predecoded_segment_is_not_decoded_again(driver: StreamDriver):
    driver.send_audio(SILENCE, PREDECODE_SILENCE_WINDOWS)
    driver.complete_job(driver.start_job(URGENCY_PREDECODE))
    driver.send_audio(SILENCE, 60)
    assert driver.urgency() == URGENCY_INSTANT
    assert driver.stream.start_work() is None
    assert driver.messages[-1] == ipc.RecognitionHypothesis(1, 0, "w0 w1", is_stable=True)


def test_stream_words_count_from_start_of_utterance():
    driver = StreamDriver()
    driver.send_audio(SILENCE, 50)
    driver.send_audio(SPEECH, 40)
    driver.flush()
    driver.complete_job(driver.start_job(URGENCY_FLUSH))
    final = driver.messages[-1]
    begin = (50 - PRE_ROLL_WINDOWS) * 32
    assert final.words == (WordTime("w0", begin, begin + 500), WordTime("w1", begin + 1000, begin + 1500))


def test_stream_words_that_differ_from_text_are_omitted():
    driver = StreamDriver()
    driver.send_audio(SPEECH, 40)
    job = driver.start_job(URGENCY_FIRST_PARTIAL)
    driver.complete_job(job)
    driver.flush()
    flush = driver.start_job(URGENCY_FLUSH)
    driver.stream.complete_job(flush, flush.decode()._replace(text="other text"))
    assert driver.messages[-1].words is None


def test_stream_late_partial_is_not_sent():
    driver = StreamDriver()
    late = start_partial(driver)
    driver.send_audio(SILENCE, PREDECODE_SILENCE_WINDOWS)
    driver.complete_job(driver.start_job(URGENCY_PREDECODE))
    sent = len(driver.messages)
    driver.complete_job(late)
    driver.send_audio(SPEECH, 2)
    assert len(driver.messages) == sent
    driver.send_audio(SPEECH, 20)
    driver.complete_job(driver.start_job(URGENCY_NEXT_PARTIAL))
    assert len(driver.messages) > sent


def test_stream_next_utterance_starts_while_old_partial_is_running():
    driver = StreamDriver()
    late = start_partial(driver)
    driver.flush()
    driver.complete_job(driver.start_job(URGENCY_FLUSH))
    driver.send_audio(SPEECH, 8)
    driver.complete_job(driver.start_job(URGENCY_FIRST_PARTIAL))
    sent = list(driver.messages)
    driver.send_audio(SPEECH, 40)
    assert driver.urgency() is None  # one partial at a time
    driver.complete_job(late)
    assert driver.messages == sent
    driver.complete_job(driver.start_job(URGENCY_NEXT_PARTIAL))
    assert driver.messages[-1].text == "w0 w1"


def test_stream_incremental_engine_gets_one_job_at_a_time():
    driver = StreamDriver(incremental=True)
    partial = start_partial(driver)
    driver.send_audio(SILENCE, PREDECODE_SILENCE_WINDOWS)
    assert driver.urgency() is None
    driver.complete_job(partial)
    assert driver.urgency() == URGENCY_PREDECODE
