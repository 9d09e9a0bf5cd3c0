"""Finds out whether an Ogg file is damaged or truncated, from its pages. No I/O.

Pages: RFC 3533, section 6
"""

from __future__ import annotations

import struct
import zlib
from typing import Final

_PAGE_HEAD: Final = struct.Struct("<4sBBqIIIB")
"""Mark, version, flags, position, serial number of the stream, page number, checksum, number of segments."""
_MARK: Final = b"OggS"
_CHECKSUM_OFFSET: Final = 22
_IS_LAST_PAGE: Final = 4
_REVERSED_BITS: Final = bytes(int(f"{byte:08b}"[::-1], 2) for byte in range(256))


def is_damaged(data: bytes) -> bool:
    """Return whether pages are missing or changed, or whether a second stream follows, which the decoder skips."""
    offset = 0
    next_pages: dict[int, int] = {}
    ended: set[int] = set()
    while offset + _PAGE_HEAD.size <= len(data):
        mark, _, flags, _, serial, number, checksum, segments = _PAGE_HEAD.unpack_from(data, offset)
        body = offset + _PAGE_HEAD.size + segments
        end = body + sum(data[offset + _PAGE_HEAD.size : body])
        if mark != _MARK or end > len(data) or _compute_checksum(data[offset:end]) != checksum:
            return True
        if number != next_pages.get(serial, number) or (ended and serial not in next_pages):
            return True
        next_pages[serial] = number + 1
        if flags & _IS_LAST_PAGE:
            ended.add(serial)
        offset = end
    return offset != len(data) or ended != set(next_pages)


def _compute_checksum(page: bytes) -> int:
    """Return the CRC-32 of a page without its checksum: that of `zlib` with the bits in the other order, from 0."""
    blank = page[:_CHECKSUM_OFFSET] + bytes(4) + page[_CHECKSUM_OFFSET + 4 :]
    reflected = zlib.crc32(blank.translate(_REVERSED_BITS), 0xFFFFFFFF) ^ 0xFFFFFFFF
    return int(f"{reflected:032b}"[::-1], 2)
