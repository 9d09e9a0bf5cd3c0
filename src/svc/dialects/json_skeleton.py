"""A long body without the insides of its long strings: enough to route it, at the price of a search for quotes.

    {"model":"m","messages":[{"role":"user","content":"<a megabyte>"}]}
    {"model":"m","messages":[{"role":"user","content":""}]}

A string ends at the first quote that is not escaped, whatever else is in it. So what is left means the same to every
reader of JSON; whether the inside of a long string is well formed is for the one to say who reads it.
"""

from __future__ import annotations

import re
from typing import Final

MIN_SKELETON_BODY_BYTES: Final = 32 * 1024
MAX_SKELETON_STRING_BYTES: Final = 1024
MIN_BYTES_PER_QUOTE: Final = 256
"""Bytes for each quote, at least: where there are more quotes, looking at all of it costs less."""
MAX_BODY_BACKSLASHES: Final = 1_000_000
"""Backslashes of a body. Each takes time, and a million of them mean more text than any model takes."""
MAX_BODY_VALUES: Final = 100_000
"""Parts, keys and other values of a body: reading as many takes some 50 ms."""
MAX_SCANNABLE_DELIMITERS: Final = 10 * MAX_BODY_VALUES
_BACKSLASH_CODE: Final = ord("\\")
_STRING_REMAINDER: Final = re.compile(rb'[^"\\]*+(?:\\.[^"\\]*+)*+', re.DOTALL)
"""A string up to its closing quote."""
_QUOTED_STRING: Final = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+(?:"|\\?\Z)', re.DOTALL)
"""A string with its quotes. The last one may lack its end: else the search would begin again at each quote in it."""


def has_excess_backslashes(raw: bytes) -> bool:
    """Whether a body has more than MAX_ESCAPES backslashes."""
    return len(raw) > MAX_BODY_BACKSLASHES and raw.count(b"\\") > MAX_BODY_BACKSLASHES


def has_excess_values(skeleton: bytes) -> bool:
    """Whether the outline of a body has more than MAX_VALUES values, found without reading it."""
    if len(skeleton) < MIN_SKELETON_BODY_BYTES or (delimiters := _count_delimiters(skeleton)) <= MAX_BODY_VALUES:
        return False
    if delimiters > MAX_SCANNABLE_DELIMITERS:  # even if most of them stand in its strings
        return True
    without_strings, string_count = _QUOTED_STRING.subn(
        b"", skeleton, MAX_BODY_VALUES
    )  # marks in strings begin no values
    return string_count == MAX_BODY_VALUES or _count_delimiters(without_strings) > MAX_BODY_VALUES


def _count_delimiters(text: bytes) -> int:
    """Count the marks that come before values: a text has no more values than marks, but for the first."""
    return text.count(b",") + text.count(b":") + text.count(b"[") + text.count(b"{")


def strip_long_strings(raw: bytes) -> bytes:
    """The body without the insides of strings over LONG_STRING; the body itself if it is short, or full of strings."""
    if len(raw) < MIN_SKELETON_BODY_BYTES:
        return raw
    segments: list[bytes] = []
    copied_to, quotes_left = 0, len(raw) // MIN_BYTES_PER_QUOTE
    start = raw.find(b'"')
    while start >= 0:
        end = raw.find(b'"', start + 1)
        if end > 0 and raw[end - 1] == _BACKSLASH_CODE:
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
    """The closing quote of a string that has escapes; -1 if there is none."""
    remainder = _STRING_REMAINDER.match(raw, start)
    end = remainder.end() if remainder is not None else len(raw)
    return end if end < len(raw) and raw[end] != _BACKSLASH_CODE else -1
