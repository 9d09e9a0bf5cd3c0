"""The sherpa-onnx engine for streaming models: Zipformer and NeMo transducers, Paraformer, CTC.

They decode each sample once, so a hypothesis costs only the new audio. The `options` of stt.json, such as hot words,
are passed to the library unchanged.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import sherpa_onnx

from svc.errors import SpeechFailed
from svc.speech.ipc import DecodingDetails
from svc.speech.model import RecognitionModel
from svc.speech.resample import Samples

INFERENCE_THREADS = 1
TRAILING_SILENCE = np.zeros(8000, np.float32)
"""Silence that moves the last word through the model's look-ahead."""


def load(model: RecognitionModel) -> SherpaOnlineEngine:
    """Load the model. Raises SpeechFailed for an unknown family."""
    return SherpaOnlineEngine(model)


class SherpaOnlineEngine:
    """A loaded model."""

    is_incremental = True

    def __init__(self, model: RecognitionModel) -> None:
        self._recognizer = _create_recognizer(model)

    def begin_segment(self, language: str | None) -> OnlineSegmentDecoder:
        """Return a decoder for a new segment. The language is that of the model."""
        return OnlineSegmentDecoder(self._recognizer)


class OnlineSegmentDecoder:
    """The decoder of one segment: a stream of the library and the number of samples that it has."""

    details = DecodingDetails()
    """The library reports no probabilities."""

    def __init__(self, recognizer: Any) -> None:
        self._recognizer = recognizer
        self._stream = recognizer.create_stream()
        self._accepted_samples = 0

    def decode_partial(self, samples: Samples) -> str:
        """Decode the new samples."""
        if len(samples) < self._accepted_samples:  # the cut is before samples that are already decoded
            self._stream, self._accepted_samples = self._recognizer.create_stream(), 0
        self._stream.accept_waveform(16000, samples[self._accepted_samples :])
        self._accepted_samples = len(samples)
        return self._decode()

    def decode_final(self, samples: Samples) -> str:
        """Decode the remaining samples and end the stream."""
        self.decode_partial(samples)
        self._stream.accept_waveform(16000, TRAILING_SILENCE)
        self._stream.input_finished()
        return self._decode()

    def _decode(self) -> str:
        while self._recognizer.is_ready(self._stream):
            self._recognizer.decode_stream(self._stream)
        text: str = self._recognizer.get_result(self._stream)
        return text.strip()


def _create_recognizer(model: RecognitionModel) -> Any:
    recognizer_class = sherpa_onnx.OnlineRecognizer
    files, options = model.files, {"num_threads": INFERENCE_THREADS, **model.options}
    match model.family:
        case "transducer":
            return recognizer_class.from_transducer(
                files["tokens"], files["encoder"], files["decoder"], files["joiner"], **options
            )
        case "paraformer":
            return recognizer_class.from_paraformer(files["tokens"], files["encoder"], files["decoder"], **options)
        case "zipformer-ctc":
            return recognizer_class.from_zipformer2_ctc(files["tokens"], files["model"], **options)
        case "nemo-ctc":
            return recognizer_class.from_nemo_ctc(files["tokens"], files["model"], **options)
    raise SpeechFailed(f"The engine sherpa-online does not support the family {model.family!r}.")
