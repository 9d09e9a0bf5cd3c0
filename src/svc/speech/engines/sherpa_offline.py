"""The sherpa-onnx engine for models that decode whole segments: Whisper, SenseVoice, transducers, CTC."""

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
TRAILING_SILENCE = np.zeros(5120, np.float32)
"""Silence after a segment, so that the model completes the last word."""


def load(model: RecognitionModel) -> SherpaOfflineEngine:
    """Load the model. Raises SpeechFailed for an unknown family."""
    return SherpaOfflineEngine(model)


class SherpaOfflineEngine:
    """A loaded model. It is its own segment decoder, because each hypothesis uses the whole segment."""

    is_incremental = False
    has_word_times = True

    def __init__(self, model: RecognitionModel) -> None:
        self._recognizer = _create_recognizer(model)

    def begin_segment(self, language: str | None, *, with_words: bool = False) -> SherpaOfflineEngine:
        """Return the decoder. These models detect the language, or have only one."""
        return self

    def decode_partial(self, samples: Samples) -> Hypothesis:
        """Decode the segment."""
        stream = self._recognizer.create_stream()
        stream.accept_waveform(16000, np.concatenate((samples, TRAILING_SILENCE)))
        self._recognizer.decode_stream(stream)
        result = stream.result
        return Hypothesis(result.text.strip(), words=join_tokens(result.tokens, result.timestamps))

    decode_final = decode_partial


def _create_recognizer(model: RecognitionModel) -> Any:
    recognizer_class = sherpa_onnx.OfflineRecognizer
    files, options = model.files, {"num_threads": INFERENCE_THREADS, **model.options}
    match model.family:
        case "whisper":
            return recognizer_class.from_whisper(files["encoder"], files["decoder"], files["tokens"], **options)
        case "transducer":
            return recognizer_class.from_transducer(
                files["encoder"], files["decoder"], files["joiner"], files["tokens"], **options
            )
        case "sense-voice":
            return recognizer_class.from_sense_voice(files["model"], files["tokens"], use_itn=True, **options)
        case "paraformer":
            return recognizer_class.from_paraformer(files["model"], files["tokens"], **options)
        case "nemo-ctc":
            return recognizer_class.from_nemo_ctc(files["model"], files["tokens"], **options)
        case "zipformer-ctc":
            return recognizer_class.from_zipformer_ctc(files["model"], files["tokens"], **options)
    raise SpeechFailed(f"The engine sherpa-offline does not support the family {model.family!r}.")
