"""What of a file a request asks for: conditions and ranges (RFC 9110, sections 13 and 14). Pure.

A file here has a strong ETag and never changes. Several ranges at once, and units that we do not know, get the whole.
"""

from __future__ import annotations

import re
from typing import NamedTuple

# No two blanks in a row, else 32 KiB of them would be shared out between them in every way there is.
_RANGE = re.compile(r"bytes\s*=\s*(?:(\d{1,20})\s*)?-\s*(?:(\d{1,20})\s*)?", re.IGNORECASE | re.ASCII)


class ByteRange(NamedTuple):
    """The answer's status, and the bytes from `start` up to `end`."""

    status: int
    start: int
    end: int


def select_range(size: int, etag: str, *, range_: str = "", if_range: str = "", if_none_match: str = "") -> ByteRange:
    """Which part of a file of `size` bytes to send: 200, 206, 304 or 416."""
    if if_none_match and etag_matches(if_none_match, etag):
        return ByteRange(304, 0, 0)
    # Only the very same strong tag will do: a date or a weak one is never equal to it.
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
    """Whether a list of tags has this one, compared weakly."""
    if if_none_match.strip() == "*":
        return True
    return any(tag.strip().removeprefix("W/") == etag for tag in if_none_match.split(","))
