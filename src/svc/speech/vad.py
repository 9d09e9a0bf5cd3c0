"""Voice activity detection per window: the Silero model, run by ONNX Runtime. `endpointer` finds segments.

One call classifies a window of several streams: the weights are then read once, and not for each stream.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnxruntime

from svc.errors import SpeechFailed
from svc.speech.endpointer import WINDOW_SAMPLES
from svc.speech.resample import Samples

SPEECH_PROBABILITY_THRESHOLD, SILENCE_PROBABILITY_THRESHOLD = 0.5, 0.35
"""Speech begins above the first, and ends below the second."""
CONTEXT_SAMPLES = 64
"""Samples of the previous window that the model also needs."""
STATE_SHAPE = (2, 1, 128)
_SAMPLE_RATE = np.array(16000, np.int64)


class VoiceActivityModel:
    """A loaded model."""

    def __init__(self, path: str) -> None:
        """Load the file. Raises SpeechFailed if it is not Silero VAD 5 or later."""
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = options.inter_op_num_threads = 1
        self._session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
        names = {node.name for node in self._session.get_inputs()}
        if names != {"input", "state", "sr"}:
            raise SpeechFailed("The voice activity detector is not Silero VAD 5 or later.")

    def detect(self, detectors: Sequence[VoiceActivityDetector], windows: Sequence[Samples]) -> list[bool]:
        """Return for each detector whether there is speech in the next `WINDOW_SAMPLES` samples of its stream."""
        rows = [np.concatenate((detector.context, window)) for detector, window in zip(detectors, windows, strict=True)]
        states = np.concatenate([detector.state for detector in detectors], axis=1)
        probabilities, states = self._session.run(None, {"input": np.stack(rows), "state": states, "sr": _SAMPLE_RATE})
        return [
            detector.update(row[-CONTEXT_SAMPLES:], states[:, number : number + 1], float(probabilities[number, 0]))
            for number, (detector, row) in enumerate(zip(detectors, rows, strict=True))
        ]


class VoiceActivityDetector:
    """The detector of one stream at a time."""

    def __init__(self, model: VoiceActivityModel) -> None:
        self._model = model
        self.reset()

    def reset(self) -> None:
        """Prepare the detector for another stream."""
        self.context = np.zeros(CONTEXT_SAMPLES, np.float32)
        self.state = np.zeros(STATE_SHAPE, np.float32)
        self._was_above_threshold = self._is_speech = False

    def is_speech(self, window: Samples) -> bool:
        """Return whether there is speech in the next `WINDOW_SAMPLES` samples."""
        assert len(window) == WINDOW_SAMPLES
        return self._model.detect([self], [window])[0]

    def update(self, context: Samples, state: Samples, probability: float) -> bool:
        """Handle the model's output for a window, and return whether there is speech."""
        self.context, self.state = context, state
        is_above = probability > SPEECH_PROBABILITY_THRESHOLD
        if self._is_speech:
            self._is_speech = probability > SILENCE_PROBABILITY_THRESHOLD
        else:  # a single window above the threshold is a click
            self._is_speech = is_above and self._was_above_threshold
        self._was_above_threshold = is_above
        return self._is_speech
