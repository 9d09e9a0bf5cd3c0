"""The faster-whisper engine: Whisper models in CTranslate2 format.

A hypothesis costs a whole window of 30 s, so hypotheses are rare.
"""

from __future__ import annotations

from pathlib import Path
from statistics import fmean
from typing import Any

import faster_whisper

from svc.speech.ipc import DecodingDetails, Hypothesis
from svc.speech.model import RecognitionModel
from svc.speech.resample import Samples
from svc.wire.speech import WordTime

COMPUTE_TYPE = "int8"
"""8-bit weights on a CPU: twice as fast as floats, with equal accuracy for speech."""


def load(model: RecognitionModel) -> FasterWhisperEngine:
    """Load the folder of the model's file."""
    return FasterWhisperEngine(model)


class FasterWhisperEngine:
    """A loaded Whisper model."""

    is_incremental = False
    has_word_times = True

    def __init__(self, model: RecognitionModel) -> None:
        folder = str(Path(model.files["model"]).parent)
        options = {"device": "cpu", "compute_type": COMPUTE_TYPE, "cpu_threads": 1, "local_files_only": True}
        self._model = faster_whisper.WhisperModel(folder, **{**options, **model.options})

    def begin_segment(self, language: str | None, *, with_words: bool = False) -> WhisperSegmentDecoder:
        """Return a decoder for a new segment. Without a language the model detects it."""
        return WhisperSegmentDecoder(self._model, language, with_words)


class WhisperSegmentDecoder:
    """The decoder of one segment."""

    def __init__(self, model: Any, language: str | None, with_words: bool) -> None:
        self._model, self._language, self._with_words = model, language, with_words

    def decode_partial(self, samples: Samples) -> Hypothesis:
        """Return a fast hypothesis (greedy search)."""
        return Hypothesis(_join_segments(self._decode(samples, beam_size=1)[0]))

    def decode_final(self, samples: Samples) -> Hypothesis:
        """Return a more accurate hypothesis (beam search)."""
        segments, language = self._decode(samples, beam_size=3, with_words=self._with_words)
        words = _read_word_times(segments) if self._with_words else None
        return Hypothesis(_join_segments(segments), _summarize_segments(segments, language), words)

    def _decode(self, samples: Samples, *, beam_size: int, with_words: bool = False) -> tuple[list[Any], str]:
        segments, info = self._model.transcribe(
            samples,
            language=self._language,
            beam_size=beam_size,
            temperature=0.0,
            condition_on_previous_text=False,
            without_timestamps=True,
            word_timestamps=with_words,
        )
        return list(segments), info.language


def _join_segments(segments: list[Any]) -> str:
    return "".join(segment.text for segment in segments).strip()


def _read_word_times(segments: list[Any]) -> tuple[WordTime, ...]:
    return tuple(
        WordTime(word.word.strip(), round(float(word.start) * 1000), round(float(word.end) * 1000))
        for segment in segments
        for word in segment.words or ()
    )


def _summarize_segments(segments: list[Any], language: str) -> DecodingDetails:
    """Average the details of the segments. Audio that fits into one model window is one segment."""
    if not segments:
        return DecodingDetails()
    return DecodingDetails(
        tuple(token for segment in segments for token in segment.tokens),
        float(segments[0].temperature or 0.0),
        fmean(segment.avg_logprob for segment in segments),
        fmean(segment.no_speech_prob for segment in segments),
        language,
    )
