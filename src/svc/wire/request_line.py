"""Check the syntax of request lines (RFC 9112, section 3), which the parser, llhttp, accepts too leniently.

llhttp accepts `RTSP/1.0` and `ICE/1.0` as HTTP, and several spaces instead of one. Another server in front might
interpret such a line differently (request smuggling).
"""

from __future__ import annotations

from typing import Final

_LINE_ENDS: Final = b"\r\n"


class RequestLineChecker:
    """Buffers the bytes that a connection received since the last request line, until the next one is checked."""

    __slots__ = ("_is_at_start", "_received")

    def __init__(self) -> None:
        self._received: bytes | bytearray = b""
        self._is_at_start = False
        """Whether the next request starts at the beginning of the buffer."""

    def add(self, data: bytes, *, is_between_requests: bool, is_in_head: bool) -> None:
        """Add received bytes before the parser gets them. The flags describe the state after the previous read."""
        if not is_in_head:
            self._received = data
            self._is_at_start = is_between_requests
            return
        if not isinstance(self._received, bytearray):
            self._received = bytearray(self._received)
        self._received += data

    def matches(self, method: bytes, target: bytes, version: str) -> bool:
        """Return whether the parsed request line was received in the strict form.

        A request that starts inside a read, behind another, may be at any position of the buffer.
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
        """Clear the buffer once the head is complete."""
        self._received = b""
