"""sherpa-onnx, models that hear while one speaks: zipformer and NeMo transducers, paraformer, CTC.

They take each sample once, so a hypothesis costs only what is new. Hot words and the like are `options` in stt.json,
handed to the library as they are.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import sherpa_onnx

from svc.errors import SpeechFailed
from svc.speech.link import Details
from svc.speech.model import Model
from svc.speech.resample import Samples

THREADS = 1
TAIL = np.zeros(8000, np.float32)
"""Silence that pushes the last word through the model's look-ahead."""


def load(model: Model) -> Online:
    """Loads the model; raises SpeechFailed for a family that is not known."""
    return Online(model)


class Online:
    """One model."""

    incremental = True

    def __init__(self, model: Model) -> None:
        self._recognizer = _make(model)

    def begin(self, language: str | None) -> Hearing:
        """A segment; the model's language is what it was trained on."""
        return Hearing(self._recognizer)


class Hearing:
    """One segment: a stream of the library, and how many samples it has had."""

    details = Details()
    """The library tells no probabilities."""

    def __init__(self, recognizer: Any) -> None:
        self._recognizer = recognizer
        self._stream = recognizer.create_stream()
        self._fed = 0

    def text(self, samples: Samples) -> str:
        """Feeds what is new."""
        if len(samples) < self._fed:  # the segment was cut before what was heard already
            self._stream, self._fed = self._recognizer.create_stream(), 0
        self._stream.accept_waveform(16000, samples[self._fed :])
        self._fed = len(samples)
        return self._decode()

    def final(self, samples: Samples) -> str:
        """Feeds the rest, and ends the stream."""
        self.text(samples)
        self._stream.accept_waveform(16000, TAIL)
        self._stream.input_finished()
        return self._decode()

    def _decode(self) -> str:
        while self._recognizer.is_ready(self._stream):
            self._recognizer.decode_stream(self._stream)
        text: str = self._recognizer.get_result(self._stream)
        return text.strip()


def _make(model: Model) -> Any:
    maker = sherpa_onnx.OnlineRecognizer
    files, extra = model.files, {"num_threads": THREADS, **model.options}
    match model.family:
        case "transducer":
            return maker.from_transducer(files["tokens"], files["encoder"], files["decoder"], files["joiner"], **extra)
        case "paraformer":
            return maker.from_paraformer(files["tokens"], files["encoder"], files["decoder"], **extra)
        case "zipformer-ctc":
            return maker.from_zipformer2_ctc(files["tokens"], files["model"], **extra)
        case "nemo-ctc":
            return maker.from_nemo_ctc(files["tokens"], files["model"], **extra)
    raise SpeechFailed(f"The engine sherpa-online has no family {model.family!r}.")
