"""What work a voice has, and what may wait for what: the engine here is one that says how much it has heard."""

from typing import Any

import numpy as np
import pytest

from svc.speech import link
from svc.speech.voice import END, FLUSH, GO_ON, INSTANT, SETTLE, START, Job, Voice

SPEECH, SILENCE = (np.full(512, level, "<i2").tobytes() for level in (9000, 0))
"""Windows of 32 ms."""


class Loudness:
    """A detector that takes every sound for speech, and nothing else."""

    def hear(self, window: Any) -> bool:
        return bool(window.any())

    def reset(self) -> None:
        """It has no state."""


class Counting:
    """An engine and its own hearing: a word for each second of audio that it is given, and one more."""

    details = link.Details()

    def __init__(self, *, incremental: bool = False) -> None:
        self.incremental = incremental

    def begin(self, language: str | None) -> "Counting":
        return self

    def text(self, samples: Any) -> str:
        return " ".join(f"w{number}" for number in range(len(samples) // 16000 + 1))

    final = text


class Person:
    """A voice, what it said, and the jobs that it gave out."""

    def __init__(self, **engine: bool) -> None:
        self.said: list[Any] = []
        self.voice = Voice(1, Counting(**engine), Loudness(), emit=self._emit)  # type: ignore[arg-type]

    def _emit(self, message: link.FromWorker) -> None:
        if not isinstance(message, link.Taken):
            self.said.append(message)

    def hears(self, window: bytes, count: int) -> None:
        for _ in range(count):
            self.voice.put(window)
            while self.voice.advance(64):
                pass

    def flushes(self) -> None:
        self.voice.put(link.Flush(1))
        while self.voice.advance(64):
            pass

    def urgency(self) -> int | None:
        due = self.voice.due()
        return due[0] if due else None

    def out(self, urgency: int) -> Job:
        """A job of that urgency, which has begun and has not ended."""
        assert self.urgency() == urgency
        job = self.voice.work()
        assert job is not None
        return job

    def done(self, job: Job) -> None:
        self.voice.decoded(job, job.decode())


@pytest.fixture
def person() -> Person:
    """One who speaks, and whose partial is out: others keep the core from it."""
    person = Person()
    speaks(person)
    return person


def speaks(person: Person) -> Job:
    person.hears(SPEECH, 8)
    person.done(person.out(START))
    person.hears(SPEECH, 40)
    job = person.out(GO_ON)
    assert person.urgency() is None
    return job


def test_a_flush_after_a_pause_is_answered_from_what_is_there_whatever_is_out(person: Person):
    person.hears(SILENCE, 2)
    person.done(person.out(SETTLE))
    person.hears(SILENCE, 7)
    person.flushes()
    assert person.urgency() == INSTANT
    assert person.voice.work() is None
    assert isinstance(person.said[-1], link.Done)
    assert person.said[-1].text == "w0 w1"


def test_a_flush_does_not_wait_for_a_partial(person: Person):
    person.flushes()
    person.done(person.out(FLUSH))
    assert isinstance(person.said[-1], link.Done)


def test_the_end_of_a_segment_does_not_wait_for_a_partial(person: Person):
    person.hears(SILENCE, 60)
    person.done(person.out(END))
    assert person.said[-1] == link.Heard(1, 0, "w0 w1", stable=True)


def test_a_partial_that_comes_late_is_not_told():
    person = Person()
    late = speaks(person)
    person.hears(SILENCE, 2)
    person.done(person.out(SETTLE))
    told = len(person.said)
    person.done(late)
    person.hears(SPEECH, 2)
    assert len(person.said) == told
    person.hears(SPEECH, 20)
    person.done(person.out(GO_ON))
    assert len(person.said) > told


def test_the_next_utterance_begins_while_a_partial_of_the_last_one_is_out():
    person = Person()
    late = speaks(person)
    person.flushes()
    person.done(person.out(FLUSH))
    person.hears(SPEECH, 8)
    person.done(person.out(START))
    told = list(person.said)
    person.hears(SPEECH, 40)
    assert person.urgency() is None  # one partial at a time
    person.done(late)
    assert person.said == told
    person.done(person.out(GO_ON))
    assert person.said[-1].text == "w0 w1"


def test_an_incremental_engine_is_asked_one_thing_at_a_time():
    person = Person(incremental=True)
    partial = speaks(person)
    person.hears(SILENCE, 2)
    assert person.urgency() is None
    person.done(partial)
    assert person.urgency() == SETTLE
