"""The sherpa-onnx engine for streaming models: Zipformer and NeMo transducers, Paraformer, CTC.

They decode each sample once, so a hypothesis costs only the new audio. The `options` of stt.json, such as hot words,
are passed to the library unchanged.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import sherpa_onnx

from svc.errors import SpeechFailed
from svc.speech.engines._token_times import join_tokens
from svc.speech.ipc import Hypothesis
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
        # The library assumes 40 ms per frame for CTC, and NeMo models have 80 ms.
        self.has_word_times = model.family != "nemo-ctc"

    def begin_segment(self, language: str | None, *, with_words: bool = False) -> OnlineSegmentDecoder:
        """Return a decoder for a new segment. The language is that of the model."""
        return OnlineSegmentDecoder(self._recognizer, self.has_word_times)


class OnlineSegmentDecoder:
    """The decoder of one segment: a stream of the library and the number of samples that it has."""

    def __init__(self, recognizer: Any, has_token_times: bool) -> None:
        self._recognizer, self._has_token_times = recognizer, has_token_times
        self._stream = recognizer.create_stream()
        self._accepted_samples = 0

    def decode_partial(self, samples: Samples) -> Hypothesis:
        """Decode the new samples."""
        if len(samples) < self._accepted_samples:  # the cut is before samples that are already decoded
            self._stream, self._accepted_samples = self._recognizer.create_stream(), 0
        self._stream.accept_waveform(16000, samples[self._accepted_samples :])
        self._accepted_samples = len(samples)
        return self._decode()

    def decode_final(self, samples: Samples) -> Hypothesis:
        """Decode the remaining samples and end the stream."""
        self.decode_partial(samples)
        self._stream.accept_waveform(16000, TRAILING_SILENCE)
        self._stream.input_finished()
        return self._decode()

    def _decode(self) -> Hypothesis:
        while self._recognizer.is_ready(self._stream):
            self._recognizer.decode_stream(self._stream)
        result = self._recognizer.get_result_all(self._stream)
        words = join_tokens(result.tokens, result.timestamps) if self._has_token_times else None
        return Hypothesis(result.text.strip(), words=words)


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
