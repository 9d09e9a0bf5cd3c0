"""Finds the byte spans of the values of a JSON object's fields. No I/O.

{"model":"m","tools":[{"model":1}]}
         └─┘         └───────────┘

Only objects without whitespace between their fields have spans, and those with the spaces of Python's `json.dumps`.
Clients send hardly any others.
"""

from __future__ import annotations

from typing import Any, Final

from svc.dialects.validation import decode_client_fields

ByteSpan = tuple[int, int]
"""The index of a value's first byte, and of the byte after its last byte."""

_MAX_FIRST_NAME_BYTES: Final = 64
"""Bytes of the first field's name in an object that may have spaces."""


def decode_unambiguous_fields(raw: bytes) -> dict[str, Any]:
    """Return each field of a valid JSON object as `msgspec.Raw`.

    Empty if a name is repeated or escaped, since parsers differ on such bodies, for an object without fields, and for
    one with other whitespace. Raises InvalidRequest for anything but a JSON object.
    """
    fields: dict[str, Any] = decode_client_fields(raw)
    return fields if _is_compact(raw, fields) or _is_spaced(raw, fields) else {}


def find_field_spans(raw: bytes, fields: dict[str, Any]) -> dict[str, ByteSpan]:
    """Return the span of each field. `fields` is the result of `decode_unambiguous_fields` for `raw`."""
    colon, comma = (b":", b",") if _is_compact(raw, fields) else (b": ", b", ")
    spans: dict[str, ByteSpan] = {}
    index = 1
    for name, value in fields.items():
        start = index + len(name) + len('""') + len(colon)
        end = start + len(value)
        spans[name] = start, end
        index = end + len(comma)
    return spans


def _is_compact(raw: bytes, fields: dict[str, Any]) -> bool:
    """Return whether the object is the sum of its fields.

    Whitespace, a repeated field, and an escape or a non-ASCII letter in a name each make it longer.
    """
    size = 1
    for name, value in fields.items():
        size += len(name) + len(value) + len('"":,')
    return size == len(raw) and size > 1


def _is_spaced(raw: bytes, fields: dict[str, Any]) -> bool:
    """Return whether the object is that of its fields with the spaces of `json.dumps`.

    A sum does not show this: a repeated field may take the place of the spaces.
    """
    if raw.find(b'": ', 0, _MAX_FIRST_NAME_BYTES) < 0:
        return False
    names = "".join(fields)
    if not names.isascii():
        return False
    parts = [b'"%b": %b' % (name.encode(), value) for name, value in fields.items()]
    return raw == b"{%b}" % b", ".join(parts)
