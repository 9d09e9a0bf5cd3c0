"""Samples of any format as 32-bit floats at 16 kHz, mono; piece by piece, the same however the pieces are cut.

A windowed-sinc polyphase filter: for the ratio up/down there are `up` short filters, one for each position of an
output sample between two input samples.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from svc.speech.audio import SAMPLE_RATE, Format

Samples = NDArray[np.float32]

ZEROS = 24
"""Zero crossings of the filter on each side: about 90 dB of attenuation with this window."""
BLOCK = 4096
"""Output samples that are computed at once."""


def mono(data: bytes | memoryview, format_: Format) -> Samples:
    """Whole samples as floats from -1 to 1, the channels' mean."""
    match format_.encoding:
        case "s16":
            wide: NDArray[Any] = np.frombuffer(data, "<i2").astype(np.float32) / 32768
        case "u8":
            wide = (np.frombuffer(data, "u1").astype(np.float32) - 128) / 128
        case "s24":
            bytes_ = np.frombuffer(data, "u1").reshape(-1, 3).astype(np.int32)
            wide = ((bytes_[:, 0] << 8 | bytes_[:, 1] << 16 | bytes_[:, 2] << 24) >> 8).astype(np.float32) / 8388608
        case "s32":
            wide = (np.frombuffer(data, "<i4") / 2147483648).astype(np.float32)
        case "f32":
            wide = np.frombuffer(data, "<f4")
        case "f64":
            wide = np.frombuffer(data, "<f8").astype(np.float32)
    if format_.channels > 1:
        wide = wide.reshape(-1, format_.channels).mean(axis=1)
    # Floats may hold anything; what is not a number would silence the whole utterance.
    made: Samples = np.clip(np.nan_to_num(wide), -1, 1).astype(np.float32)
    return made


class Resampler:
    """From `rate` to another. Feed it with `push`, and once with `finish`."""

    def __init__(self, rate: int, to: int = SAMPLE_RATE) -> None:
        common = math.gcd(rate, to)
        self._up, self._down = to // common, rate // common
        self._half = math.ceil(ZEROS * max(1.0, self._down / self._up))
        self._filters = _filters(self._up, self._down, self._half)
        self._held = np.zeros(self._half - 1, np.float32)
        self._first = -(self._half - 1)
        """The number of the input sample that `_held` begins with."""
        self._next = 0
        """The number of the next output sample."""

    def push(self, samples: Samples) -> Samples:
        """What can be told from the samples so far."""
        if self._up == self._down:
            return samples
        self._held = np.concatenate((self._held, samples))
        # Output n lies at input n*down/up and needs the `half` input samples on either side of it.
        last = self._first + len(self._held) - 1 - self._half
        ready = max(self._next, (last * self._up + self._up - 1) // self._down + 1) if last >= 0 else self._next
        pieces = [self._make(begin, min(begin + BLOCK, ready)) for begin in range(self._next, ready, BLOCK)]
        self._next = ready
        keep = self._next * self._down // self._up - self._half + 1
        if keep > self._first:
            self._held, self._first = self._held[keep - self._first :], keep
        return np.concatenate(pieces) if pieces else np.zeros(0, np.float32)

    def finish(self) -> Samples:
        """The rest, as if silence followed."""
        return self.push(np.zeros(0 if self._up == self._down else self._half, np.float32))

    def _make(self, begin: int, end: int) -> Samples:
        positions = np.arange(begin, end, dtype=np.int64) * self._down
        starts = positions // self._up - self._half + 1 - self._first
        windows = self._held[starts[:, None] + np.arange(2 * self._half)]
        made: Samples = np.einsum("ij,ij->i", windows, self._filters[positions % self._up])
        return made


def _filters(up: int, down: int, half: int) -> Samples:
    """`up` filters of `2*half` taps; the cut-off is a little below half of the lower rate."""
    cutoff = 0.95 * min(1.0, up / down)
    taps = np.arange(-half + 1, half + 1)[None, :] - (np.arange(up) / up)[:, None]
    window = np.where(np.abs(taps) < half, np.i0(9.0 * np.sqrt(np.maximum(0, 1 - (taps / half) ** 2))) / np.i0(9.0), 0)
    filters = cutoff * np.sinc(cutoff * taps) * window
    made: Samples = (filters / filters.sum(axis=1, keepdims=True)).astype(np.float32)
    return made


class Converter:
    """Pieces of any format as the live socket takes them: 16-bit, 16 kHz, mono."""

    def __init__(self, format_: Format) -> None:
        self._format = format_
        self._resampler = Resampler(format_.rate)

    def push(self, data: bytes) -> bytes:
        """Whole samples in, whole samples out; no bytes are the end."""
        floats = self._resampler.push(mono(data, self._format)) if data else self._resampler.finish()
        return (np.clip(floats, -1, 1) * 32767).astype("<i2").tobytes()
