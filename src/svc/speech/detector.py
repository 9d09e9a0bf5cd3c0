"""Is there speech in a window: Silero's model, run by sherpa-onnx. Where speech begins or ends is not said here."""

from __future__ import annotations

import numpy as np
import sherpa_onnx

from svc.speech.endpointer import WINDOW
from svc.speech.resample import Samples

THRESHOLD = 0.5


class Detector:
    """Of one stream at a time. An unsuitable file makes the library end the process."""

    def __init__(self, path: str) -> None:
        silero = sherpa_onnx.SileroVadModelConfig(
            model=path, threshold=THRESHOLD, min_silence_duration=0, min_speech_duration=0, window_size=WINDOW
        )
        self._model = sherpa_onnx.VadModel.create(sherpa_onnx.VadModelConfig(silero, sample_rate=16000))
        # The model wants the end of the window before, too.
        self._before = np.zeros(max(0, self._model.window_size() - WINDOW), np.float32)

    def hear(self, window: Samples) -> bool:
        """Whether there is speech in the next `WINDOW` samples."""
        heard = np.concatenate((self._before, window))
        self._before = heard[WINDOW:]
        said: bool = self._model.is_speech(heard)
        return said

    def reset(self) -> None:
        """For another stream."""
        self._model.reset()
        self._before = np.zeros_like(self._before)
