"""The voice activity detector with the real model: streams that share a call do not affect each other."""

from pathlib import Path

import numpy as np
import pytest

from svc.errors import SpeechFailed
from svc.speech.endpointer import WINDOW_SAMPLES
from svc.speech.model import detect_model
from svc.speech.resample import Samples
from svc.speech.vad import VoiceActivityDetector, VoiceActivityModel

from . import material


@pytest.fixture(scope="module")
def model() -> VoiceActivityModel:
    return VoiceActivityModel(detect_model(material.make_model()).files["vad"])


def windows(clip: Path) -> list[Samples]:
    samples = np.frombuffer(material.read_pcm(clip), "<i2").astype(np.float32) / 32768
    return list(samples[: len(samples) // WINDOW_SAMPLES * WINDOW_SAMPLES].reshape(-1, WINDOW_SAMPLES))


def test_detect_streams_in_one_call_equal_streams_alone(model: VoiceActivityModel, clips: dict[str, Path]):
    streams = [windows(clips[name])[:80] for name in ("beckett", "en-counting", "two-cities")]
    alone = []
    for stream in streams:
        detector = VoiceActivityDetector(model)
        alone.append([detector.is_speech(window) for window in stream])
    detectors = [VoiceActivityDetector(model) for _ in streams]
    together = [model.detect(detectors, row) for row in zip(*streams, strict=True)]
    assert [list(flags) for flags in zip(*together, strict=True)] == alone
    assert all({True, False} == set(flags) for flags in alone)


def test_detector_reset_forgets_the_earlier_stream(model: VoiceActivityModel, clips: dict[str, Path]):
    detector = VoiceActivityDetector(model)
    first = [detector.is_speech(window) for window in windows(clips["en-counting"])]
    detector.reset()
    assert [detector.is_speech(window) for window in windows(clips["en-counting"])] == first


def test_model_of_another_kind_is_speech_error():
    encoder = detect_model(material.make_model()).files["encoder"]
    with pytest.raises(SpeechFailed, match="Silero VAD 5"):
        VoiceActivityModel(encoder)
