"""faster-whisper, for Whisper models as CTranslate2. A hypothesis costs a whole window of 30 s, so they come seldom."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import faster_whisper

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

    def text(self, samples: Samples) -> str:
        """A quick hypothesis."""
        return self._decode(samples, beam=1)

    def final(self, samples: Samples) -> str:
        """A better one."""
        return self._decode(samples, beam=3)

    def _decode(self, samples: Samples, *, beam: int) -> str:
        segments, _ = self._model.transcribe(
            samples,
            language=self._language,
            beam_size=beam,
            temperature=0.0,
            condition_on_previous_text=False,
            without_timestamps=True,
        )
        return "".join(segment.text for segment in segments).strip()
