"""The form of a request line (RFC 9112, section 3), which the parser, llhttp, is lenient about.

llhttp takes `RTSP/1.0` and `ICE/1.0` for HTTP, and several spaces for one. Another server in front may see something
else in such a line.
"""

from __future__ import annotations

from typing import Final

_LINE_ENDS: Final = b"\r\n"


class RequestLineChecker:
    """Keeps the bytes that a connection received since the last request line, until the next one is checked."""

    __slots__ = ("_is_at_start", "_received")

    def __init__(self) -> None:
        self._received: bytes | bytearray = b""
        self._is_at_start = False
        """The next request begins at the start of what was received."""

    def add(self, data: bytes, *, is_between_requests: bool, is_in_head: bool) -> None:
        """Takes a read, before the parser does. The last one ended `between` two requests, or `in_head` of one."""
        if not is_in_head:
            self._received = data
            self._is_at_start = is_between_requests
            return
        if not isinstance(self._received, bytearray):
            self._received = bytearray(self._received)
        self._received += data

    def matches(self, method: bytes, target: bytes, version: str) -> bool:
        """Whether the line that was parsed came in the one form that is allowed.

        A request that begins inside of a read, behind another, may stand anywhere in it.
        """
        line = b"%b %b HTTP/%b\r\n" % (method, target, version.encode())
        received, is_first = self._received, self._is_at_start
        self._is_at_start = False
        if not is_first:
            return line in received
        start = 0
        while start < len(received) and received[start] in _LINE_ENDS:
            start += 1
        return received.startswith(line, start)

    def clear(self) -> None:
        """The head is read: nothing of the read is needed any more."""
        self._received = b""
