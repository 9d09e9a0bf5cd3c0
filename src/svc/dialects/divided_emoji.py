"""Joins an emoji that a provider divides between two events, for streams whose text is decoded. No decoding here.

JSON escapes an emoji as two surrogates (RFC 8259, section 7). A provider that splits a text between them sends two
events, each with an unpaired surrogate, which is no valid text.
"""

from __future__ import annotations

import re
from typing import Final

_FIRST_HALF_AT_END: Final = re.compile(rb'(?<!\\)(?:\\\\)*(\\u[dD][89abAB][0-9a-fA-F]{2})"')
"""The first surrogate at the end of a text. An odd number of backslashes before it would escape it."""
_SECOND_HALF_AT_START: Final = re.compile(rb':\s*"(?=\\u[dD][c-fC-F][0-9a-fA-F]{2})')


class EmojiJoiner:
    """Moves the first half of a divided emoji to the next event whose text begins with a second half."""

    __slots__ = ("_half",)

    def __init__(self) -> None:
        self._half = b""

    def feed(self, event: bytes) -> bytes:
        """Return the event with the half of an earlier one, and without one that waits for the next event."""
        if event.find(b"\\u") < 0:
            return event
        if self._half and (start := _SECOND_HALF_AT_START.search(event)) is not None:
            event = event[: start.end()] + self._half + event[start.end() :]
            self._half = b""
        if (end := _FIRST_HALF_AT_END.search(event)) is not None:
            self._half = end[1]
            event = event[: end.start(1)] + event[end.end(1) :]
        return event
