"""Heads of HTTP messages that come again and again, but for the length of the body: compared, not parsed. Pure.

POST /v1/chat/completions HTTP/1.1 CRLF … content-length: 123 CRLF … CRLF CRLF {"model":…
└────────────────────── before ────────────────────────┘└─┘└───── after ─────┘└── body ──
"""

from __future__ import annotations

import re
from typing import Final

STRANGE: Final = 3
"""So many heads in a row unlike the one before, and a connection's heads are not compared any more."""
_LENGTH: Final = re.compile(rb"\r\ncontent-length:[ \t]*([1-9][0-9]*)\r\n", re.IGNORECASE)


class SameHead:
    """A head that llhttp has read. The same bytes at the same place mean the same; who inherits keeps what that is."""

    __slots__ = ("_after", "_before", "_fixed")

    def __init__(self, halves: tuple[bytes, bytes]) -> None:
        self._before, self._after = halves
        self._fixed = len(self._before) + len(self._after)

    def body(self, data: bytes) -> bytes:
        """The body of a message that has this head, and has come whole and alone; empty for all else."""
        rest = len(data) - self._fixed  # the digits of the length, and as many bytes as they say
        width, over = 1, 10
        while rest - width >= over:
            width += 1
            over *= 10
        size = rest - width
        if size <= 0:
            return b""
        head = b"%b%d%b" % (self._before, size, self._after)
        return data[len(head) :] if len(head) + size == len(data) and data.startswith(head) else b""


def halves(data: bytes, size: int) -> tuple[bytes, bytes] | None:
    """Of the head of a message that came whole and alone, with a body of `size` bytes; None if there is more to it."""
    end = data.find(b"\r\n\r\n") + 4
    length = _LENGTH.search(data, 0, end)
    if length is None or end + size != len(data):
        return None
    return data[: length.start(1)], data[length.end(1) : end]
