"""The end records of a zip, read before anything else: what they promise has to be what is there.

Readers differ in what they believe: Python takes the directory's size and place, others its count of entries (APPNOTE
4.3.14 to 4.3.16). A bundle on whose content two readers would not agree is refused.
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
"""Bytes of the directory for one member, on average: a name of 1,024 bytes, times, and room for extra fields."""


ReadFileRange = Callable[[int, int], bytes]
"""Bytes from a place on, as many as are asked for unless the file ends before."""


class ZipEndRecord(NamedTuple):
    """The directory by the end records, and the place where these begin."""

    entry_count: int
    directory_size: int
    directory_offset: int
    record_offset: int


def read_end_record(read: ReadFileRange, size: int, limits: ArchiveLimits) -> ZipEndRecord:
    """The end of a file of `size` bytes. Raises InvalidBundle when it contradicts itself or the file."""
    record_offset, record = _find_end_record(read, size)
    disk, first_disk, disk_entries, entries, length, offset = record
    end = ZipEndRecord(entries, length, offset, record_offset)
    locator = (
        read(record_offset - _ZIP64_LOCATOR.size, _ZIP64_LOCATOR.size) if record_offset >= _ZIP64_LOCATOR.size else b""
    )
    if locator[:4] == b"PK\x06\x07":
        end, disk_entries = _read_zip64_record(read, record_offset, locator, end, disk_entries)
    if disk or first_disk or disk_entries != end.entry_count:
        raise _invalid_zip("its end record speaks of several disks, or of several numbers of members")
    if end.directory_offset + end.directory_size != end.record_offset:
        raise _invalid_zip("its end record does not say where its directory is")
    if end.entry_count > limits.max_members:
        raise InvalidBundle(f"The bundle is refused: it has more than {limits.max_members} members.")
    if (
        not end.entry_count * _MIN_DIRECTORY_ENTRY_BYTES
        <= end.directory_size
        <= end.entry_count * _MAX_MEAN_DIRECTORY_ENTRY_BYTES
    ):
        raise _invalid_zip(f"its directory of {end.directory_size} bytes is not one of {end.entry_count} members")
    return end


def _find_end_record(read: ReadFileRange, size: int) -> tuple[int, tuple[int, ...]]:
    """The end record whose comment ends where the file does. The last signature decides, as it does in Python."""
    start = max(0, size - _END_RECORD.size)
    tail = read(start, size - start)
    if tail[:4] != b"PK\x05\x06":  # there is a comment
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
    """The ZIP64 record, which the small one has to agree with wherever that is not saturated."""
    _, disk, offset, disks = _ZIP64_LOCATOR.unpack(locator)
    start = record_offset - _ZIP64_LOCATOR.size - _ZIP64_END_RECORD.size
    data = read(start, _ZIP64_END_RECORD.size) if start >= 0 else b""
    if len(data) < _ZIP64_END_RECORD.size or data[:4] != b"PK\x06\x06" or offset != start or disk or disks > 1:
        raise _invalid_zip("its ZIP64 end record is not where it should be")
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
    return InvalidBundle(f"The bundle is refused: {reason}.")
