"""Preprocessing in numpy: functions without I/O from audio, images and numbers to the model's input."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from svc.errors import InvalidRequest
from svc.pipeline.stages.base import AudioChunk
from svc.pipeline.steps.schema import Normalize, Reshape
from svc.speech.resample import Resampler, to_mono_floats

Array = NDArray[Any]


def load_audio(audio_chunks: Iterable[AudioChunk], rate: int) -> Array:
    """Return one row of samples at `rate` Hz, from -1 to 1. Raises InvalidRequest if there are none."""
    resampled = [_resample(chunk, rate) for chunk in audio_chunks]
    samples = np.concatenate(resampled) if resampled else np.zeros(0, np.float32)
    if not samples.size:
        raise InvalidRequest("The audio has no samples.")
    return samples[None, :]


def _resample(audio_chunk: AudioChunk, rate: int) -> Array:
    resampler = Resampler(audio_chunk.format.rate, rate)
    return np.concatenate((resampler.push(to_mono_floats(audio_chunk.data, audio_chunk.format)), resampler.finish()))


def parse_numbers(text: str) -> Array:
    """Parse a JSON array of numbers of any shape. Raises InvalidRequest for anything else."""
    try:
        array = np.asarray(msgspec.json.decode(text))
    except (msgspec.DecodeError, ValueError, RecursionError):
        array = np.asarray("none")
    if array.size and array.dtype.kind not in "iuf":
        raise InvalidRequest("This stage takes numbers: a JSON array of one shape, such as [[1, 2], [3, 4]].")
    if not array.size:
        raise InvalidRequest("The input has no numbers.")
    return array.astype(np.float32)


def channels_first(image: Array) -> Array:
    """Convert bytes (height × width × channels) to floats from 0 to 1 (1 × channels × height × width)."""
    return np.ascontiguousarray(image.transpose(2, 0, 1)[None].astype(np.float32) / 255)


def center_crop(image: Array, width: int, height: int) -> Array:
    """Return the center of the image. Pads a smaller image with black."""
    cropped = np.zeros((height, width, image.shape[2]), image.dtype)
    (to_y, from_y, copy_height), (to_x, from_x, copy_width) = (
        (max(0, (target - actual) // 2), max(0, (actual - target) // 2), min(target, actual))
        for target, actual in ((height, image.shape[0]), (width, image.shape[1]))
    )
    cropped[to_y : to_y + copy_height, to_x : to_x + copy_width] = image[
        from_y : from_y + copy_height, from_x : from_x + copy_width
    ]
    return cropped


def normalize(array: Array, step: Normalize) -> Array:
    """Normalize each channel (the second dimension). A single value applies to all. Raises InvalidRequest."""
    return (array - _broadcast_channels(array, step.mean)) / _broadcast_channels(array, step.std)


def _broadcast_channels(array: Array, values: tuple[float, ...]) -> Array:
    if len(values) == 1:
        return np.float32(values[0])  # type: ignore[return-value]  # numpy broadcasts it
    if array.ndim < 2 or array.shape[1] != len(values):
        raise InvalidRequest(f"Normalize has {len(values)} channels, but the data has the shape {array.shape}.")
    return np.asarray(values, np.float32).reshape(1, -1, *[1] * (array.ndim - 2))


def reshape(array: Array, step: Reshape) -> Array:
    """Reshape the array. Raises InvalidRequest if the numbers do not fit the shape."""
    try:
        return array.reshape(step.shape)
    except ValueError:
        raise InvalidRequest(f"{array.size} numbers do not fit the shape {list(step.shape)}.") from None
