"""libsndfile: mp3, flac, ogg with Vorbis or Opus."""

from __future__ import annotations

from collections.abc import Iterator
from typing import BinaryIO

import numpy as np
import soundfile

from svc.speech.decoders.base import Decoded

BLOCK = 4096
"""Samples at a time; the last ones are lost of a FLAC that does not tell its length, since the library fails there."""
UNKNOWN_LENGTH = 1 << 60
"""Samples; the library says as many or more of a file that does not tell its length."""


def decode(file: BinaryIO, kind: str) -> Decoded:
    """Raises what the library raises for what it cannot read."""
    is_told = kind != "mp3" or _mp3_tells_length(file)
    sound = soundfile.SoundFile(file)
    seconds = sound.frames / sound.samplerate if is_told and 0 < sound.frames < UNKNOWN_LENGTH else None
    return Decoded(int(sound.samplerate), seconds, _samples(sound))


def _mp3_tells_length(file: BinaryIO) -> bool:
    """Whether there is a Xing or VBRI header: without one the library guesses by the first frame's bit rate."""
    head = file.read(10)
    tag = sum((byte & 0x7F) << shift for byte, shift in zip(head[6:], (21, 14, 7, 0), strict=False))
    file.seek(10 + tag if head[:3] == b"ID3" else 0)
    frame = file.read(256)
    file.seek(0)
    return any(name in frame for name in (b"Xing", b"Info", b"VBRI"))


def _samples(sound: soundfile.SoundFile) -> Iterator[bytes]:
    while len(block := sound.read(BLOCK, dtype="int16", always_2d=True)):
        yield block.mean(axis=1).astype(np.int16).tobytes()
