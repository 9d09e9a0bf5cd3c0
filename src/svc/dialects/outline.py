"""A long body without the insides of its long strings: enough to route it, at the price of a search for quotes.

    {"model":"m","messages":[{"role":"user","content":"<a megabyte>"}]}
    {"model":"m","messages":[{"role":"user","content":""}]}

A string ends at the first quote that is not escaped, whatever else is in it. So what is left means the same to every
reader of JSON; whether the inside of a long string is well formed is for the one to say who reads it.
"""

from __future__ import annotations

from typing import Final

LONG_BODY: Final = 32 * 1024
LONG_STRING: Final = 1024
SPARSE: Final = 256
"""Bytes for each quote, at least: where there are more quotes, looking at all of it costs less."""
MAX_BACKSLASHES: Final = 64
_BACKSLASH: Final = ord("\\")


def outline(raw: bytes) -> bytes:
    """The body without the insides of strings over LONG_STRING; the body itself if it is short, or full of quotes."""
    if len(raw) < LONG_BODY:
        return raw
    kept: list[bytes] = []
    done, left = 0, len(raw) // SPARSE
    start = raw.find(b'"')
    while start >= 0:
        end = raw.find(b'"', start + 1)
        while end > 0 and raw[end - 1] == _BACKSLASH:
            left -= 1
            run = _backslashes(raw, end)
            if left < 0 or run >= MAX_BACKSLASHES:
                return raw
            if run % 2 == 0:
                break
            end = raw.find(b'"', end + 1)
        left -= 1
        if left < 0 or end < 0:
            return raw
        if end - start > LONG_STRING:
            kept.append(raw[done : start + 1])
            done = end
        start = raw.find(b'"', end + 1)
    kept.append(raw[done:])
    return b"".join(kept)


def _backslashes(raw: bytes, end: int) -> int:
    """How many stand before `end`; no more than MAX_BACKSLASHES are counted."""
    count = 0
    while count < MAX_BACKSLASHES and raw[end - 1 - count] == _BACKSLASH:
        count += 1
    return count
