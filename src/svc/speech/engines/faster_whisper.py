"""faster-whisper, for Whisper models as CTranslate2. A hypothesis costs a whole window of 30 s, so they come seldom."""

from __future__ import annotations

from pathlib import Path
from statistics import fmean
from typing import Any

import faster_whisper

from svc.speech.link import Details
from svc.speech.model import Model
from svc.speech.resample import Samples

COMPUTE = "int8"
"""Weights on a CPU; as good as floats for this, and twice as fast."""


def load(model: Model) -> Whisper:
    """Loads the folder that has the model's file."""
    return Whisper(model)


class Whisper:
    """One model."""

    incremental = False

    def __init__(self, model: Model) -> None:
        folder = str(Path(model.files["model"]).parent)
        options = {"device": "cpu", "compute_type": COMPUTE, "cpu_threads": 1, "local_files_only": True}
        self._model = faster_whisper.WhisperModel(folder, **{**options, **model.options})

    def begin(self, language: str | None) -> Hearing:
        """A segment; without a language the model finds out by itself."""
        return Hearing(self._model, language)


class Hearing:
    """One segment."""

    def __init__(self, model: Any, language: str | None) -> None:
        self._model, self._language = model, language
        self.details = Details()

    def text(self, samples: Samples) -> str:
        """A quick hypothesis."""
        return _text(self._decode(samples, beam=1)[0])

    def final(self, samples: Samples) -> str:
        """A better one."""
        segments, language = self._decode(samples, beam=3)
        self.details = _details(segments, language)
        return _text(segments)

    def _decode(self, samples: Samples, *, beam: int) -> tuple[list[Any], str]:
        segments, about = self._model.transcribe(
            samples,
            language=self._language,
            beam_size=beam,
            temperature=0.0,
            condition_on_previous_text=False,
            without_timestamps=True,
        )
        return list(segments), about.language


def _text(segments: list[Any]) -> str:
    return "".join(segment.text for segment in segments).strip()


def _details(segments: list[Any], language: str) -> Details:
    """Of samples that fit into one window of the model, there is one segment; else the means of all."""
    if not segments:
        return Details()
    return Details(
        tuple(token for segment in segments for token in segment.tokens),
        float(segments[0].temperature or 0.0),
        fmean(segment.avg_logprob for segment in segments),
        fmean(segment.no_speech_prob for segment in segments),
        language,
    )
