"""Decoder for mp4, m4a, webm and raw AAC: FFmpeg through PyAV. The format is given, so no playlist is parsed."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, BinaryIO

import av

from svc.speech.decoders.base import DecodedAudio

OUTPUT_SAMPLE_RATE_HZ = 16000
MIN_DECODED_FRACTION = 0.98
"""A file is incomplete if its samples last less than this part of the stated duration, and a second less."""
CONTAINER_FORMATS = {"mp4": "mov", "webm": "matroska", "aac": "aac"}


def decode(file: BinaryIO, kind: str) -> DecodedAudio:
    """Open the file. Raises the library's exceptions if it cannot be read."""
    container: Any = av.open(file, mode="r", format=CONTAINER_FORMATS[kind], options={"protocol_whitelist": ""})
    stream = container.streams.audio[0]
    stream.thread_count = 1
    stated_seconds = _stated_seconds(container, stream, kind)
    has_other_streams = len(container.streams) > 1  # the stated duration can be theirs
    min_seconds = 0.0 if stated_seconds is None or has_other_streams else stated_seconds * MIN_DECODED_FRACTION - 1
    return DecodedAudio(OUTPUT_SAMPLE_RATE_HZ, stated_seconds, _decode_chunks(container, stream, min_seconds))


def _stated_seconds(container: Any, stream: Any, kind: str) -> float | None:
    if kind == "aac":
        return None  # no header: the library estimates it from the bit rate
    if stream.duration is not None:
        return float(stream.duration * stream.time_base)
    return None if container.duration is None else container.duration / av.time_base


def _decode_chunks(container: Any, stream: Any, min_seconds: float) -> Iterator[bytes]:
    """Yield the samples. Raises EOFError after the last one if they are fewer than `min_seconds`."""
    sample_count = 0
    resampler = av.AudioResampler(format="s16", layout="mono", rate=OUTPUT_SAMPLE_RATE_HZ)
    for frame in container.decode(stream):
        for resampled in resampler.resample(frame):
            sample_count += resampled.samples
            yield resampled.to_ndarray().tobytes()
    for resampled in resampler.resample(None):
        sample_count += resampled.samples
        yield resampled.to_ndarray().tobytes()
    if sample_count < min_seconds * OUTPUT_SAMPLE_RATE_HZ:
        raise EOFError("a part of the file is missing")
