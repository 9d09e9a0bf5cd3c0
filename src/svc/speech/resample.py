"""Converts samples of any format to mono 32-bit floats at 16 kHz. The result does not depend on chunk sizes.

A windowed-sinc polyphase filter: for the ratio up/down there are `up` short filters, one for each position of an
output sample between two input samples (https://ccrma.stanford.edu/~jos/resample/).
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from svc.speech.audio import SAMPLE_RATE_HZ, AudioFormat

Samples = NDArray[np.float32]

FILTER_ZERO_CROSSINGS = 24
"""Zero crossings of the filter on each side: about 90 dB of attenuation with the Kaiser window below."""
RESAMPLE_BLOCK_SAMPLES = 4096
"""Output samples that are computed per call of einsum."""


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
    """Resamples from `rate` to `target_rate`, both in Hz. Call `push` per chunk, then `finish` once."""

    def __init__(self, rate: int, target_rate: int = SAMPLE_RATE_HZ) -> None:
        divisor = math.gcd(rate, target_rate)
        self._up, self._down = target_rate // divisor, rate // divisor
        self._half_taps = math.ceil(FILTER_ZERO_CROSSINGS * max(1.0, self._down / self._up))
        self._filters = _design_filters(self._up, self._down, self._half_taps)
        self._buffer = np.zeros(self._half_taps - 1, np.float32)
        self._buffer_start = -(self._half_taps - 1)
        """The index of the input sample at the beginning of `_buffer`."""
        self._next_output = 0
        """The index of the next output sample."""

    def push(self, samples: Samples) -> Samples:
        """Return the output samples that the input so far determines."""
        if self._up == self._down:
            return samples
        self._buffer = np.concatenate((self._buffer, samples))
        # Output n lies at input n*down/up and needs `half_taps` input samples on either side.
        last = self._buffer_start + len(self._buffer) - 1 - self._half_taps
        end = (
            max(self._next_output, (last * self._up + self._up - 1) // self._down + 1)
            if last >= 0
            else self._next_output
        )
        blocks = [
            self._compute_outputs(begin, min(begin + RESAMPLE_BLOCK_SAMPLES, end))
            for begin in range(self._next_output, end, RESAMPLE_BLOCK_SAMPLES)
        ]
        self._next_output = end
        first_needed = self._next_output * self._down // self._up - self._half_taps + 1
        if first_needed > self._buffer_start:
            self._buffer, self._buffer_start = self._buffer[first_needed - self._buffer_start :], first_needed
        return np.concatenate(blocks) if blocks else np.zeros(0, np.float32)

    def finish(self) -> Samples:
        """Return the remaining output, as if silence followed."""
        return self.push(np.zeros(0 if self._up == self._down else self._half_taps, np.float32))

    def _compute_outputs(self, begin: int, end: int) -> Samples:
        positions = np.arange(begin, end, dtype=np.int64) * self._down
        starts = positions // self._up - self._half_taps + 1 - self._buffer_start
        windows = self._buffer[starts[:, None] + np.arange(2 * self._half_taps)]
        outputs: Samples = np.einsum("ij,ij->i", windows, self._filters[positions % self._up])
        return outputs


def _design_filters(up: int, down: int, half_taps: int) -> Samples:
    """Return `up` filters of `2 * half_taps` taps. The cutoff is slightly below half of the lower rate."""
    cutoff = 0.95 * min(1.0, up / down)
    taps = np.arange(-half_taps + 1, half_taps + 1)[None, :] - (np.arange(up) / up)[:, None]
    window = np.where(
        np.abs(taps) < half_taps, np.i0(9.0 * np.sqrt(np.maximum(0, 1 - (taps / half_taps) ** 2))) / np.i0(9.0), 0
    )
    filters = cutoff * np.sinc(cutoff * taps) * window
    normalized: Samples = (filters / filters.sum(axis=1, keepdims=True)).astype(np.float32)
    return normalized


class Converter:
    """Converts chunks of any format to the format of the live WebSocket: 16-bit mono at 16 kHz."""

    def __init__(self, format_: AudioFormat) -> None:
        self._format = format_
        self._resampler = Resampler(format_.rate)

    def push(self, data: bytes) -> bytes:
        """Convert complete samples. Empty `data` ends the input and returns the rest."""
        floats = self._resampler.push(to_mono_floats(data, self._format)) if data else self._resampler.finish()
        return (np.clip(floats, -1, 1) * 32767).astype("<i2").tobytes()
