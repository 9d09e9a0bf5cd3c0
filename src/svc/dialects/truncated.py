"""JSON that a model did not finish, because the answer had reached its limit."""

from __future__ import annotations

import re
from typing import Any, Final

import msgspec

_TOKENS: Final = re.compile(r'"(?:[^"\\]|\\.)*+(?:"|\\?\Z)|[{}\[\],]', re.DOTALL)
"""Strings, the last of which may be cut off, and what structures the text between them."""
_COMPLETE: Final = ('"', "}", "]", "true", "false", "null")
"""What ends a value beyond doubt: a number may have had more digits."""
_OBJECT: Final[msgspec.json.Decoder[dict[str, Any]]] = msgspec.json.Decoder(dict[str, Any])


def complete_members(text: str) -> dict[str, Any]:
    """The top-level members of a JSON object whose text was cut off, as far as they are complete; else an empty object.

    A member whose value was cut off is left out: half a path or half a file must not pass for a whole one.
    """
    text = text.strip()
    candidates = [text]
    if text.endswith(_COMPLETE):
        candidates.append(text + "}")
    candidates.append(text[: _last_comma(text)] + "}")
    for candidate in candidates:
        try:
            return _OBJECT.decode(candidate)
        except (msgspec.DecodeError, RecursionError):
            continue
    return {}


def _last_comma(text: str) -> int:
    """Where the last comma between two members of the outermost object stands; 0 if there is none."""
    depth = found = 0
    for token in _TOKENS.finditer(text):
        mark = token.group()
        if mark in ("{", "["):
            depth += 1
        elif mark in ("}", "]"):
            depth -= 1
        elif mark == "," and depth == 1:
            found = token.start()
    return found
