"""Is there speech in a window: Silero's model, run by sherpa-onnx. Where speech begins or ends is not said here."""

from __future__ import annotations

import numpy as np
import sherpa_onnx

from svc.speech.endpointer import WINDOW_SAMPLES
from svc.speech.resample import Samples

SPEECH_PROBABILITY_THRESHOLD = 0.5


class VoiceActivityDetector:
    """Of one stream at a time. An unsuitable file makes the library end the process."""

    def __init__(self, path: str) -> None:
        silero = sherpa_onnx.SileroVadModelConfig(
            model=path,
            threshold=SPEECH_PROBABILITY_THRESHOLD,
            min_silence_duration=0,
            min_speech_duration=0,
            window_size=WINDOW_SAMPLES,
        )
        self._model = sherpa_onnx.VadModel.create(sherpa_onnx.VadModelConfig(silero, sample_rate=16000))
        # The model wants the end of the window before, too.
        self._previous_samples = np.zeros(max(0, self._model.window_size() - WINDOW_SAMPLES), np.float32)

    def is_speech(self, window: Samples) -> bool:
        """Whether there is speech in the next `WINDOW` samples."""
        samples = np.concatenate((self._previous_samples, window))
        self._previous_samples = samples[WINDOW_SAMPLES:]
        is_speech: bool = self._model.is_speech(samples)
        return is_speech

    def reset(self) -> None:
        """For another stream."""
        self._model.reset()
        self._previous_samples = np.zeros_like(self._previous_samples)
