"""Evaluate conditional and range requests (RFC 9110, sections 13 and 14). Pure functions.

Files are immutable and have strong ETags. Multiple ranges and unknown range units get the whole file.
"""

from __future__ import annotations

import re
from typing import NamedTuple

# The pattern never matches adjacent blanks twice: 32 KiB of blanks would cause quadratic backtracking.
_RANGE = re.compile(r"bytes\s*=\s*(?:(\d{1,20})\s*)?-\s*(?:(\d{1,20})\s*)?", re.IGNORECASE | re.ASCII)


class ByteRange(NamedTuple):
    """The status of the response, and the bytes from `start` to `end`, exclusive."""

    status: int
    start: int
    end: int


def select_range(size: int, etag: str, *, range_: str = "", if_range: str = "", if_none_match: str = "") -> ByteRange:
    """Select the status (200, 206, 304 or 416) and the bytes to send from a file of `size` bytes."""
    if if_none_match and etag_matches(if_none_match, etag):
        return ByteRange(304, 0, 0)
    # If-Range needs strong comparison: a date or a weak tag never matches (RFC 9110, section 13.1.5).
    match = _RANGE.fullmatch(range_.strip()) if range_ and (not if_range or if_range.strip() == etag) else None
    if match is None or not (match[1] or match[2]):
        return ByteRange(200, 0, size)
    if not match[1]:
        length = min(int(match[2]), size)
        return ByteRange(206, size - length, size) if length else ByteRange(416, 0, 0)
    start = int(match[1])
    if match[2] and int(match[2]) < start:
        return ByteRange(200, 0, size)
    if start >= size:
        return ByteRange(416, 0, 0)
    return ByteRange(206, start, min(int(match[2]) + 1, size) if match[2] else size)


def etag_matches(if_none_match: str, etag: str) -> bool:
    """Return whether a list of tags contains the ETag, by weak comparison (RFC 9110, section 13.1.2)."""
    if if_none_match.strip() == "*":
        return True
    return any(tag.strip().removeprefix("W/") == etag for tag in if_none_match.split(","))
