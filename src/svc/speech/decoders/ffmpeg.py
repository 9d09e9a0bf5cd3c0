"""FFmpeg through PyAV: mp4 and m4a, webm, raw AAC. It is told the kind, so that it takes no playlist for one."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, BinaryIO

import av

from svc.speech.decoders.base import Decoded

RATE = 16000
FORMATS = {"mp4": "mov", "webm": "matroska", "aac": "aac"}


def decode(file: BinaryIO, kind: str) -> Decoded:
    """Raises what the library raises for what it cannot read."""
    container: Any = av.open(file, mode="r", format=FORMATS[kind], options={"protocol_whitelist": ""})
    stream = container.streams.audio[0]
    stream.thread_count = 1
    return Decoded(RATE, _seconds(container, stream, kind), _samples(container, stream))


def _seconds(container: Any, stream: Any, kind: str) -> float | None:
    if kind == "aac":
        return None  # it has no header: the library guesses by the bit rate
    if stream.duration is not None:
        return float(stream.duration * stream.time_base)
    return None if container.duration is None else container.duration / av.time_base


def _samples(container: Any, stream: Any) -> Iterator[bytes]:
    resampler = av.AudioResampler(format="s16", layout="mono", rate=RATE)
    for frame in container.decode(stream):
        for piece in resampler.resample(frame):
            yield piece.to_ndarray().tobytes()
    for piece in resampler.resample(None):
        yield piece.to_ndarray().tobytes()
