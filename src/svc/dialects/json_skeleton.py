"""Empties the long strings of a JSON body. The result is enough for routing, and costs one search for quotes.

    {"model":"m","messages":[{"role":"user","content":"<a megabyte>"}]}
    {"model":"m","messages":[{"role":"user","content":""}]}

A string ends at its first unescaped quote (RFC 8259, section 7), so every JSON parser reads the same skeleton. The
content of long strings is not validated here.
"""

from __future__ import annotations

from typing import Final

MIN_SKELETON_BODY_BYTES: Final = 32 * 1024
MAX_SKELETON_STRING_BYTES: Final = 1024
MIN_BYTES_PER_QUOTE: Final = 16
"""Minimum bytes per quote. With more quotes, escaped ones included, parsing the rest costs less."""
WINDOW_BYTES: Final = 2048
"""Bytes after a quote that are split at all quotes, at half of the cost of a search for each."""
MAX_BODY_BACKSLASHES: Final = 2_000_000
"""Maximum backslashes in a body. Each costs CPU time, and two million imply more text than any model accepts."""
MIN_BYTES_PER_BACKSLASH: Final = 512
"""With more backslashes, counting them in all bytes costs less than searching for each."""
MAX_BODY_VALUES: Final = 100_000
"""Maximum parts, keys and other values of a body. Decoding this number takes about 50 ms."""
MIN_BYTES_PER_VALUE: Final = 2
"""Bytes of the shortest value with its delimiter."""
BACKSLASH_CODE: Final = ord("\\")
_DELIMITERS: Final = b",:[{"
"""The characters that precede values. Each value except for the first has one."""


def has_excess_backslashes(raw: bytes) -> bool:
    """Return whether a body has more than MAX_BODY_BACKSLASHES backslashes."""
    if len(raw) <= MAX_BODY_BACKSLASHES:
        return False
    count, max_searches = 0, len(raw) // MIN_BYTES_PER_BACKSLASH
    index = raw.find(b"\\")
    while index >= 0 and count < max_searches:
        count += 1
        index = raw.find(b"\\", index + 1)
    return index >= 0 and count + raw.count(b"\\", index) > MAX_BODY_BACKSLASHES


def has_excess_values(skeleton: bytes) -> bool:
    """Return whether the skeleton of a body has more than MAX_BODY_VALUES values, without decoding it."""
    if len(skeleton) <= MIN_BYTES_PER_VALUE * MAX_BODY_VALUES or _count_delimiters(skeleton) <= MAX_BODY_VALUES:
        return False
    segments: list[bytes] = []  # delimiters in strings precede no values
    string_count = position = 0
    while string_count < MAX_BODY_VALUES and (start := skeleton.find(b'"', position)) >= 0:
        segments.append(skeleton[position:start])
        string_count += 1
        end = find_closing_quote(skeleton, start + 1)
        position = end + 1 if end >= 0 else len(skeleton)
    segments.append(skeleton[position:])
    return string_count == MAX_BODY_VALUES or _count_delimiters(b"".join(segments)) > MAX_BODY_VALUES


def _count_delimiters(text: bytes) -> int:
    return len(text) - len(text.translate(None, _DELIMITERS))


def strip_long_strings(raw: bytes) -> bytes:
    """Empty strings over MAX_SKELETON_STRING_BYTES. A short body, and the end of one with many quotes, is unchanged."""
    if len(raw) < MIN_SKELETON_BODY_BYTES:
        return raw
    segments: list[bytes] = []
    copied_to, quotes_left = 0, len(raw) // MIN_BYTES_PER_QUOTE
    start = -1  # the opening quote of the string in which the window begins, or -1
    window_start = raw.find(b'"')
    while window_start >= 0 and quotes_left > 0:
        parts = raw[window_start : window_start + WINDOW_BYTES].split(b'"')
        quote_count = len(parts) - 1
        quotes_left -= quote_count
        index = window_start - 1
        for number in range(quote_count):
            index += len(parts[number]) + 1
            if start < 0:
                start = index
            elif not _is_escaped(raw, index, start + 1):
                if index - start > MAX_SKELETON_STRING_BYTES:
                    segments.append(raw[copied_to : start + 1])
                    copied_to = index
                start = -1
        window_start = raw.find(b'"', window_start + WINDOW_BYTES)
    if not segments:
        return raw
    return b"".join((*segments, raw[copied_to:]))


def find_closing_quote(raw: bytes, start: int) -> int:
    """Return the index of the closing quote of a string that begins at `start`, or -1 if it is unterminated."""
    end = raw.find(b'"', start)
    while end >= 0 and _is_escaped(raw, end, start):
        end = raw.find(b'"', end + 1)
    return end


def _is_escaped(raw: bytes, index: int, start: int) -> bool:
    """Return whether an odd number of backslashes precede a character of a string that begins at `start`."""
    first = index
    while first > start and raw[first - 1] == BACKSLASH_CODE:
        first -= 1
    return (index - first) % 2 == 1
