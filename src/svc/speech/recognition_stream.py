"""One audio stream in a worker: audio in, hypotheses out. It reports pending work, and the worker schedules it.

audio -> floats at 16 kHz -> windows -> endpointer -> open segment -> engine -> stable prefix -> hypothesis
flush -> (the open segment, unless it is decoded up to its last word) -> final

Work by urgency: work without the engine, a flush, a first partial, the end of a segment, a decode during silence, a
later partial. A flush uses the result of the decode during silence. Work that needs the engine is a DecodeJob, which
runs in another thread while audio comes in. A stream can have two jobs: a background partial, and an urgent job that
does not wait for it.
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
    FinalTranscript,
    FlushStream,
    Hypothesis,
    RecognitionHypothesis,
    ResetStream,
    TranscriptSegment,
    WorkerToGateway,
)
from svc.speech.resample import Resampler, Samples, to_mono_floats
from svc.speech.stable_prefix import StablePrefix, join_texts
from svc.speech.vad import VoiceActivityDetector
from svc.wire.speech import WordTime

PREDECODE_SILENCE_WINDOWS, MAX_TRAILING_SILENCE_WINDOWS = 4, 6
"""Silence after which a segment is decoded before a flush, and silence that is decoded with it at most, in windows.
The detector extends speech by up to 70 ms, so the first is about 200 ms. It covers the end of a segment too."""
FLUSH_TAIL_WINDOWS, SEGMENT_TAIL_WINDOWS = 2, 4
"""Windows after the last word that a hypothesis must cover to satisfy a flush, or to be the last of a segment."""
FIRST_HYPOTHESIS_WINDOWS = 7
"""Windows of speech before the first hypothesis."""
MIN_SPEECH_WINDOWS = 3
"""Minimum speech in a segment, in windows. A shorter one is a click and is not decoded."""
MIN_PARTIAL_INTERVAL_SECONDS, PARTIAL_INTERVAL_LENGTH_RATIO, PARTIAL_INTERVAL_COST_RATIO = 0.3, 0.1, 1.5
"""A partial is due after the longest of: an interval, a share of the segment, a multiple of the last decode time."""

URGENCY_INSTANT, URGENCY_FLUSH, URGENCY_FIRST_PARTIAL, URGENCY_SEGMENT_END, URGENCY_PREDECODE, URGENCY_NEXT_PARTIAL = (
    range(6)
)
"""The urgency of work. A lower value is more urgent. URGENCY_INSTANT does not need the engine."""


class DecodeJob(NamedTuple):
    """Work for the engine. Call `decode` in any thread, then the stream's `complete_job` in its own thread."""

    stream: RecognitionStream
    decode: Callable[[], Hypothesis]
    on_decoded: Callable[[Hypothesis | None], None]
    is_background: bool
    """Whether nothing waits for it: neither the first partial of a segment nor a decode that a flush may use."""


class RecognitionStream:
    """One audio stream. Not thread-safe: only `DecodeJob.decode` may run in another thread."""

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
        with_words: bool = False,
    ) -> None:
        self.stream_id = stream_id
        self.detector = detector
        self._engine, self._language, self._emit, self._live = engine, language, emit, live
        self._with_words = with_words
        self._format = format_ or AudioFormat()
        self._resampler = Resampler(self._format.rate)
        self._inbox: deque[bytes | FlushStream | ResetStream] = deque()
        self._pending_samples: Samples = np.zeros(0, np.float32)
        self._is_input_finished = False
        self._endpointer = Endpointer(skip_silence=vad)
        self._pre_roll: deque[Samples] = deque(maxlen=PRE_ROLL_WINDOWS)
        self._segment_samples: Samples = np.zeros(
            (MAX_SEGMENT_WINDOWS + PRE_ROLL_WINDOWS + 1) * WINDOW_SAMPLES, np.float32
        )
        self._epoch = 0
        self._has_urgent_job = self._has_background_job = False
        """Whether an urgent job and a background partial are running."""
        self._reset_utterance()
        self._begin_segment()

    def _reset_utterance(self) -> None:
        """Start a new utterance."""
        self._transcript = ""
        self._chunk_count = 0
        self._segments: list[TranscriptSegment] = []
        self._position = 0
        self._is_flushing = False
        self._ended_segment: Samples | None = None
        """The segment that has ended and is not decoded yet."""
        self._last_work_at = time.monotonic()

    def _begin_segment(self) -> None:
        self._segment_decoder = self._engine.begin_segment(self._language, with_words=self._with_words)
        self._last_hypothesis = Hypothesis("")
        self._stable_prefix = StablePrefix()
        self._scheduled_windows = 0
        """Windows in the newest scheduled hypothesis, then windows in the newest completed one."""
        self._decoded_windows = 0
        self._decode_seconds = 0.0

    # input

    def enqueue(self, item: bytes | FlushStream | ResetStream) -> None:
        """Queue audio or a message, in the order of the session."""
        if isinstance(item, ResetStream):  # the queued audio belongs to the discarded utterance
            while self._inbox and isinstance(self._inbox[-1], bytes):
                self._emit(AudioProcessed(self.stream_id, len(self._inbox.pop())))  # type: ignore[arg-type]
        self._inbox.append(item)

    def advance(self, max_windows: int) -> bool:
        """Process up to `max_windows` windows of queued input. Return whether any window was processed."""
        for count in range(max_windows):
            window = self.next_window()
            if window is None:
                return count > 0
            self.process_window(window, self.detector.is_speech(window))
        return True

    def next_window(self) -> Samples | None:
        """Process queued input up to the next window. The caller classifies it and calls `process_window`.

        Return None if the input is processed, or waits until an utterance or a segment is finished.
        """
        while not self._is_flushing and self._ended_segment is None:
            if len(self._pending_samples) >= WINDOW_SAMPLES:
                window, self._pending_samples = (
                    self._pending_samples[:WINDOW_SAMPLES],
                    self._pending_samples[WINDOW_SAMPLES:],
                )
                return window
            if not self._inbox:
                break
            self._process_item(self._inbox.popleft())
        return None

    def _process_item(self, item: bytes | FlushStream | ResetStream) -> None:
        if isinstance(item, bytes):
            self._pending_samples = np.concatenate(
                (self._pending_samples, self._resampler.push(to_mono_floats(item, self._format)))
            )
            self._emit(AudioProcessed(self.stream_id, len(item)))
        elif isinstance(item, ResetStream):
            self._epoch += 1
            self._discard_utterance()
        elif not self._pad_last_window():
            self._is_flushing = True
        else:
            self._inbox.appendleft(item)

    def _pad_last_window(self) -> bool:
        """Pad the audio of the utterance to whole windows. Return whether a window is pending."""
        if not self._live and not self._is_input_finished:
            self._pending_samples = np.concatenate((self._pending_samples, self._resampler.finish()))
            self._is_input_finished = True
        if padding := -len(self._pending_samples) % WINDOW_SAMPLES:
            self._pending_samples = np.concatenate((self._pending_samples, np.zeros(padding, np.float32)))
        return len(self._pending_samples) > 0

    def _discard_utterance(self) -> None:
        self._pending_samples = self._pending_samples[:0]
        self._pre_roll.clear()
        self._endpointer.reset()
        self._reset_utterance()
        self._begin_segment()

    def process_window(self, window: Samples, is_speech: bool) -> None:
        """Process a window of `next_window`."""
        endpointer = self._endpointer
        self._position += 1
        decision = endpointer.push(is_speech, float(np.dot(window, window)))
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
        """Return the length of the open segment without most of its trailing silence: models invent words there."""
        endpointer = self._endpointer
        return endpointer.length - max(0, endpointer.trailing_silence - MAX_TRAILING_SILENCE_WINDOWS)

    def _covers_last_word(self, length: int, tail_windows: int) -> bool:
        """Return whether a hypothesis of `length` windows covers the last word and `tail_windows` after it."""
        endpointer = self._endpointer
        return bool(length) and length >= endpointer.length - endpointer.trailing_silence + tail_windows

    # pending work

    def pending_work(self) -> tuple[int, float] | None:
        """Return the urgency of the next work and the time since which it waits, or None."""
        endpointer = self._endpointer
        if (
            self._is_flushing
            and self._ended_segment is None
            and (
                endpointer.speech_windows < MIN_SPEECH_WINDOWS
                or self._covers_last_word(self._decoded_windows, FLUSH_TAIL_WINDOWS)
            )
        ):
            return URGENCY_INSTANT, self._last_work_at  # the result of a running job is not needed
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
            return None  # more audio is queued: a hypothesis would be outdated immediately
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
        """Do the pending work. Return the job if it needs the engine."""
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
        """Do the pending work in this thread, including the engine's. Exceptions of the engine propagate."""
        if job := self.start_work():
            self.complete_job(job, job.decode())

    def complete_job(self, job: DecodeJob, hypothesis: Hypothesis | None) -> None:
        """Handle the hypothesis of a completed job. None if the engine failed."""
        if job.is_background:
            self._has_background_job = False
        else:
            self._has_urgent_job = False
        job.on_decoded(hypothesis)

    def _create_job(
        self,
        decode: Callable[[Samples], Hypothesis],
        samples: Samples,
        on_decoded: Callable[[Hypothesis | None], None],
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

        def on_decoded(hypothesis: Hypothesis | None) -> None:
            if self._stable_prefix is not prefix:
                return  # the segment is over
            self._decode_seconds = time.monotonic() - started_at
            if hypothesis is not None and scheduled > self._decoded_windows:  # else a newer hypothesis was faster
                self._decoded_windows = scheduled
                self._last_hypothesis = hypothesis
                self._emit_hypothesis(prefix, length / WINDOWS_PER_SECOND, hypothesis.text)

        return self._create_job(
            self._segment_decoder.decode_partial,
            self._segment_samples[: length * WINDOW_SAMPLES].copy(),
            on_decoded,
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
        """Decode the segment that has ended, unless its last hypothesis covers it."""

        def on_decoded(hypothesis: Hypothesis | None) -> None:
            self._ended_segment = None
            if self._finalize_segment(hypothesis, self._ended_span):
                self._emit(RecognitionHypothesis(self.stream_id, self._epoch, self._transcript, True))

        if self._ended_is_covered:
            on_decoded(None)
            return None
        return self._create_job(self._segment_decoder.decode_final, samples, on_decoded)

    def _finalize_segment(self, hypothesis: Hypothesis | None, span: tuple[int, int]) -> str:
        """Append the segment's text to the transcript and return it. Without a hypothesis, use the last one."""
        prefix, last_hypothesis = self._stable_prefix, self._last_hypothesis
        self._begin_segment()
        if hypothesis is None:
            hypothesis, text = last_hypothesis, prefix.text
        else:  # words after the cut may be stable already: they begin the next segment
            text = hypothesis.text
            self._stable_prefix = StablePrefix(prefix.stable_words_after(text) if self._endpointer.length else ())
        text = prefix.finish(text)
        self._transcript = join_texts(self._transcript, text)
        if text:
            start, end = (round(place * 1000 / WINDOWS_PER_SECOND) for place in span)
            earliest_start = (
                self._segments[-1].end_ms if self._segments else 0
            )  # the pre-roll may overlap the previous segment
            words = _shift_words(hypothesis.words, start) if _has_words_of(hypothesis, text) else None
            self._segments.append(
                TranscriptSegment(max(start, earliest_start), end, text.strip(), hypothesis.details, words)
            )
        return text

    def _finish_utterance(self) -> DecodeJob | None:
        """Decode what is left of the utterance and emit the final."""
        endpointer = self._endpointer
        if endpointer.speech_windows < MIN_SPEECH_WINDOWS:
            self._emit_final()
            return None
        decodable = self._decodable_length()
        span = (self._position - endpointer.length, self._position - endpointer.length + decodable)

        def on_decoded(hypothesis: Hypothesis | None) -> None:
            self._finalize_segment(hypothesis, span)
            self._emit_final()

        if self._covers_last_word(self._decoded_windows, FLUSH_TAIL_WINDOWS):
            on_decoded(None)
            return None
        return self._create_job(
            self._segment_decoder.decode_final, self._segment_samples[: decodable * WINDOW_SAMPLES].copy(), on_decoded
        )

    def _emit_final(self) -> None:
        self._emit(FinalTranscript(self.stream_id, self._transcript, self._chunk_count, tuple(self._segments)))
        self._discard_utterance()


def _has_words_of(hypothesis: Hypothesis, text: str) -> bool:
    """Return whether the words with times are those of the text. Stable words may differ from a later hypothesis."""
    joined = " ".join(word.word for word in hypothesis.words or ())
    return hypothesis.words is not None and _letters(joined) == _letters(text)


def _letters(text: str) -> str:
    return "".join(filter(str.isalnum, text)).lower()


def _shift_words(words: tuple[WordTime, ...] | None, milliseconds: int) -> tuple[WordTime, ...]:
    return tuple(WordTime(word.word, word.start_ms + milliseconds, word.end_ms + milliseconds) for word in words or ())
