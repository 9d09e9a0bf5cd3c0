"""Finds the byte spans of the values of a JSON object's fields. No I/O.

{"model": "m", "tools": [{"model": 1}]}
          └─┘           └────────────┘
"""

from __future__ import annotations

from typing import Any, Final

from svc.dialects.validation import decode_client_fields

ByteSpan = tuple[int, int]
"""The index of a value's first byte, and of the byte after its last byte."""

_WHITESPACE: Final = b" \t\n\r"


def find_field_spans(raw: bytes) -> dict[str, ByteSpan] | None:
    """Return the span of each field. None if a name is repeated or escaped, since parsers differ on such bodies.

    None also for an object without fields. Raises InvalidRequest for anything but a JSON object.
    """
    fields: dict[str, Any] = decode_client_fields(raw)
    spans: dict[str, ByteSpan] = {}
    index = _skip_whitespace(raw, 0)
    for name, value in fields.items():
        key = b'"%b"' % name.encode()
        index = _skip_whitespace(raw, index + 1)  # after the brace or the comma
        if not raw.startswith(key, index):
            return None
        index = _skip_whitespace(raw, index + len(key))
        start = _skip_whitespace(raw, index + 1)
        encoded_value = bytes(value)
        if raw[index : index + 1] != b":" or not raw.startswith(encoded_value, start):
            return None
        spans[name] = start, start + len(encoded_value)
        index = _skip_whitespace(raw, start + len(encoded_value))
    return spans if raw[index : index + 1] == b"}" else None


def _skip_whitespace(raw: bytes, index: int) -> int:
    """Return the index of the first byte at or after `index` that is not whitespace."""
    while index < len(raw) and raw[index] in _WHITESPACE:
        index += 1
    return index
