"""Decodes JSON that is truncated because the response reached its token limit."""

from __future__ import annotations

import re
from typing import Any, Final

import msgspec

_JSON_STRUCTURE_TOKEN: Final = re.compile(r'"(?:[^"\\]|\\.)*+(?:"|\\?\Z)|[{}\[\],]', re.DOTALL)
"""A string, possibly truncated at the end of the text, or a structural character."""
_VALUE_ENDINGS: Final = ('"', "}", "]", "true", "false", "null")
"""The endings of values that are certainly complete. A number could have had more digits."""
_MEMBERS_DECODER: Final[msgspec.json.Decoder[dict[str, Any]]] = msgspec.json.Decoder(dict[str, Any])


def decode_complete_members(text: str) -> dict[str, Any]:
    """Return the complete top-level members of a truncated JSON object, or an empty object.

    A member with a truncated value is omitted: a truncated path or file must not look like a complete one.
    """
    text = text.strip()
    candidates = [text]
    if text.endswith(_VALUE_ENDINGS):
        candidates.append(text + "}")
    candidates.append(text[: _find_last_comma(text)] + "}")
    for candidate in candidates:
        try:
            return _MEMBERS_DECODER.decode(candidate)
        except (msgspec.DecodeError, RecursionError):
            continue
    return {}


def _find_last_comma(text: str) -> int:
    """Return the index of the last comma between two top-level members, or 0."""
    depth = comma_index = 0
    for token in _JSON_STRUCTURE_TOKEN.finditer(text):
        delimiter = token.group()
        if delimiter in ("{", "["):
            depth += 1
        elif delimiter in ("}", "]"):
            depth -= 1
        elif delimiter == "," and depth == 1:
            comma_index = token.start()
    return comma_index
