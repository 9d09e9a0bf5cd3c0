"""Converts samples of any format to mono 32-bit floats at 16 kHz. The result does not depend on chunk sizes.

The filters are those of libsoxr (https://python-soxr.readthedocs.io).
"""

from __future__ import annotations

from typing import Any

import numpy as np
import soxr
from numpy.typing import NDArray

from svc.speech.audio import SAMPLE_RATE_HZ, AudioFormat

Samples = NDArray[np.float32]


def to_mono_floats(data: bytes | memoryview, format_: AudioFormat) -> Samples:
    """Convert complete samples to floats from -1 to 1. Averages the channels."""
    match format_.encoding:
        case "s16":
            floats: NDArray[Any] = np.frombuffer(data, "<i2").astype(np.float32) / 32768
        case "u8":
            floats = (np.frombuffer(data, "u1").astype(np.float32) - 128) / 128
        case "s24":
            bytes_ = np.frombuffer(data, "u1").reshape(-1, 3).astype(np.int32)
            floats = ((bytes_[:, 0] << 8 | bytes_[:, 1] << 16 | bytes_[:, 2] << 24) >> 8).astype(np.float32) / 8388608
        case "s32":
            floats = (np.frombuffer(data, "<i4") / 2147483648).astype(np.float32)
        case "f32":
            floats = np.frombuffer(data, "<f4")
        case "f64":
            floats = np.frombuffer(data, "<f8").astype(np.float32)
    if format_.channels > 1:
        floats = floats.reshape(-1, format_.channels).mean(axis=1)
    # A NaN in the input would silence the whole utterance.
    clipped: Samples = np.clip(np.nan_to_num(floats), -1, 1).astype(np.float32)
    return clipped


class Resampler:
    """Resamples from `rate` to `target_rate`, both in Hz. Call `push` per chunk, then `finish` at the end."""

    def __init__(self, rate: int, target_rate: int = SAMPLE_RATE_HZ) -> None:
        # HQ delays the output by 40 ms (120 ms from 8 kHz). VHQ doubles that, for noise far below 16-bit samples.
        self._stream = (
            None if rate == target_rate else soxr.ResampleStream(rate, target_rate, 1, dtype="float32", quality="HQ")
        )

    def push(self, samples: Samples) -> Samples:
        """Return the output samples that are ready. The others follow with later input."""
        return samples if self._stream is None else self._stream.resample_chunk(samples)

    def finish(self) -> Samples:
        """Return the remaining output, as if silence followed. Then a new signal may begin."""
        empty = np.zeros(0, np.float32)
        if self._stream is None:
            return empty
        remaining: Samples = self._stream.resample_chunk(empty, last=True)
        self._stream.clear()
        return remaining


class Converter:
    """Converts chunks of any format to the format of the live WebSocket: 16-bit mono at 16 kHz."""

    def __init__(self, format_: AudioFormat) -> None:
        self._format = format_
        self._resampler = Resampler(format_.rate)

    def push(self, data: bytes) -> bytes:
        """Convert complete samples. Empty `data` ends the input and returns the rest."""
        floats = self._resampler.push(to_mono_floats(data, self._format)) if data else self._resampler.finish()
        return (np.clip(floats, -1, 1) * 32767).astype("<i2").tobytes()
