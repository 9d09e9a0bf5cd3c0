"""Finds the byte spans of the values of a JSON object's fields. No I/O.

{"model": "m", "tools": [{"model": 1}]}
          └─┘           └────────────┘
"""

from __future__ import annotations

import re
from typing import Any, Final

from svc.dialects.validation import decode_client_fields

ByteSpan = tuple[int, int]
"""The index of a value's first byte, and of the byte after its last byte."""

_WHITESPACE: Final = re.compile(rb"[\x00- ]*")
"""JSON whitespace. In valid JSON, no other control character can occur between tokens."""
_SPACE_CODE: Final = 0x20
_COLON_CODE: Final = 0x3A
_COMMA_CODE: Final = 0x2C
_OPENING_BRACE_CODE: Final = 0x7B
_CLOSING_BRACE_CODE: Final = 0x7D


def decode_unambiguous_fields(raw: bytes) -> dict[str, Any]:
    """Return each field of a valid JSON object as `msgspec.Raw`.

    Empty if a name is repeated or escaped, since parsers differ on such bodies, and for an object without fields.
    Raises InvalidRequest for anything but a JSON object.
    """
    fields: dict[str, Any] = decode_client_fields(raw)
    return fields if _is_compact(raw, fields) or _walk_spans(raw, fields) else {}


def read_fields(raw: bytes, skeleton: bytes) -> tuple[set[str], int, int]:
    """Return the names of a body's fields and the span of `model`, as `json_scan.scan_object` does.

    The end of the span is 0 if it is not known. Raises InvalidRequest for anything but a JSON object.
    """
    fields = decode_unambiguous_fields(skeleton)
    if "model" not in fields:
        return set(fields), 0, 0
    start, end = find_field_span(skeleton, fields, "model")
    shift = _find_shift(raw, skeleton, start, end)
    return (set(fields), 0, 0) if shift is None else (set(fields), start + shift, end + shift)


def find_field_span(raw: bytes, fields: dict[str, Any], name: str) -> ByteSpan:
    """Return the span of a field. `fields` is the result of `decode_unambiguous_fields` for `raw`."""
    if not _is_compact(raw, fields):
        return _walk_spans(raw, fields)[name]
    index = 1
    for other, value in fields.items():
        start = index + len(other) + len('"":')
        if other == name:
            break
        index = start + len(value) + 1  # the comma
    return start, start + len(fields[name])


def _find_shift(raw: bytes, skeleton: bytes, start: int, stop: int) -> int | None:
    """Return the offset of a value in the body minus that in the skeleton, or None between two emptied strings.

    The skeleton has the bytes of the body up to its first emptied string, and from the end of its last one. An emptied
    string always differs: beside one of its quotes, the skeleton has the other quote and the body has a character of
    the string. If that character is an escaped quote, a backslash precedes it, which the skeleton lacks.
    """
    if skeleton is raw or raw.startswith(skeleton[:stop]):
        return 0
    return len(raw) - len(skeleton) if raw.endswith(skeleton[start:]) else None


def _is_compact(raw: bytes, fields: dict[str, Any]) -> bool:
    """Return whether the object is the sum of its fields.

    Whitespace, a repeated field, and an escape or a non-ASCII letter in a name each make it longer.
    """
    size = 1
    for name, value in fields.items():
        size += len(name) + len(value) + len('"":,')
    return size == len(raw) and size > 1


def _walk_spans(raw: bytes, fields: dict[str, Any]) -> dict[str, ByteSpan]:
    """Return the spans by finding each field in the order of the object. Empty if the fields are ambiguous.

    The decoder keeps the last value of a repeated name. Each step must find exactly the next name and value, with the
    separator before them, so that the walk never leaves the top-level object.
    """
    spans: dict[str, ByteSpan] = {}
    end, separator = len(raw), _OPENING_BRACE_CODE
    index = _skip_whitespace(raw, 0, end)
    for name, value in fields.items():
        key = b'"%b"' % name.encode()
        if index >= end or raw[index] != separator:
            return {}
        index = _skip_whitespace(raw, index + 1, end)
        if not raw.startswith(key, index):
            return {}
        index = _skip_whitespace(raw, index + len(key), end)
        if index >= end or raw[index] != _COLON_CODE:
            return {}
        start = _skip_whitespace(raw, index + 1, end)
        if not raw.startswith(value, start):
            return {}
        spans[name] = start, start + len(value)
        index, separator = _skip_whitespace(raw, start + len(value), end), _COMMA_CODE
    is_whole = index < end and raw[index] == _CLOSING_BRACE_CODE and _skip_whitespace(raw, index + 1, end) == end
    return spans if is_whole else {}


def _skip_whitespace(raw: bytes, index: int, end: int) -> int:
    """Return the index of the first byte at or after `index` that is not whitespace."""
    if index >= end or raw[index] > _SPACE_CODE:
        return index
    index += 1
    if index >= end or raw[index] > _SPACE_CODE:  # one space, which is the usual case, costs no search
        return index
    whitespace = _WHITESPACE.match(raw, index, end)
    return index if whitespace is None else whitespace.end()
