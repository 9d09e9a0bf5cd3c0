"""A long body without the insides of its long strings: enough to route it, at the price of a search for quotes.

    {"model":"m","messages":[{"role":"user","content":"<a megabyte>"}]}
    {"model":"m","messages":[{"role":"user","content":""}]}

A string ends at the first quote that is not escaped, whatever else is in it. So what is left means the same to every
reader of JSON; whether the inside of a long string is well formed is for the one to say who reads it.
"""

from __future__ import annotations

import re
from typing import Final

LONG_BODY: Final = 32 * 1024
LONG_STRING: Final = 1024
SPARSE: Final = 256
"""Bytes for each quote, at least: where there are more quotes, looking at all of it costs less."""
MAX_ESCAPES: Final = 1_000_000
"""Backslashes of a body. Each takes time, and a million of them mean more text than any model takes."""
MAX_VALUES: Final = 100_000
"""Parts, keys and other values of a body: reading as many takes some 50 ms."""
FAR_TOO_MANY: Final = 10 * MAX_VALUES
_BACKSLASH: Final = ord("\\")
_REST: Final = re.compile(rb'[^"\\]*+(?:\\.[^"\\]*+)*+', re.DOTALL)
"""A string up to its closing quote."""
_STRING: Final = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+(?:"|\\?\Z)', re.DOTALL)
"""A string with its quotes. The last one may lack its end: else the search would begin again at each quote in it."""


def has_many_escapes(raw: bytes) -> bool:
    """Whether a body has more than MAX_ESCAPES backslashes."""
    return len(raw) > MAX_ESCAPES and raw.count(b"\\") > MAX_ESCAPES


def has_many_values(short: bytes) -> bool:
    """Whether the outline of a body has more than MAX_VALUES values, found without reading it."""
    if len(short) < LONG_BODY or (marks := _marks(short)) <= MAX_VALUES:
        return False
    if marks > FAR_TOO_MANY:  # even if most of them stand in its strings
        return True
    bare, strings = _STRING.subn(b"", short, MAX_VALUES)  # marks in strings begin no values
    return strings == MAX_VALUES or _marks(bare) > MAX_VALUES


def _marks(text: bytes) -> int:
    """Count the marks that come before values: a text has no more values than marks, but for the first."""
    return text.count(b",") + text.count(b":") + text.count(b"[") + text.count(b"{")


def outline(raw: bytes) -> bytes:
    """The body without the insides of strings over LONG_STRING; the body itself if it is short, or full of strings."""
    if len(raw) < LONG_BODY:
        return raw
    kept: list[bytes] = []
    done, left = 0, len(raw) // SPARSE
    start = raw.find(b'"')
    while start >= 0:
        end = raw.find(b'"', start + 1)
        if end > 0 and raw[end - 1] == _BACKSLASH:
            end = _closing(raw, start + 1)
        left -= 2
        if left < 0 or end < 0:
            return raw
        if end - start > LONG_STRING:
            kept.append(raw[done : start + 1])
            done = end
        start = raw.find(b'"', end + 1)
    kept.append(raw[done:])
    return b"".join(kept)


def _closing(raw: bytes, inside: int) -> int:
    """The closing quote of a string that has escapes; -1 if there is none."""
    found = _REST.match(raw, inside)
    end = found.end() if found is not None else len(raw)
    return end if end < len(raw) and raw[end] != _BACKSLASH else -1
