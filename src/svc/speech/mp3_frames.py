"""Finds out whether an MP3 file is truncated, from the headers of its frames. No I/O.

Frame headers: http://www.mp3-tech.org/programmer/frame_header.html
Xing and Info headers: http://gabriel.mp3-tech.org/mp3infotag.html
"""

from __future__ import annotations

import struct
from typing import NamedTuple

_HEADER_BYTES = 4
_BITRATES = {
    (1, 1): (32, 64, 96, 128, 160, 192, 224, 256, 288, 320, 352, 384, 416, 448),
    (1, 2): (32, 48, 56, 64, 80, 96, 112, 128, 160, 192, 224, 256, 320, 384),
    (1, 3): (32, 40, 48, 56, 64, 80, 96, 112, 128, 160, 192, 224, 256, 320),
    (2, 1): (32, 48, 56, 64, 80, 96, 112, 128, 144, 160, 176, 192, 224, 256),
    (2, 2): (8, 16, 24, 32, 40, 48, 56, 64, 80, 96, 112, 128, 144, 160),
    (2, 3): (8, 16, 24, 32, 40, 48, 56, 64, 80, 96, 112, 128, 144, 160),
}
"""kbit/s by MPEG version and layer. Version 2.5 has those of version 2."""
_SAMPLE_RATES = {3: (44100, 48000, 32000), 2: (22050, 24000, 16000), 0: (11025, 12000, 8000)}
"""Samples per second by the version's bits in the header."""
_VERSION_1_BITS = 3
_MONO_MODE = 3
_SIDE_INFO_BYTES = {(1, False): 32, (1, True): 17, (2, False): 17, (2, True): 9}
"""Bytes between the header of a frame and its Xing header, by MPEG version and whether it is mono."""
_LENGTH_MARKS = (b"Xing", b"Info")
_HAS_FRAME_COUNT = 1


_FRAMES_TO_RECOGNISE = 3
_KIND_BITS = 0x1E
"""The bits of a frame's second byte that all frames of a file share: version and layer."""


class _Frame(NamedTuple):
    size: int
    """Bytes with the header."""
    version: int
    is_mono: bool


def is_truncated(data: bytes) -> bool:
    """Return whether the last frame is incomplete, or frames are missing that the file states to have."""
    offset = _skip_id3(data)
    first = _parse_header(data, offset)
    if first is None:
        return False  # not a frame: the decoder decides
    stated = _stated_frames(data, offset, first)
    count = 0
    while (frame := _parse_header(data, offset)) is not None:
        if offset + frame.size > len(data):
            return True
        offset += frame.size
        count += 1
    return stated > 0 and count - 1 < stated


def begins_with_frames(data: bytes) -> bool | None:
    """Return whether the data begins with three MP3 frames of one kind. None if it is too short to tell.

    Raw samples look so about once in 10^9 times.
    """
    offset, kinds = 0, set()
    for _ in range(_FRAMES_TO_RECOGNISE):
        if offset + _HEADER_BYTES > len(data):
            return None
        frame = _parse_header(data, offset)
        if frame is None:
            return False
        kinds.add(data[offset + 1] & _KIND_BITS)
        offset += frame.size
    return len(kinds) == 1


def _skip_id3(data: bytes) -> int:
    if data[:3] != b"ID3" or len(data) < 10:
        return 0
    return 10 + sum((byte & 0x7F) << shift for byte, shift in zip(data[6:10], (21, 14, 7, 0), strict=True))


def _parse_header(data: bytes, offset: int) -> _Frame | None:
    """Return the frame at an offset. None at the end, at a tag, and for the free format, which states no size."""
    if offset + _HEADER_BYTES > len(data):
        return None
    (header,) = struct.unpack_from(">I", data, offset)
    version_bits, layer = header >> 19 & 3, 4 - (header >> 17 & 3)
    bitrate_index, rate_index, padding = header >> 12 & 15, header >> 10 & 3, header >> 9 & 1
    if header >> 21 != 0x7FF or version_bits == 1 or layer == 4 or bitrate_index in (0, 15) or rate_index == 3:
        return None
    version = 1 if version_bits == _VERSION_1_BITS else 2
    bits_per_second = 1000 * _BITRATES[version, layer][bitrate_index - 1]
    rate = _SAMPLE_RATES[version_bits][rate_index]
    if layer == 1:
        size = (12 * bits_per_second // rate + padding) * 4
    else:
        size = (72 if layer == 3 and version == 2 else 144) * bits_per_second // rate + padding
    return _Frame(size, version, header >> 6 & 3 == _MONO_MODE)


def _stated_frames(data: bytes, offset: int, first: _Frame) -> int:
    """Return the number of frames that a Xing or Info header states, without its own. 0 if it states none."""
    start = offset + _HEADER_BYTES + _SIDE_INFO_BYTES[first.version, first.is_mono]
    if data[start : start + 4] not in _LENGTH_MARKS or len(data) < start + 12:
        return 0
    flags, frames = struct.unpack_from(">II", data, start + 4)
    return int(frames) if flags & _HAS_FRAME_COUNT else 0
