"""Heads of HTTP messages that come again and again, but for the length of the body: compared, not parsed. Pure.

POST /v1/chat/completions HTTP/1.1 CRLF … content-length: 123 CRLF … CRLF CRLF {"model":…
└────────────────────── before ────────────────────────┘└─┘└───── after ─────┘└── body ──
"""

from __future__ import annotations

import re
from typing import Final

MAX_HEAD_CACHE_MISSES: Final = 3
"""So many heads in a row unlike the one before, and a connection's heads are not compared any more."""
_CONTENT_LENGTH_HEADER: Final = re.compile(rb"\r\ncontent-length:[ \t]*([1-9][0-9]*)\r\n", re.IGNORECASE)


class HeadMatcher:
    """A head that llhttp has read. The same bytes at the same place mean the same; who inherits keeps what that is."""

    __slots__ = ("_after_length", "_before_length", "_fixed_bytes")

    def __init__(self, parts: tuple[bytes, bytes]) -> None:
        self._before_length, self._after_length = parts
        self._fixed_bytes = len(self._before_length) + len(self._after_length)

    def match_body(self, data: bytes) -> bytes:
        """The body of a message that has this head, and has come whole and alone; empty for all else."""
        variable_bytes = len(data) - self._fixed_bytes  # the digits of the length, and as many bytes as they say
        width, limit = 1, 10
        while variable_bytes - width >= limit:
            width += 1
            limit *= 10
        size = variable_bytes - width
        if size <= 0:
            return b""
        head = b"%b%d%b" % (self._before_length, size, self._after_length)
        return data[len(head) :] if len(head) + size == len(data) and data.startswith(head) else b""


def split_at_content_length(data: bytes, body_bytes: int) -> tuple[bytes, bytes] | None:
    """Of the head of a message that came whole and alone, with a body of `size` bytes; None if there is more to it."""
    end = data.find(b"\r\n\r\n") + 4
    match = _CONTENT_LENGTH_HEADER.search(data, 0, end)
    if match is None or end + body_bytes != len(data):
        return None
    return data[: match.start(1)], data[match.end(1) : end]
