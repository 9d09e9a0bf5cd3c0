"""Empties the long strings of a JSON body. The result is enough for routing, and costs one search for quotes.

    {"model":"m","messages":[{"role":"user","content":"<a megabyte>"}]}
    {"model":"m","messages":[{"role":"user","content":""}]}

A string ends at its first unescaped quote (RFC 8259, section 7), so every JSON parser reads the same skeleton. The
content of long strings is not validated here.
"""

from __future__ import annotations

import re
from typing import Final

MIN_SKELETON_BODY_BYTES: Final = 32 * 1024
MAX_SKELETON_STRING_BYTES: Final = 1024
MIN_BYTES_PER_QUOTE: Final = 256
"""Minimum bytes per quote. With more quotes, parsing the complete body costs less."""
MAX_BODY_BACKSLASHES: Final = 1_000_000
"""Maximum backslashes in a body. Each costs CPU time, and a million implies more text than any model accepts."""
MAX_BODY_VALUES: Final = 100_000
"""Maximum parts, keys and other values of a body. Decoding this number takes about 50 ms."""
MAX_SCANNABLE_DELIMITERS: Final = 10 * MAX_BODY_VALUES
BACKSLASH_CODE: Final = ord("\\")
_STRING_REMAINDER: Final = re.compile(rb'[^"\\]*+(?:\\.[^"\\]*+)*+', re.DOTALL)
"""The rest of a string up to its closing quote."""
_QUOTED_STRING: Final = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+(?:"|\\?\Z)', re.DOTALL)
"""A string with its quotes. An unterminated last one matches too, which prevents a new search at each quote."""


def has_excess_backslashes(raw: bytes) -> bool:
    """Return whether a body has more than MAX_BODY_BACKSLASHES backslashes."""
    return len(raw) > MAX_BODY_BACKSLASHES and raw.count(b"\\") > MAX_BODY_BACKSLASHES


def has_excess_values(skeleton: bytes) -> bool:
    """Return whether the skeleton of a body has more than MAX_BODY_VALUES values, without decoding it."""
    if len(skeleton) < MIN_SKELETON_BODY_BYTES or (delimiters := _count_delimiters(skeleton)) <= MAX_BODY_VALUES:
        return False
    if delimiters > MAX_SCANNABLE_DELIMITERS:  # even if most of them are in strings
        return True
    without_strings, string_count = _QUOTED_STRING.subn(
        b"", skeleton, MAX_BODY_VALUES
    )  # delimiters in strings precede no values
    return string_count == MAX_BODY_VALUES or _count_delimiters(without_strings) > MAX_BODY_VALUES


def _count_delimiters(text: bytes) -> int:
    """Count the delimiters that precede values. Each value except for the first has one."""
    return text.count(b",") + text.count(b":") + text.count(b"[") + text.count(b"{")


def strip_long_strings(raw: bytes) -> bytes:
    """Empty strings over MAX_SKELETON_STRING_BYTES. A short body, or one with many quotes, is returned unchanged."""
    if len(raw) < MIN_SKELETON_BODY_BYTES:
        return raw
    segments: list[bytes] = []
    copied_to, quotes_left = 0, len(raw) // MIN_BYTES_PER_QUOTE
    start = raw.find(b'"')
    while start >= 0:
        end = raw.find(b'"', start + 1)
        if end > 0 and raw[end - 1] == BACKSLASH_CODE:
            end = _find_closing_quote(raw, start + 1)
        quotes_left -= 2
        if quotes_left < 0 or end < 0:
            return raw
        if end - start > MAX_SKELETON_STRING_BYTES:
            segments.append(raw[copied_to : start + 1])
            copied_to = end
        start = raw.find(b'"', end + 1)
    segments.append(raw[copied_to:])
    return b"".join(segments)


def _find_closing_quote(raw: bytes, start: int) -> int:
    """Return the index of the closing quote of a string with escapes, or -1."""
    remainder = _STRING_REMAINDER.match(raw, start)
    end = remainder.end() if remainder is not None else len(raw)
    return end if end < len(raw) and raw[end] != BACKSLASH_CODE else -1
