"""Voice activity detection per window: the Silero model, run by sherpa-onnx. `endpointer` finds segments."""

from __future__ import annotations

import numpy as np
import sherpa_onnx

from svc.speech.endpointer import WINDOW_SAMPLES
from svc.speech.resample import Samples

SPEECH_PROBABILITY_THRESHOLD = 0.5


class VoiceActivityDetector:
    """The detector of one stream at a time. The library ends the process if the file is not a VAD model."""

    def __init__(self, path: str) -> None:
        silero = sherpa_onnx.SileroVadModelConfig(
            model=path,
            threshold=SPEECH_PROBABILITY_THRESHOLD,
            min_silence_duration=0,
            min_speech_duration=0,
            window_size=WINDOW_SAMPLES,
        )
        self._model = sherpa_onnx.VadModel.create(sherpa_onnx.VadModelConfig(silero, sample_rate=16000))
        # The model also needs the end of the previous window.
        self._previous_samples = np.zeros(max(0, self._model.window_size() - WINDOW_SAMPLES), np.float32)

    def is_speech(self, window: Samples) -> bool:
        """Return whether there is speech in the next `WINDOW_SAMPLES` samples."""
        samples = np.concatenate((self._previous_samples, window))
        self._previous_samples = samples[WINDOW_SAMPLES:]
        is_speech: bool = self._model.is_speech(samples)
        return is_speech

    def reset(self) -> None:
        """Prepare the detector for another stream."""
        self._model.reset()
        self._previous_samples = np.zeros_like(self._previous_samples)
