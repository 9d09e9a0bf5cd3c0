"""Decoder for mp4, m4a, webm and raw AAC: FFmpeg through PyAV. The format is given, so no playlist is parsed."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, BinaryIO

import av

from svc.speech.decoders.base import DecodedAudio

OUTPUT_SAMPLE_RATE_HZ = 16000
CONTAINER_FORMATS = {"mp4": "mov", "webm": "matroska", "aac": "aac"}


def decode(file: BinaryIO, kind: str) -> DecodedAudio:
    """Open the file. Raises the library's exceptions if it cannot be read."""
    container: Any = av.open(file, mode="r", format=CONTAINER_FORMATS[kind], options={"protocol_whitelist": ""})
    stream = container.streams.audio[0]
    stream.thread_count = 1
    return DecodedAudio(
        OUTPUT_SAMPLE_RATE_HZ, _stated_seconds(container, stream, kind), _decode_chunks(container, stream)
    )


def _stated_seconds(container: Any, stream: Any, kind: str) -> float | None:
    if kind == "aac":
        return None  # no header: the library estimates it from the bit rate
    if stream.duration is not None:
        return float(stream.duration * stream.time_base)
    return None if container.duration is None else container.duration / av.time_base


def _decode_chunks(container: Any, stream: Any) -> Iterator[bytes]:
    resampler = av.AudioResampler(format="s16", layout="mono", rate=OUTPUT_SAMPLE_RATE_HZ)
    for frame in container.decode(stream):
        for resampled in resampler.resample(frame):
            yield resampled.to_ndarray().tobytes()
    for resampled in resampler.resample(None):
        yield resampled.to_ndarray().tobytes()
