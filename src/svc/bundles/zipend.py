"""The end records of a zip, read before anything else: what they promise has to be what is there.

Readers differ in what they believe: Python takes the directory's size and place, others its count of entries (APPNOTE
4.3.14 to 4.3.16). A bundle on whose content two readers would not agree is refused.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import NamedTuple

from svc.bundles.archive import Limits
from svc.errors import InvalidBundle

_END = struct.Struct("<4s4H2LH")
_LOCATOR = struct.Struct("<4sLQL")
_END_64 = struct.Struct("<4sQ2H2L4Q")
_MAX_COMMENT = 0xFFFF
_DIRECTORY_ENTRY = 46
_MOST_OF_ENTRY = 4096
"""Bytes of the directory for one member, on average: a name of 1,024 bytes, times, and room for extra fields."""


Read = Callable[[int, int], bytes]
"""Bytes from a place on, as many as are asked for unless the file ends before."""


class End(NamedTuple):
    """The directory by the end records, and the place where these begin."""

    entries: int
    size: int
    offset: int
    start: int


def read_end(read: Read, size: int, limits: Limits) -> End:
    """The end of a file of `size` bytes. Raises InvalidBundle when it contradicts itself or the file."""
    at, record = _find(read, size)
    disk, first_disk, here, entries, length, offset = record
    end = End(entries, length, offset, at)
    locator = read(at - _LOCATOR.size, _LOCATOR.size) if at >= _LOCATOR.size else b""
    if locator[:4] == b"PK\x06\x07":
        end, here = _read_large(read, at, locator, end, here)
    if disk or first_disk or here != end.entries:
        raise _refusal("its end record speaks of several disks, or of several numbers of members")
    if end.offset + end.size != end.start:
        raise _refusal("its end record does not say where its directory is")
    if end.entries > limits.members:
        raise InvalidBundle(f"The bundle is refused: it has more than {limits.members} members.")
    if not end.entries * _DIRECTORY_ENTRY <= end.size <= end.entries * _MOST_OF_ENTRY:
        raise _refusal(f"its directory of {end.size} bytes is not one of {end.entries} members")
    return end


def _find(read: Read, size: int) -> tuple[int, tuple[int, ...]]:
    """The end record whose comment ends where the file does. The last signature decides, as it does in Python."""
    start = max(0, size - _END.size)
    tail = read(start, size - start)
    if tail[:4] != b"PK\x05\x06":  # there is a comment
        start = max(0, start - _MAX_COMMENT)
        tail = read(start, size - start)
    at = tail.rfind(b"PK\x05\x06", 0, max(0, len(tail) - _END.size + 4))
    if at < 0:
        raise InvalidBundle("The bundle is not a valid zip: it has no end record.")
    _, *fields, comment = _END.unpack_from(tail, at)
    if at + _END.size + comment != len(tail):
        raise _refusal("bytes follow its end record")
    return start + at, tuple(fields)


def _read_large(read: Read, at: int, locator: bytes, small: End, here: int) -> tuple[End, int]:
    """The ZIP64 record, which the small one has to agree with wherever that is not saturated."""
    _, disk, offset, disks = _LOCATOR.unpack(locator)
    start = at - _LOCATOR.size - _END_64.size
    data = read(start, _END_64.size) if start >= 0 else b""
    if len(data) < _END_64.size or data[:4] != b"PK\x06\x06" or offset != start or disk or disks > 1:
        raise _refusal("its ZIP64 end record is not where it should be")
    _, length, _, _, own_disk, first_disk, large_here, entries, size, directory = _END_64.unpack(data)
    pairs = (
        *((here, large_here, 0xFFFF), (small.entries, entries, 0xFFFF)),
        *((small.size, size, 0xFFFFFFFF), (small.offset, directory, 0xFFFFFFFF)),
    )
    if any(short not in (long, full) for short, long, full in pairs):
        raise _refusal("its two end records contradict each other")
    if own_disk or first_disk or length != _END_64.size - 12:
        raise _refusal("its ZIP64 end record is malformed")
    return End(entries, size, directory, start), large_here


def _refusal(why: str) -> InvalidBundle:
    return InvalidBundle(f"The bundle is refused: {why}.")
