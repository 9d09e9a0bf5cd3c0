"""sherpa-onnx, models that hear a whole segment at once: moonshine, whisper, sense-voice, transducers, CTC."""

from __future__ import annotations

from typing import Any

import numpy as np
import sherpa_onnx

from svc.errors import SpeechFailed
from svc.speech.link import Details
from svc.speech.model import Model
from svc.speech.resample import Samples

THREADS = 1
TAIL = np.zeros(5120, np.float32)
"""Silence after a segment: without it, a word that is cut off makes Moonshine repeat itself, or write digits."""


def load(model: Model) -> Offline:
    """Loads the model; raises SpeechFailed for a family that is not known."""
    return Offline(model)


class Offline:
    """One model; it is its own hearing, since each hypothesis is made from the whole segment."""

    incremental = False
    details = Details()
    """The library tells no probabilities."""

    def __init__(self, model: Model) -> None:
        self._recognizer = _make(model)

    def begin(self, language: str | None) -> Offline:
        """These models choose the language by themselves, or have one."""
        return self

    def text(self, samples: Samples) -> str:
        """Decodes the segment."""
        stream = self._recognizer.create_stream()
        stream.accept_waveform(16000, np.concatenate((samples, TAIL)))
        self._recognizer.decode_stream(stream)
        text: str = stream.result.text
        return text.strip()

    final = text


def _make(model: Model) -> Any:
    maker = sherpa_onnx.OfflineRecognizer
    files, extra = model.files, {"num_threads": THREADS, **model.options}
    match model.family:
        case "moonshine":
            return maker.from_moonshine_v2(files["encoder"], files["decoder"], files["tokens"], **extra)
        case "whisper":
            return maker.from_whisper(files["encoder"], files["decoder"], files["tokens"], **extra)
        case "transducer":
            return maker.from_transducer(files["encoder"], files["decoder"], files["joiner"], files["tokens"], **extra)
        case "sense-voice":
            return maker.from_sense_voice(files["model"], files["tokens"], use_itn=True, **extra)
        case "paraformer":
            return maker.from_paraformer(files["model"], files["tokens"], **extra)
        case "nemo-ctc":
            return maker.from_nemo_ctc(files["model"], files["tokens"], **extra)
        case "zipformer-ctc":
            return maker.from_zipformer_ctc(files["model"], files["tokens"], **extra)
    raise SpeechFailed(f"The engine sherpa-offline has no family {model.family!r}.")
