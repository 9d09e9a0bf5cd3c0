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

from svc.speech.audio import AudioFormat
from svc.speech.endpointer import (
    MAX_SEGMENT_WINDOWS,
    PRE_ROLL_WINDOWS,
    WINDOW_SAMPLES,
    WINDOWS_PER_SECOND,
    Endpointer,
)
from svc.speech.engines.base import RecognitionEngine
from svc.speech.ipc import (
    AudioProcessed,
    DecodingDetails,
    FinalTranscript,
    FlushStream,
    RecognitionHypothesis,
    ResetStream,
    TranscriptSegment,
    WorkerToGateway,
)
from svc.speech.resample import Resampler, Samples, to_mono_floats
from svc.speech.stable_prefix import StablePrefix, join_texts
from svc.speech.vad import VoiceActivityDetector

PREDECODE_SILENCE_WINDOWS, MAX_TRAILING_SILENCE_WINDOWS = 2, 6
"""Windows of silence after which a segment is decoded ahead of a flush; and that are decoded with it at most. The
detector takes up to 70 ms after a word for speech, so that the first is after about 130 ms."""
FLUSH_TAIL_WINDOWS, SEGMENT_TAIL_WINDOWS = 2, 4
"""Windows after the last word that a hypothesis has to cover to answer a flush; and to be a segment's last."""
FIRST_HYPOTHESIS_WINDOWS = 7
"""Windows of speech before the first hypothesis."""
MIN_SPEECH_WINDOWS = 3
"""Windows of speech without which a segment is a click, and not decoded."""
MIN_PARTIAL_INTERVAL_SECONDS, PARTIAL_INTERVAL_LENGTH_RATIO, PARTIAL_INTERVAL_COST_RATIO = 0.3, 0.1, 1.5
"""A partial is due after so many seconds, so much of the segment's length, so many times what the last one took."""

URGENCY_INSTANT, URGENCY_FLUSH, URGENCY_SEGMENT_END, URGENCY_PREDECODE, URGENCY_FIRST_PARTIAL, URGENCY_NEXT_PARTIAL = (
    range(6)
)
"""Urgency of work; less is sooner. INSTANT takes no engine."""


class DecodeJob(NamedTuple):
    """What takes the engine: call `decode` in any thread, then the voice's `decoded` with the text in its own."""

    stream: RecognitionStream
    decode: Callable[[], str]
    on_decoded: Callable[[str | None], None]
    is_background: bool
    """A partial that nobody waits for: neither the first of its segment, nor what a flush may find."""


class RecognitionStream:
    """Not thread-safe: all but `Job.decode` happens in one thread."""

    def __init__(
        self,
        stream_id: int,
        engine: RecognitionEngine,
        detector: VoiceActivityDetector,
        *,
        emit: Callable[[WorkerToGateway], None],
        vad: bool = True,
        language: str | None = None,
        format_: AudioFormat | None = None,
        live: bool = True,
    ) -> None:
        self.stream_id = stream_id
        self.detector = detector
        self._engine, self._language, self._emit, self._live = engine, language, emit, live
        self._format = format_ or AudioFormat()
        self._resampler = Resampler(self._format.rate)
        self._inbox: deque[bytes | FlushStream | ResetStream] = deque()
        self._pending_samples: Samples = np.zeros(0, np.float32)
        self._endpointer = Endpointer(skip_silence=vad)
        self._pre_roll: deque[Samples] = deque(maxlen=PRE_ROLL_WINDOWS)
        self._segment_samples: Samples = np.zeros(
            (MAX_SEGMENT_WINDOWS + PRE_ROLL_WINDOWS + 1) * WINDOW_SAMPLES, np.float32
        )
        self._epoch = 0
        self._has_urgent_job = self._has_background_job = False
        """A job that somebody waits for is out; a partial is."""
        self._reset_utterance()
        self._begin_segment()

    def _reset_utterance(self) -> None:
        """A new utterance."""
        self._transcript = ""
        self._chunk_count = 0
        self._segments: list[TranscriptSegment] = []
        self._position = 0
        self._is_flushing = False
        self._ended_segment: Samples | None = None
        """The segment that has ended and is not decoded."""
        self._last_work_at = time.monotonic()

    def _begin_segment(self) -> None:
        self._segment_decoder = self._engine.begin_segment(self._language)
        self._stable_prefix = StablePrefix()
        self._scheduled_windows = 0
        """Windows that the newest hypothesis has, or will have; those of the newest that is known."""
        self._decoded_windows = 0
        self._decode_seconds = 0.0

    # what comes in

    def enqueue(self, item: bytes | FlushStream | ResetStream) -> None:
        """Audio, or a message, in the order of the session's frames."""
        if isinstance(item, ResetStream):  # audio that nobody asks for any more
            while self._inbox and isinstance(self._inbox[-1], bytes):
                self._emit(AudioProcessed(self.stream_id, len(self._inbox.pop())))  # type: ignore[arg-type]
        self._inbox.append(item)

    def advance(self, max_windows: int) -> bool:
        """Works through at most so many windows of what came in; whether there was anything to do."""
        did_work = False
        while max_windows and not self._is_flushing and self._ended_segment is None:
            if len(self._pending_samples) >= WINDOW_SAMPLES:
                window, self._pending_samples = (
                    self._pending_samples[:WINDOW_SAMPLES],
                    self._pending_samples[WINDOW_SAMPLES:],
                )
                self._process_window(window)
                max_windows -= 1
            elif self._inbox:
                self._process_item(self._inbox.popleft())
            else:
                break
            did_work = True
        return did_work

    def _process_item(self, item: bytes | FlushStream | ResetStream) -> None:
        if isinstance(item, bytes):
            self._pending_samples = np.concatenate(
                (self._pending_samples, self._resampler.push(to_mono_floats(item, self._format)))
            )
            self._emit(AudioProcessed(self.stream_id, len(item)))
        elif isinstance(item, FlushStream):
            if not self._live:
                self._pending_samples = np.concatenate((self._pending_samples, self._resampler.finish()))
                self._inbox.appendleft(item) if len(
                    self._pending_samples
                ) >= WINDOW_SAMPLES else self._flush_last_window()
            else:
                self._flush_last_window()
        else:
            self._epoch += 1
            self._discard_utterance()

    def _flush_last_window(self) -> None:
        """What is less than a window is filled up with silence; then the utterance is over."""
        if len(self._pending_samples):
            window = np.zeros(WINDOW_SAMPLES, np.float32)
            window[: len(self._pending_samples)] = self._pending_samples
            self._pending_samples = self._pending_samples[:0]
            self._process_window(window)
        self._is_flushing = True

    def _discard_utterance(self) -> None:
        self._pending_samples = self._pending_samples[:0]
        self._pre_roll.clear()
        self._endpointer.reset()
        self._reset_utterance()
        self._begin_segment()

    def _process_window(self, window: Samples) -> None:
        endpointer = self._endpointer
        self._position += 1
        decision = endpointer.push(self.detector.is_speech(window), float(np.dot(window, window)))
        if decision == "skip":
            self._pre_roll.append(window)
            return
        if decision == "begin":
            endpointer.add_pre_roll(len(self._pre_roll))
            for index, earlier_window in enumerate(self._pre_roll):
                self._segment_samples[index * WINDOW_SAMPLES : (index + 1) * WINDOW_SAMPLES] = earlier_window
            self._pre_roll.clear()
        self._segment_samples[(endpointer.length - 1) * WINDOW_SAMPLES : endpointer.length * WINDOW_SAMPLES] = window
        if decision == "end":
            self._end_segment()

    def _end_segment(self) -> None:
        endpointer = self._endpointer
        length, cut, has_speech = (
            endpointer.length,
            endpointer.cut_length,
            endpointer.speech_windows >= MIN_SPEECH_WINDOWS,
        )
        decodable = min(cut, self._decodable_length())
        self._ended_span = (self._position - length, self._position - length + decodable)
        self._ended_is_covered = cut == length and self._covers_last_word(self._decoded_windows, SEGMENT_TAIL_WINDOWS)
        if has_speech:
            self._ended_segment = self._segment_samples[: decodable * WINDOW_SAMPLES].copy()
        tail = self._segment_samples[cut * WINDOW_SAMPLES : length * WINDOW_SAMPLES].copy()
        carried_windows = endpointer.restart()
        if carried_windows:
            self._segment_samples[: len(tail)] = tail
        else:
            silence = self._segment_samples[: length * WINDOW_SAMPLES] if not len(tail) else tail
            windows = silence[-PRE_ROLL_WINDOWS * WINDOW_SAMPLES :].reshape(-1, WINDOW_SAMPLES)
            self._pre_roll.extend(row.copy() for row in windows)
        if not has_speech:
            self._begin_segment()

    def _decodable_length(self) -> int:
        """The windows of the open segment, without most of the silence at its end: models invent words for it."""
        endpointer = self._endpointer
        return endpointer.length - max(0, endpointer.trailing_silence - MAX_TRAILING_SILENCE_WINDOWS)

    def _covers_last_word(self, length: int, tail_windows: int) -> bool:
        """Whether a hypothesis of so many windows has heard the last word, and a little after it."""
        endpointer = self._endpointer
        return bool(length) and length >= endpointer.length - endpointer.trailing_silence + tail_windows

    # what is due

    def pending_work(self) -> tuple[int, float] | None:
        """How urgent the next work is, and since when the voice waits; None when there is none."""
        endpointer = self._endpointer
        if (
            self._is_flushing
            and self._ended_segment is None
            and (
                endpointer.speech_windows < MIN_SPEECH_WINDOWS
                or self._covers_last_word(self._decoded_windows, FLUSH_TAIL_WINDOWS)
            )
        ):
            return URGENCY_INSTANT, self._last_work_at  # whatever is still being decoded comes too late
        if self._has_urgent_job or (self._has_background_job and self._engine.is_incremental):
            return None
        if self._ended_segment is not None:
            urgency = URGENCY_INSTANT if self._ended_is_covered else URGENCY_SEGMENT_END
            return (urgency if self._live else URGENCY_NEXT_PARTIAL), self._last_work_at
        if self._is_flushing:
            return (URGENCY_FLUSH if self._live else URGENCY_NEXT_PARTIAL), self._last_work_at
        if (
            not self._live
            or self._inbox
            or endpointer.speech_windows < MIN_SPEECH_WINDOWS
            or self._covers_last_word(self._scheduled_windows, FLUSH_TAIL_WINDOWS)
        ):
            return None  # with more to come at once, a hypothesis would be out of date when it is made
        if endpointer.trailing_silence >= PREDECODE_SILENCE_WINDOWS:
            return URGENCY_PREDECODE, self._last_work_at
        if endpointer.speech_windows < FIRST_HYPOTHESIS_WINDOWS:
            return None
        if not self._scheduled_windows:
            return URGENCY_FIRST_PARTIAL, self._last_work_at
        if self._has_background_job:
            return None
        new_seconds = (endpointer.length - self._scheduled_windows) / WINDOWS_PER_SECOND
        interval = max(
            MIN_PARTIAL_INTERVAL_SECONDS,
            PARTIAL_INTERVAL_LENGTH_RATIO * endpointer.length / WINDOWS_PER_SECOND,
            PARTIAL_INTERVAL_COST_RATIO * self._decode_seconds,
        )
        return (URGENCY_NEXT_PARTIAL, self._last_work_at) if new_seconds >= interval else None

    def start_work(self) -> DecodeJob | None:
        """Does what is due; what takes the engine is given back, to be run."""
        self._last_work_at = time.monotonic()
        if self._ended_segment is not None:
            return self._close_segment(self._ended_segment)
        if self._is_flushing:
            return self._finish_utterance()
        return self._create_partial_job(
            is_background=bool(self._scheduled_windows)
            and self._endpointer.trailing_silence < PREDECODE_SILENCE_WINDOWS
        )

    def run_work_inline(self) -> None:
        """Does what is due, engine and all, in this thread. What the engine raises goes on to the caller."""
        if job := self.start_work():
            self.complete_job(job, job.decode())

    def complete_job(self, job: DecodeJob, text: str | None) -> None:
        """What the engine said to a job; None when it failed."""
        if job.is_background:
            self._has_background_job = False
        else:
            self._has_urgent_job = False
        job.on_decoded(text)

    def _create_job(
        self,
        decode: Callable[[Samples], str],
        samples: Samples,
        on_decoded: Callable[[str | None], None],
        *,
        is_background: bool = False,
    ) -> DecodeJob:
        if is_background:
            self._has_background_job = True
        else:
            self._has_urgent_job = True
        self._chunk_count += 1
        return DecodeJob(self, partial(decode, samples), on_decoded, is_background)

    def _create_partial_job(self, *, is_background: bool) -> DecodeJob:
        scheduled = self._scheduled_windows = self._endpointer.length
        length, prefix, started_at = self._decodable_length(), self._stable_prefix, time.monotonic()

        def then(text: str | None) -> None:
            if self._stable_prefix is not prefix:
                return  # the segment is over
            self._decode_seconds = time.monotonic() - started_at
            if text is not None and scheduled > self._decoded_windows:  # else one of more audio has overtaken it
                self._decoded_windows = scheduled
                self._emit_hypothesis(prefix, length / WINDOWS_PER_SECOND, text)

        return self._create_job(
            self._segment_decoder.decode_partial,
            self._segment_samples[: length * WINDOW_SAMPLES].copy(),
            then,
            is_background=is_background,
        )

    def _emit_hypothesis(self, prefix: StablePrefix, end: float, text: str) -> None:
        previous_stable = prefix.stable
        prefix.add_hypothesis(end, text)
        if prefix.stable != previous_stable:
            self._emit(
                RecognitionHypothesis(self.stream_id, self._epoch, join_texts(self._transcript, prefix.stable), True)
            )
        if text := join_texts(self._transcript, prefix.text):
            self._emit(RecognitionHypothesis(self.stream_id, self._epoch, text, False))

    def _close_segment(self, samples: Samples) -> DecodeJob | None:
        """The segment that has ended."""

        def then(text: str | None) -> None:
            self._ended_segment = None
            if self._finalize_segment(text, self._ended_span):
                self._emit(RecognitionHypothesis(self.stream_id, self._epoch, self._transcript, True))

        if self._ended_is_covered:
            then(None)
            return None
        return self._create_job(self._segment_decoder.decode_final, samples, then)

    def _finalize_segment(self, text: str | None, span: tuple[int, int]) -> str:
        """The segment's words become part of what was said; with no new text, those of its last hypothesis."""
        prefix, details = self._stable_prefix, self._segment_decoder.details
        self._begin_segment()
        if text is None:
            text, details = prefix.text, DecodingDetails()
        else:  # a cut may fall before words that are stable already: the next segment begins with them
            self._stable_prefix = StablePrefix(prefix.stable_words_after(text) if self._endpointer.length else ())
        text = prefix.finish(text)
        self._transcript = join_texts(self._transcript, text)
        if text:
            start, end = (round(place * 1000 / WINDOWS_PER_SECOND) for place in span)
            earliest_start = (
                self._segments[-1].end_ms if self._segments else 0
            )  # the pre-roll may reach into the last one
            self._segments.append(TranscriptSegment(max(start, earliest_start), end, text.strip(), details))
        return text

    def _finish_utterance(self) -> DecodeJob | None:
        """The utterance is over."""
        endpointer = self._endpointer
        if endpointer.speech_windows < MIN_SPEECH_WINDOWS:
            self._emit_final()
            return None
        decodable = self._decodable_length()
        span = (self._position - endpointer.length, self._position - endpointer.length + decodable)

        def then(text: str | None) -> None:
            self._finalize_segment(text, span)
            self._emit_final()

        if self._covers_last_word(self._decoded_windows, FLUSH_TAIL_WINDOWS):
            then(None)
            return None
        return self._create_job(
            self._segment_decoder.decode_final, self._segment_samples[: decodable * WINDOW_SAMPLES].copy(), then
        )

    def _emit_final(self) -> None:
        self._emit(FinalTranscript(self.stream_id, self._transcript, self._chunk_count, tuple(self._segments)))
        self._discard_utterance()
