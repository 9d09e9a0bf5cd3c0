"""Preprocessing in numpy: pure functions from audio, images and numbers to what a model takes."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from svc.errors import InvalidRequest
from svc.pipeline.stages.base import Sound
from svc.pipeline.steps.described import Normalize, Reshape
from svc.speech.resample import Resampler, mono

Array = NDArray[Any]


def audio(sounds: Iterable[Sound], rate: int) -> Array:
    """One row of samples at `rate`, from -1 to 1. Raises InvalidRequest when there are none."""
    pieces = [_at_rate(sound, rate) for sound in sounds]
    made = np.concatenate(pieces) if pieces else np.zeros(0, np.float32)
    if not made.size:
        raise InvalidRequest("There are no samples in the audio.")
    return made[None, :]


def _at_rate(sound: Sound, rate: int) -> Array:
    resampler = Resampler(sound.format.rate, rate)
    return np.concatenate((resampler.push(mono(sound.data, sound.format)), resampler.finish()))


def numbers(text: str) -> Array:
    """A JSON array of numbers, of any shape. Raises InvalidRequest for anything else."""
    try:
        made = np.asarray(msgspec.json.decode(text))
    except (msgspec.DecodeError, ValueError, RecursionError):
        made = np.asarray("none")
    if made.size and made.dtype.kind not in "iuf":
        raise InvalidRequest("This stage takes numbers: a JSON array of one shape, such as [[1, 2], [3, 4]].")
    if not made.size:
        raise InvalidRequest("There are no numbers in the input.")
    return made.astype(np.float32)


def channels_first(image: Array) -> Array:
    """Height × width × channels of bytes as 1 × channels × height × width from 0 to 1."""
    return np.ascontiguousarray(image.transpose(2, 0, 1)[None].astype(np.float32) / 255)


def crop(image: Array, width: int, height: int) -> Array:
    """The middle; black where the image is smaller."""
    made = np.zeros((height, width, image.shape[2]), image.dtype)
    (to_y, from_y, tall), (to_x, from_x, wide) = (
        (max(0, (want - have) // 2), max(0, (have - want) // 2), min(want, have))
        for want, have in ((height, image.shape[0]), (width, image.shape[1]))
    )
    made[to_y : to_y + tall, to_x : to_x + wide] = image[from_y : from_y + tall, from_x : from_x + wide]
    return made


def normalize(array: Array, step: Normalize) -> Array:
    """For each channel, which is the second dimension; one number is for all. Raises InvalidRequest."""
    return (array - _spread(array, step.mean)) / _spread(array, step.std)


def _spread(array: Array, values: tuple[float, ...]) -> Array:
    if len(values) == 1:
        return np.float32(values[0])  # type: ignore[return-value]  # numpy spreads it
    if array.ndim < 2 or array.shape[1] != len(values):
        raise InvalidRequest(f"Normalize has {len(values)} channels, and the data has the shape {array.shape}.")
    return np.asarray(values, np.float32).reshape(1, -1, *[1] * (array.ndim - 2))


def reshape(array: Array, step: Reshape) -> Array:
    """Raises InvalidRequest when the numbers do not fill the shape."""
    try:
        return array.reshape(step.shape)
    except ValueError:
        raise InvalidRequest(f"{array.size} numbers do not make the shape {list(step.shape)}.") from None
