"""RESP2, the Redis serialization protocol: encodes commands and parses replies. No I/O.

+text  simple string    -CODE text  error    :7  integer    $3 abc  bulk string ($-1 null)    *2 …  array (*-1 null)

https://redis.io/docs/latest/develop/reference/protocol-spec/
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from svc.stores.database.base import StoreUnavailable

MAX_BULK_BYTES = 64 * 1024 * 1024
MAX_RESP_LINE_BYTES = 64 * 1024
MAX_ARRAY_ITEMS = 1_000_000
MAX_ARRAY_DEPTH = 8

CommandArgument = bytes | str | int | float
"""One argument of a command. Text is sent as UTF-8."""


class RedisReplyError(StoreUnavailable):
    """Redis replied to a command with an error. `kind` is its first word, such as `NOSCRIPT`."""

    def __init__(self, text: str) -> None:
        super().__init__(f"Redis rejected the command: {text[:200]}")
        self.kind = text.partition(" ")[0]


RedisReply = bytes | int | None | RedisReplyError | list[Any]
"""A reply. The items of a list are replies."""


class RespProtocolError(ValueError):
    """The received data is not RESP2. The connection must be closed."""


def encode_command(arguments: Iterable[CommandArgument]) -> bytes:
    """Encode one command as an array of bulk strings."""
    parts = [argument if isinstance(argument, bytes) else str(argument).encode() for argument in arguments]
    return b"*%d\r\n" % len(parts) + b"".join(b"$%d\r\n%b\r\n" % (len(part), part) for part in parts)


class RespParser:
    """An incremental parser of replies. The input can be split at any byte."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> list[RedisReply]:
        """Add received bytes, and return the replies that are now complete. Raises RespProtocolError."""
        self._buffer += data
        replies: list[RedisReply] = []
        offset = 0
        while offset < len(self._buffer):
            parsed = self._parse(offset, 0)
            if parsed is None:
                break
            reply, offset = parsed
            replies.append(reply)
        del self._buffer[:offset]
        return replies

    def _parse(self, offset: int, depth: int) -> tuple[RedisReply, int] | None:
        """Parse the reply at `offset`. Returns the reply and its end, or None if it is incomplete."""
        data = self._buffer
        end = data.find(b"\r\n", offset)
        if (
            end - offset > MAX_RESP_LINE_BYTES
            or (end < 0 and len(data) - offset > MAX_RESP_LINE_BYTES)
            or depth > MAX_ARRAY_DEPTH
        ):
            raise RespProtocolError("a line is too long, or arrays are nested too deeply")
        if end < 0:
            return None
        kind, line, offset = data[offset : offset + 1], bytes(data[offset + 1 : end]), end + 2
        if kind == b"+":
            return line, offset
        if kind == b"-":
            return RedisReplyError(line.decode("utf-8", "replace")), offset
        if kind == b":":
            return _parse_integer(line, -(2**63), 2**63), offset
        if kind == b"$":
            return self._parse_bulk(_parse_integer(line, -1, MAX_BULK_BYTES), offset)
        if kind == b"*":
            return self._parse_array(_parse_integer(line, -1, MAX_ARRAY_ITEMS), offset, depth)
        raise RespProtocolError("a reply has an unknown type")

    def _parse_bulk(self, size: int, offset: int) -> tuple[RedisReply, int] | None:
        if size < 0:
            return None, offset
        end = offset + size
        if len(self._buffer) < end + 2:
            return None
        if self._buffer[end : end + 2] != b"\r\n":
            raise RespProtocolError("a reply is longer than its declared length")
        return bytes(self._buffer[offset:end]), end + 2

    def _parse_array(self, count: int, offset: int, depth: int) -> tuple[RedisReply, int] | None:
        if count < 0:
            return None, offset
        items: list[RedisReply] = []
        for _ in range(count):
            parsed = self._parse(offset, depth + 1)
            if parsed is None:
                return None
            reply, offset = parsed
            items.append(reply)
        return items, offset


def _parse_integer(line: bytes, minimum: int, maximum: int) -> int:
    try:
        number = int(line)
    except ValueError:
        raise RespProtocolError("a number is malformed") from None
    if not minimum <= number <= maximum:
        raise RespProtocolError("a number is out of range")
    return number
