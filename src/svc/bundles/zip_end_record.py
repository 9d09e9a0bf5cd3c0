"""Read and check the end records of a zip before anything else.

Readers disagree on which fields to trust: Python uses the directory's size and position, others its entry count
(APPNOTE 4.3.14 to 4.3.16). A bundle that two readers would interpret differently is rejected.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import NamedTuple

from svc.bundles.archive import ArchiveLimits
from svc.errors import InvalidBundle

_END_RECORD = struct.Struct("<4s4H2LH")
_ZIP64_LOCATOR = struct.Struct("<4sLQL")
_ZIP64_END_RECORD = struct.Struct("<4sQ2H2L4Q")
_MAX_COMMENT_BYTES = 0xFFFF
_MIN_DIRECTORY_ENTRY_BYTES = 46
_MAX_MEAN_DIRECTORY_ENTRY_BYTES = 4096
"""Average directory bytes per member: twice a name of 1,024 bytes, and extra fields."""


ReadFileRange = Callable[[int, int], bytes]
"""Returns `length` bytes from `start`, fewer only at the end of the file."""


class ZipEndRecord(NamedTuple):
    """The directory according to the end records, and the position of the end records."""

    entry_count: int
    directory_size: int
    directory_offset: int
    record_offset: int


def read_end_record(read: ReadFileRange, size: int, limits: ArchiveLimits) -> ZipEndRecord:
    """Read the end records of a file of `size` bytes. Raises InvalidBundle for contradictions."""
    record_offset, record = _find_end_record(read, size)
    disk, first_disk, disk_entries, entries, length, offset = record
    end = ZipEndRecord(entries, length, offset, record_offset)
    locator = (
        read(record_offset - _ZIP64_LOCATOR.size, _ZIP64_LOCATOR.size) if record_offset >= _ZIP64_LOCATOR.size else b""
    )
    if locator[:4] == b"PK\x06\x07":
        end, disk_entries = _read_zip64_record(read, record_offset, locator, end, disk_entries)
    if disk or first_disk or disk_entries != end.entry_count:
        raise _invalid_zip("its end record has several disks or contradictory member counts")
    if end.directory_offset + end.directory_size != end.record_offset:
        raise _invalid_zip("its directory does not end at its end record")
    if end.entry_count > limits.max_members:
        raise InvalidBundle(f"The bundle is rejected: it has more than {limits.max_members} members.")
    if (
        not end.entry_count * _MIN_DIRECTORY_ENTRY_BYTES
        <= end.directory_size
        <= end.entry_count * _MAX_MEAN_DIRECTORY_ENTRY_BYTES
    ):
        raise _invalid_zip(f"its directory of {end.directory_size} bytes cannot have {end.entry_count} members")
    return end


def _find_end_record(read: ReadFileRange, size: int) -> tuple[int, tuple[int, ...]]:
    """Find the end record whose comment ends at the end of the file. The last signature counts, as in Python."""
    start = max(0, size - _END_RECORD.size)
    tail = read(start, size - start)
    if tail[:4] != b"PK\x05\x06":  # the archive has a comment
        start = max(0, start - _MAX_COMMENT_BYTES)
        tail = read(start, size - start)
    record_offset = tail.rfind(b"PK\x05\x06", 0, max(0, len(tail) - _END_RECORD.size + 4))
    if record_offset < 0:
        raise InvalidBundle("The bundle is not a valid zip: it has no end record.")
    _, *fields, comment = _END_RECORD.unpack_from(tail, record_offset)
    if record_offset + _END_RECORD.size + comment != len(tail):
        raise _invalid_zip("bytes follow its end record")
    return start + record_offset, tuple(fields)


def _read_zip64_record(
    read: ReadFileRange, record_offset: int, locator: bytes, end_record: ZipEndRecord, disk_entries: int
) -> tuple[ZipEndRecord, int]:
    """Read the ZIP64 record. It must agree with each field of the end record that is not saturated."""
    _, disk, offset, disks = _ZIP64_LOCATOR.unpack(locator)
    start = record_offset - _ZIP64_LOCATOR.size - _ZIP64_END_RECORD.size
    data = read(start, _ZIP64_END_RECORD.size) if start >= 0 else b""
    if len(data) < _ZIP64_END_RECORD.size or data[:4] != b"PK\x06\x06" or offset != start or disk or disks > 1:
        raise _invalid_zip("its ZIP64 end record is at the wrong position")
    _, length, _, _, own_disk, first_disk, zip64_disk_entries, entries, size, directory_offset = (
        _ZIP64_END_RECORD.unpack(data)
    )
    pairs = (
        *((disk_entries, zip64_disk_entries, 0xFFFF), (end_record.entry_count, entries, 0xFFFF)),
        *((end_record.directory_size, size, 0xFFFFFFFF), (end_record.directory_offset, directory_offset, 0xFFFFFFFF)),
    )
    if any(short not in (long, full) for short, long, full in pairs):
        raise _invalid_zip("its two end records contradict each other")
    if own_disk or first_disk or length != _ZIP64_END_RECORD.size - 12:
        raise _invalid_zip("its ZIP64 end record is malformed")
    return ZipEndRecord(entries, size, directory_offset, start), zip64_disk_entries


def _invalid_zip(reason: str) -> InvalidBundle:
    return InvalidBundle(f"The bundle is rejected: {reason}.")
