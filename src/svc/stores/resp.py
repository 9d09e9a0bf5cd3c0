"""RESP2, what Redis speaks: commands into bytes, and bytes into replies. No I/O.

+text  simple    -CODE text  error    :7  integer    $3 abc  bytes ($-1 none)    *2 …  a list (*-1 none)
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from svc.stores.base import StoreDown

MAX_BULK = 64 * 1024 * 1024
MAX_LINE = 64 * 1024
MAX_COUNT = 1_000_000
MAX_DEPTH = 8

Word = bytes | str | int | float
"""A part of a command; text goes out as UTF-8."""


class ReplyError(StoreDown):
    """Redis answered a command with an error; `kind` is its first word, such as `NOSCRIPT`."""

    def __init__(self, text: str) -> None:
        super().__init__(f"Redis refuses: {text[:200]}")
        self.kind = text.partition(" ")[0]


Reply = bytes | int | None | ReplyError | list[Any]
"""A list holds replies."""


class NotRedis(ValueError):
    """What came is not RESP2: the connection is of no more use."""


def packed(words: Iterable[Word]) -> bytes:
    """One command."""
    parts = [word if isinstance(word, bytes) else str(word).encode() for word in words]
    return b"*%d\r\n" % len(parts) + b"".join(b"$%d\r\n%b\r\n" % (len(part), part) for part in parts)


class Reader:
    """Turns bytes, split anywhere, into replies."""

    def __init__(self) -> None:
        self._data = bytearray()

    def feed(self, data: bytes) -> list[Reply]:
        """The replies that are now whole. Raises NotRedis."""
        self._data += data
        found: list[Reply] = []
        at = 0
        while at < len(self._data):
            step = self._read(at, 0)
            if step is None:
                break
            reply, at = step
            found.append(reply)
        del self._data[:at]
        return found

    def _read(self, at: int, depth: int) -> tuple[Reply, int] | None:
        """One reply and where it ends; None while it is not whole."""
        data = self._data
        end = data.find(b"\r\n", at)
        if end - at > MAX_LINE or (end < 0 and len(data) - at > MAX_LINE) or depth > MAX_DEPTH:
            raise NotRedis("a line is too long, or lists lie too deep")
        if end < 0:
            return None
        kind, line, at = data[at : at + 1], bytes(data[at + 1 : end]), end + 2
        if kind == b"+":
            return line, at
        if kind == b"-":
            return ReplyError(line.decode("utf-8", "replace")), at
        if kind == b":":
            return _number(line, -(2**63), 2**63), at
        if kind == b"$":
            return self._bulk(_number(line, -1, MAX_BULK), at)
        if kind == b"*":
            return self._list(_number(line, -1, MAX_COUNT), at, depth)
        raise NotRedis("a reply begins with an unknown sign")

    def _bulk(self, size: int, at: int) -> tuple[Reply, int] | None:
        if size < 0:
            return None, at
        end = at + size
        if len(self._data) < end + 2:
            return None
        if self._data[end : end + 2] != b"\r\n":
            raise NotRedis("a reply is longer than it says")
        return bytes(self._data[at:end]), end + 2

    def _list(self, count: int, at: int, depth: int) -> tuple[Reply, int] | None:
        if count < 0:
            return None, at
        found: list[Reply] = []
        for _ in range(count):
            step = self._read(at, depth + 1)
            if step is None:
                return None
            reply, at = step
            found.append(reply)
        return found, at


def _number(line: bytes, least: int, most: int) -> int:
    try:
        number = int(line)
    except ValueError:
        raise NotRedis("a number is none") from None
    if not least <= number <= most:
        raise NotRedis("a number is out of bounds")
    return number
