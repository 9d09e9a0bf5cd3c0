"""Reuses the cached parse of an HTTP head if it differs from the previous one only in `Content-Length`. No I/O.

POST /v1/chat/completions HTTP/1.1 CRLF … content-length: 123 CRLF … CRLF CRLF {"model":…
└────────────────────── before ────────────────────────┘└─┘└───────── after ─────────┘└── body ──
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

MAX_HEAD_CACHE_MISSES: Final = 3
"""Consecutive misses after which a connection stops caching."""
_CONTENT_LENGTH_HEADER: Final = re.compile(rb"\r\ncontent-length:[ \t]*([1-9][0-9]*)\r\n", re.IGNORECASE)


class HeadCache:
    """The bytes of the last head that llhttp parsed. Subclasses keep the parsed fields."""

    __slots__ = ("_after_length", "_before_length", "_fixed_bytes", "_misses")

    def __init__(self, *, is_enabled: bool) -> None:
        self._before_length = b""
        """Empty if no head is cached."""
        self._after_length = b""
        self._fixed_bytes = 0
        self._misses = 0 if is_enabled else MAX_HEAD_CACHE_MISSES

    def match_body(self, data: bytes) -> bytes:
        """Return the body if `data` is exactly one message with the cached head, or else empty bytes."""
        if not self._before_length:
            return b""
        variable_bytes = len(data) - self._fixed_bytes  # the digits of Content-Length, and the body
        width, limit = 1, 10
        while variable_bytes - width >= limit:
            width += 1
            limit *= 10
        size = variable_bytes - width
        if size <= 0:
            return b""
        head = b"%b%d%b" % (self._before_length, size, self._after_length)
        if len(head) + size != len(data) or not data.startswith(head):
            return b""
        self._misses = 0
        return data[len(head) :]

    def replace_head(self, data: bytes, body_bytes: int, *, is_cacheable: bool) -> bool:
        """Cache the head of a message that did not match, and return whether it was cached.

        `data` must be exactly one message with a body of `body_bytes` bytes.
        """
        self._before_length = b""
        if self._misses >= MAX_HEAD_CACHE_MISSES:
            return False
        self._misses += 1
        end = data.find(b"\r\n\r\n") + 4
        match = _CONTENT_LENGTH_HEADER.search(data, 0, end) if is_cacheable else None
        if match is None or end + body_bytes != len(data):
            return False
        self._before_length, self._after_length = data[: match.start(1)], data[match.end(1) : end]
        self._fixed_bytes = len(self._before_length) + len(self._after_length)
        return True


class ResponseHeadCache(HeadCache):
    """The head of the last response on a keep-alive connection to a provider."""

    __slots__ = ("headers", "status")

    def __init__(self, *, is_enabled: bool) -> None:
        super().__init__(is_enabled=is_enabled)
        self.status = 0
        """0 if no head is cached."""
        self.headers: Mapping[bytes, bytes] = {}

    def learn(self, data: bytes, body_bytes: int, status: int, headers: Mapping[bytes, bytes]) -> None:
        """Cache the head of the response `data`. `status` is 0 if the connection closes after it."""
        self.status, self.headers = 0, {}
        if self.replace_head(data, body_bytes, is_cacheable=status > 0 and body_bytes > 0):
            self.status, self.headers = status, headers
