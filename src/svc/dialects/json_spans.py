"""Where the values of a JSON object's fields stand in its bytes. Pure.

{"model": "m", "tools": [{"model": 1}]}
          └─┘           └────────────┘
"""

from __future__ import annotations

from typing import Any, Final

from svc.dialects.validation import decode_client_fields

ByteSpan = tuple[int, int]
"""The index of a value's first byte, and of the byte after its last one."""

_WHITESPACE: Final = b" \t\n\r"


def find_field_spans(raw: bytes) -> dict[str, ByteSpan] | None:
    """The span of each field; None if a name occurs twice or has escapes, since parsers read such bodies differently.

    None for an object without fields as well. Raises InvalidRequest for what is no JSON object.
    """
    fields: dict[str, Any] = decode_client_fields(raw)
    spans: dict[str, ByteSpan] = {}
    index = _skip_whitespace(raw, 0)
    for name, value in fields.items():
        key = b'"%b"' % name.encode()
        index = _skip_whitespace(raw, index + 1)  # behind the brace, or the comma
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
    """The index of the first byte from `at` on that is not white space."""
    while index < len(raw) and raw[index] in _WHITESPACE:
        index += 1
    return index
