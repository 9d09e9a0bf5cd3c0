"""libsndfile: mp3, flac, ogg with Vorbis or Opus."""

from __future__ import annotations

from collections.abc import Iterator
from typing import BinaryIO

import numpy as np
import soundfile

BLOCK = 65536
"""Samples at a time."""


def decode(file: BinaryIO, kind: str) -> tuple[int, Iterator[bytes]]:
    """The rate, and 16-bit mono samples. Raises what the library raises for what it cannot read."""
    sound = soundfile.SoundFile(file)
    return int(sound.samplerate), _samples(sound)


def _samples(sound: soundfile.SoundFile) -> Iterator[bytes]:
    while len(block := sound.read(BLOCK, dtype="int16", always_2d=True)):
        yield block.mean(axis=1).astype(np.int16).tobytes()
