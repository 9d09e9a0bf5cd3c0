"""Finds the byte spans of the values of a JSON object's fields. No I/O.

{"model": "m", "tools": [{"model": 1}]}
          └─┘           └────────────┘
"""

from __future__ import annotations

from typing import Any, Final

from svc.dialects.validation import decode_client_fields

ByteSpan = tuple[int, int]
"""The index of a value's first byte, and of the byte after its last byte."""

_SPACE_CODE: Final = 0x20
_QUOTE_CODE: Final = 0x22
_COLON_CODE: Final = 0x3A
_CLOSING_BRACE_CODE: Final = 0x7D


def find_field_spans(raw: bytes) -> dict[str, ByteSpan] | None:
    """Return the span of each field of a valid JSON object.

    None if a name is repeated or escaped, since parsers differ on such bodies, and for an object without fields.
    Raises InvalidRequest for anything but a JSON object.
    """
    fields: dict[str, Any] = decode_client_fields(raw)
    spans: dict[str, ByteSpan] = {}
    end = len(raw)
    index = _skip_whitespace(raw, 0, end)
    for name, value in fields.items():
        key = name.encode()
        index = _skip_whitespace(raw, index + 1, end) + 1  # after the brace or the comma, and after the quote
        if not raw.startswith(key, index):
            return None
        index += len(key)
        if index >= end or raw[index] != _QUOTE_CODE:
            return None
        index = _skip_whitespace(raw, index + 1, end)
        if index >= end or raw[index] != _COLON_CODE:
            return None
        start = _skip_whitespace(raw, index + 1, end)
        if not raw.startswith(value, start):
            return None
        stop = start + len(value)
        spans[name] = start, stop
        index = _skip_whitespace(raw, stop, end)
    return spans if index < end and raw[index] == _CLOSING_BRACE_CODE and fields else None


def _skip_whitespace(raw: bytes, index: int, end: int) -> int:
    """Return the index of the first byte at or after `index` that is not whitespace. Other controls are not JSON."""
    while index < end and raw[index] <= _SPACE_CODE:
        index += 1
    return index
