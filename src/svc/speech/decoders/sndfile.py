"""Decoder for mp3, flac and ogg (Vorbis, Opus): libsndfile."""

from __future__ import annotations

from collections.abc import Iterator
from typing import BinaryIO

import numpy as np
import soundfile

from svc.speech.decoders.base import DecodedAudio
from svc.speech.mp3_frames import is_truncated as is_mp3_data_truncated
from svc.speech.ogg_pages import is_damaged

READ_BLOCK_SAMPLES = 4096
"""Samples per read.

libsndfile fails in the last block of a FLAC file without a stated length, and that block is lost.
"""
UNKNOWN_LENGTH_SAMPLES = 1 << 60
"""The library reports this many samples or more for a file that does not state its length."""


def decode(file: BinaryIO, kind: str) -> DecodedAudio:
    """Open the file. Raises the library's exceptions if it cannot be read."""
    has_stated_length = kind != "mp3" or _mp3_states_length(file)
    is_incomplete = _is_incomplete(file, kind)
    sound = soundfile.SoundFile(file)
    seconds = (
        sound.frames / sound.samplerate if has_stated_length and 0 < sound.frames < UNKNOWN_LENGTH_SAMPLES else None
    )
    return DecodedAudio(int(sound.samplerate), seconds, _decode_chunks(sound, is_incomplete=is_incomplete))


def _is_incomplete(file: BinaryIO, kind: str) -> bool:
    """Return whether a part of the file is missing, which libsndfile reports for FLAC only."""
    if kind == "flac":
        return False
    data = file.read()
    file.seek(0)
    return is_mp3_data_truncated(data) if kind == "mp3" else is_damaged(data)


def _mp3_states_length(file: BinaryIO) -> bool:
    """Return whether there is a Xing or VBRI header. Without one the library guesses from the first bit rate."""
    head = file.read(10)
    id3_bytes = sum((byte & 0x7F) << shift for byte, shift in zip(head[6:], (21, 14, 7, 0), strict=False))
    file.seek(10 + id3_bytes if head[:3] == b"ID3" else 0)
    frame = file.read(256)
    file.seek(0)
    return any(name in frame for name in (b"Xing", b"Info", b"VBRI"))


def _decode_chunks(sound: soundfile.SoundFile, *, is_incomplete: bool) -> Iterator[bytes]:
    """Yield the samples. Raises EOFError after the last one of an incomplete file."""
    while len(block := sound.read(READ_BLOCK_SAMPLES, dtype="int16", always_2d=True)):
        yield block.mean(axis=1).astype(np.int16).tobytes()
    if is_incomplete:
        raise EOFError("a part of the file is missing")
