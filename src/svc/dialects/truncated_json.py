"""JSON that a model did not finish, because the answer had reached its limit."""

from __future__ import annotations

import re
from typing import Any, Final

import msgspec

_JSON_STRUCTURE_TOKEN: Final = re.compile(r'"(?:[^"\\]|\\.)*+(?:"|\\?\Z)|[{}\[\],]', re.DOTALL)
"""Strings, the last of which may be cut off, and what structures the text between them."""
_VALUE_ENDINGS: Final = ('"', "}", "]", "true", "false", "null")
"""What ends a value beyond doubt: a number may have had more digits."""
_MEMBERS_DECODER: Final[msgspec.json.Decoder[dict[str, Any]]] = msgspec.json.Decoder(dict[str, Any])


def decode_complete_members(text: str) -> dict[str, Any]:
    """The top-level members of a JSON object whose text was cut off, as far as they are complete; else an empty object.

    A member whose value was cut off is left out: half a path or half a file must not pass for a whole one.
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
    """Where the last comma between two members of the outermost object stands; 0 if there is none."""
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
