"""Where the values of a JSON object's fields stand in its bytes. Pure.

{"model": "m", "tools": [{"model": 1}]}
          └─┘           └────────────┘
"""

from __future__ import annotations

from typing import Any, Final

from svc.dialects.reading import decode_fields

Span = tuple[int, int]
"""The index of a value's first byte, and of the byte after its last one."""

_WHITESPACE: Final = b" \t\n\r"


def field_spans(raw: bytes) -> dict[str, Span] | None:
    """The span of each field; None if a name occurs twice or has escapes, since parsers read such bodies differently.

    None for an object without fields as well. Raises InvalidRequest for what is no JSON object.
    """
    fields: dict[str, Any] = decode_fields(raw)
    spans: dict[str, Span] = {}
    at = _skip(raw, 0)
    for name, value in fields.items():
        key = b'"%b"' % name.encode()
        at = _skip(raw, at + 1)  # behind the brace, or the comma
        if not raw.startswith(key, at):
            return None
        at = _skip(raw, at + len(key))
        start = _skip(raw, at + 1)
        written = bytes(value)
        if raw[at : at + 1] != b":" or not raw.startswith(written, start):
            return None
        spans[name] = start, start + len(written)
        at = _skip(raw, start + len(written))
    return spans if raw[at : at + 1] == b"}" else None


def _skip(raw: bytes, at: int) -> int:
    """The index of the first byte from `at` on that is not white space."""
    while at < len(raw) and raw[at] in _WHITESPACE:
        at += 1
    return at
