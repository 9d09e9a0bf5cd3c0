"""One voice in a worker: audio in, hypotheses out. It says what work is due; the worker says when it is done.

audio -> floats at 16 kHz -> windows -> endpointer -> the open segment -> engine -> stable prefix -> Heard
flush -> (the open segment, unless it was decoded since its last word) -> Done

Work by urgency: what takes no engine, a flush, the end of a segment, silence (so that a flush finds its answer there),
a partial. What takes the engine is a Job: it is run elsewhere, while more audio comes in. Two of a voice may be out: a
partial, which takes long when others come first, and what somebody waits for, which does not wait for that partial.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import numpy as np

from svc.speech.audio import Format
from svc.speech.detector import Detector
from svc.speech.endpointer import CAP, PRE_ROLL, WINDOW, WINDOWS_PER_SECOND, Endpointer
from svc.speech.engines.base import Engine
from svc.speech.link import Details, Done, Flush, FromWorker, Heard, Reset, Segment, Taken
from svc.speech.prefix import StablePrefix, join
from svc.speech.resample import Resampler, Samples, mono

SETTLED, KEPT = 2, 6
"""Windows of silence after which a segment is decoded ahead of a flush; and that are decoded with it at most. The
detector takes up to 70 ms after a word for speech, so that the first is after about 130 ms."""
TAIL, WHOLE = 2, 4
"""Windows after the last word that a hypothesis has to cover to answer a flush; and to be a segment's last."""
FIRST = 7
"""Windows of speech before the first hypothesis."""
MIN_SPEECH = 3
"""Windows of speech without which a segment is a click, and not decoded."""
STEP, GROWTH, SHARE = 0.3, 0.1, 1.5
"""A partial is due after so many seconds, so much of the segment's length, so many times what the last one took."""

INSTANT, FLUSH, END, SETTLE, START, GO_ON = range(6)
"""Urgency of work; less is sooner. INSTANT takes no engine."""


class Job(NamedTuple):
    """What takes the engine: call `decode` in any thread, then the voice's `decoded` with the text in its own."""

    voice: Voice
    decode: Callable[[], str]
    then: Callable[[str | None], None]
    usual: bool
    """A partial that nobody waits for: neither the first of its segment, nor what a flush may find."""


class Voice:
    """Not thread-safe: all but `Job.decode` happens in one thread."""

    def __init__(
        self,
        number: int,
        engine: Engine,
        detector: Detector,
        *,
        emit: Callable[[FromWorker], None],
        vad: bool = True,
        language: str | None = None,
        format_: Format | None = None,
        live: bool = True,
    ) -> None:
        self.number = number
        self.detector = detector
        self._engine, self._language, self._emit, self._live = engine, language, emit, live
        self._format = format_ or Format()
        self._resampler = Resampler(self._format.rate)
        self._inbox: deque[bytes | Flush | Reset] = deque()
        self._rest: Samples = np.zeros(0, np.float32)
        self._endpointer = Endpointer(skip_silence=vad)
        self._before: deque[Samples] = deque(maxlen=PRE_ROLL)
        self._samples: Samples = np.zeros((CAP + PRE_ROLL + 1) * WINDOW, np.float32)
        self._epoch = 0
        self._awaited = self._guessing = False
        """A job that somebody waits for is out; a partial is."""
        self._clear()
        self._begin_segment()

    def _clear(self) -> None:
        """A new utterance."""
        self._said = ""
        self._chunks = 0
        self._segments: list[Segment] = []
        self._position = 0
        self._flushing = False
        self._ended: Samples | None = None
        """The segment that has ended and is not decoded."""
        self._touched = time.monotonic()

    def _begin_segment(self) -> None:
        self._hearing = self._engine.begin(self._language)
        self._prefix = StablePrefix()
        self._decoded = 0
        """Windows that the newest hypothesis has, or will have; those of the newest that is known."""
        self._known = 0
        self._cost = 0.0

    # what comes in

    def put(self, item: bytes | Flush | Reset) -> None:
        """Audio, or a message, in the order of the session's frames."""
        if isinstance(item, Reset):  # audio that nobody asks for any more
            while self._inbox and isinstance(self._inbox[-1], bytes):
                self._emit(Taken(self.number, len(self._inbox.pop())))  # type: ignore[arg-type]
        self._inbox.append(item)

    def advance(self, windows: int) -> bool:
        """Works through at most so many windows of what came in; whether there was anything to do."""
        worked = False
        while windows and not self._flushing and self._ended is None:
            if len(self._rest) >= WINDOW:
                window, self._rest = self._rest[:WINDOW], self._rest[WINDOW:]
                self._hear(window)
                windows -= 1
            elif self._inbox:
                self._take(self._inbox.popleft())
            else:
                break
            worked = True
        return worked

    def _take(self, item: bytes | Flush | Reset) -> None:
        if isinstance(item, bytes):
            self._rest = np.concatenate((self._rest, self._resampler.push(mono(item, self._format))))
            self._emit(Taken(self.number, len(item)))
        elif isinstance(item, Flush):
            if not self._live:
                self._rest = np.concatenate((self._rest, self._resampler.finish()))
                self._inbox.appendleft(item) if len(self._rest) >= WINDOW else self._last_window()
            else:
                self._last_window()
        else:
            self._epoch += 1
            self._forget()

    def _last_window(self) -> None:
        """What is less than a window is filled up with silence; then the utterance is over."""
        if len(self._rest):
            window = np.zeros(WINDOW, np.float32)
            window[: len(self._rest)] = self._rest
            self._rest = self._rest[:0]
            self._hear(window)
        self._flushing = True

    def _forget(self) -> None:
        self._rest = self._rest[:0]
        self._before.clear()
        self._endpointer.reset()
        self._clear()
        self._begin_segment()

    def _hear(self, window: Samples) -> None:
        pointer = self._endpointer
        self._position += 1
        verdict = pointer.push(self.detector.hear(window), float(np.dot(window, window)))
        if verdict == "skip":
            self._before.append(window)
            return
        if verdict == "begin":
            pointer.begun(len(self._before))
            for place, before in enumerate(self._before):
                self._samples[place * WINDOW : (place + 1) * WINDOW] = before
            self._before.clear()
        self._samples[(pointer.length - 1) * WINDOW : pointer.length * WINDOW] = window
        if verdict == "end":
            self._end()

    def _end(self) -> None:
        pointer = self._endpointer
        length, cut, worthy = pointer.length, pointer.cut, pointer.speech >= MIN_SPEECH
        kept = min(cut, self._worth())
        self._span = (self._position - length, self._position - length + kept)
        self._covered = cut == length and self._covers(self._known, WHOLE)
        if worthy:
            self._ended = self._samples[: kept * WINDOW].copy()
        tail = self._samples[cut * WINDOW : length * WINDOW].copy()
        count = pointer.restart()
        if count:
            self._samples[: len(tail)] = tail
        else:
            silence = self._samples[: length * WINDOW] if not len(tail) else tail
            windows = silence[-PRE_ROLL * WINDOW :].reshape(-1, WINDOW)
            self._before.extend(row.copy() for row in windows)
        if not worthy:
            self._begin_segment()

    def _worth(self) -> int:
        """The windows of the open segment, without most of the silence at its end: models invent words for it."""
        pointer = self._endpointer
        return pointer.length - max(0, pointer.silence - KEPT)

    def _covers(self, length: int, tail: int) -> bool:
        """Whether a hypothesis of so many windows has heard the last word, and a little after it."""
        pointer = self._endpointer
        return bool(length) and length >= pointer.length - pointer.silence + tail

    # what is due

    def due(self) -> tuple[int, float] | None:
        """How urgent the next work is, and since when the voice waits; None when there is none."""
        pointer = self._endpointer
        if self._flushing and self._ended is None and (pointer.speech < MIN_SPEECH or self._covers(self._known, TAIL)):
            return INSTANT, self._touched  # whatever is still being decoded comes too late
        if self._awaited or (self._guessing and self._engine.incremental):
            return None
        if self._ended is not None:
            urgency = INSTANT if self._covered else END
            return (urgency if self._live else GO_ON), self._touched
        if self._flushing:
            return (FLUSH if self._live else GO_ON), self._touched
        if not self._live or self._inbox or pointer.speech < MIN_SPEECH or self._covers(self._decoded, TAIL):
            return None  # with more to come at once, a hypothesis would be out of date when it is made
        if pointer.silence >= SETTLED:
            return SETTLE, self._touched
        if pointer.speech < FIRST:
            return None
        if not self._decoded:
            return START, self._touched
        if self._guessing:
            return None
        new = (pointer.length - self._decoded) / WINDOWS_PER_SECOND
        wait = max(STEP, GROWTH * pointer.length / WINDOWS_PER_SECOND, SHARE * self._cost)
        return (GO_ON, self._touched) if new >= wait else None

    def work(self) -> Job | None:
        """Does what is due; what takes the engine is given back, to be run."""
        self._touched = time.monotonic()
        if self._ended is not None:
            return self._close(self._ended)
        if self._flushing:
            return self._finish()
        return self._guess(usual=bool(self._decoded) and self._endpointer.silence < SETTLED)

    def work_here(self) -> None:
        """Does what is due, engine and all, in this thread. What the engine raises goes on to the caller."""
        if job := self.work():
            self.decoded(job, job.decode())

    def decoded(self, job: Job, text: str | None) -> None:
        """What the engine said to a job; None when it failed."""
        if job.usual:
            self._guessing = False
        else:
            self._awaited = False
        job.then(text)

    def _job(
        self,
        decode: Callable[[Samples], str],
        samples: Samples,
        then: Callable[[str | None], None],
        *,
        usual: bool = False,
    ) -> Job:
        if usual:
            self._guessing = True
        else:
            self._awaited = True
        self._chunks += 1
        return Job(self, partial(decode, samples), then, usual)

    def _guess(self, *, usual: bool) -> Job:
        known = self._decoded = self._endpointer.length
        length, prefix, begun = self._worth(), self._prefix, time.monotonic()

        def then(text: str | None) -> None:
            if self._prefix is not prefix:
                return  # the segment is over
            self._cost = time.monotonic() - begun
            if text is not None and known > self._known:  # else one of more audio has overtaken it
                self._known = known
                self._tell(prefix, length / WINDOWS_PER_SECOND, text)

        return self._job(self._hearing.text, self._samples[: length * WINDOW].copy(), then, usual=usual)

    def _tell(self, prefix: StablePrefix, end: float, text: str) -> None:
        before = prefix.stable
        prefix.add(end, text)
        if prefix.stable != before:
            self._emit(Heard(self.number, self._epoch, join(self._said, prefix.stable), True))
        if text := join(self._said, prefix.text):
            self._emit(Heard(self.number, self._epoch, text, False))

    def _close(self, samples: Samples) -> Job | None:
        """The segment that has ended."""

        def then(text: str | None) -> None:
            self._ended = None
            if self._conclude(text, self._span):
                self._emit(Heard(self.number, self._epoch, self._said, True))

        if self._covered:
            then(None)
            return None
        return self._job(self._hearing.final, samples, then)

    def _conclude(self, text: str | None, span: tuple[int, int]) -> str:
        """The segment's words become part of what was said; with no new text, those of its last hypothesis."""
        prefix, details = self._prefix, self._hearing.details
        self._begin_segment()
        if text is None:
            text, details = prefix.text, Details()
        else:  # a cut may fall before words that are stable already: the next segment begins with them
            self._prefix = StablePrefix(prefix.beyond(text) if self._endpointer.length else ())
        text = prefix.finish(text)
        self._said = join(self._said, text)
        if text:
            start, end = (round(place * 1000 / WINDOWS_PER_SECOND) for place in span)
            after = self._segments[-1].end if self._segments else 0  # the pre-roll may reach into the last one
            self._segments.append(Segment(max(start, after), end, text.strip(), details))
        return text

    def _finish(self) -> Job | None:
        """The utterance is over."""
        pointer = self._endpointer
        if pointer.speech < MIN_SPEECH:
            self._answer()
            return None
        kept = self._worth()
        span = (self._position - pointer.length, self._position - pointer.length + kept)

        def then(text: str | None) -> None:
            self._conclude(text, span)
            self._answer()

        if self._covers(self._known, TAIL):
            then(None)
            return None
        return self._job(self._hearing.final, self._samples[: kept * WINDOW].copy(), then)

    def _answer(self) -> None:
        self._emit(Done(self.number, self._said, self._chunks, tuple(self._segments)))
        self._forget()
