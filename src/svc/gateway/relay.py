"""Chunks of plain text on their way from a provider's connection to the client's: as they are, framing and all.

On the hottest path: of a long stream, nearly every piece goes through `Relay.carry` and nothing else.

    e3 CRLF data: {"id":"c1",…,"delta":{"content":" Hello"},"finish_reason":null}]} LF LF CRLF
    └line─┘ └───────────────── prefix ───────────────┘└text┘└────────── suffix ──────────────┘
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Final

from svc.dialects.template import Template, is_plain
from svc.gateway.estimate import ASCII_PER_TOKEN
from svc.gateway.reply import SIZE_LINES

_CRLF: Final = b"\r\n"
_LINES: Final = {len(line) + size + len(_CRLF): line for size, line in enumerate(SIZE_LINES) if size}
LINES: Final = tuple(_LINES.get(size, b"") for size in range(len(SIZE_LINES)))
"""The size line of a chunk, by the chunk's size with all its framing; empty where no chunk has that size."""
_SIZES: Final = {line: size for size, line in enumerate(LINES) if line}
"""The other way round."""
_LONGEST: Final = max(map(len, _SIZES))
_LF: Final = 10
_TOKENS: Final = tuple(max(1, int(length / ASCII_PER_TOKEN)) if length else 0 for length in range(len(LINES)))
"""In a text, by its length."""


class Sink(ABC):
    """Where the pieces of a stream go."""

    __slots__ = ()

    @abstractmethod
    def write(self, data: bytes, end: bool) -> None: ...

    def chunks_to(self) -> asyncio.Transport | None:
        """Where chunks of HTTP/1.1 may be written instead, from now on; None if they may not."""
        return None


class Relay:
    """Of one attempt, whose client takes chunks. What it does not carry goes the long way, and loses nothing."""

    __slots__ = ("_frame", "_prefix", "_suffix", "_write", "active", "tokens")

    def __init__(self, to: asyncio.Transport) -> None:
        self._write: Callable[[bytes], None] = to.write
        """Says nothing when the client has just left: that is the door's matter, in the loop's next turn."""
        self._frame: Template | None = None
        self._prefix = self._suffix = b""
        self.tokens = 0
        """In what it has carried, by the rule of `estimate.completion_tokens`."""
        self.active = False
        """It has carried something since this was last set to False."""

    def fit(self, frame: Template) -> None:
        """Carries chunks of this frame only, from now on. It has to be `plain`."""
        if self._frame is not frame:
            self._frame = frame
            self._prefix, self._suffix = frame.prefix, frame.suffix + _CRLF

    def carry(self, data: bytes) -> int:
        """Sends the chunks of the frame that `data` begins with; how many bytes these are."""
        size = len(data)
        if size >= len(LINES):
            return self._several(data)
        line = LINES[size]
        begin = len(line)
        start, stop = begin + len(self._prefix), size - len(self._suffix)
        if (
            begin > 0
            and data.startswith(line)
            and data[begin:start] == self._prefix
            and data.endswith(self._suffix)
            and is_plain(data, start, stop)
        ):  # one chunk, as nearly always
            self._send(data, _TOKENS[stop - start])
            return size
        return self._several(data)

    def _several(self, data: bytes) -> int:
        """Of a read that was late: the long way would take ten times as long, and make the next one late, too."""
        at = tokens = 0
        while (size := _size_at(data, at)) > 0:
            start, end = at + len(LINES[size]), at + size
            text, stop = start + len(self._prefix), end - len(self._suffix)
            if data[start:text] != self._prefix or data[stop:end] != self._suffix or not is_plain(data, text, stop):
                break
            tokens += _TOKENS[stop - text]
            at = end
        if at:
            self._send(data[:at], tokens)
        return at

    def _send(self, data: bytes, tokens: int) -> None:
        self.active = True
        self.tokens += tokens
        self._write(data)


def _size_at(data: bytes, at: int) -> int:
    """Of the chunk that begins there, with its framing; 0 if its size is written in another way, or it is not whole."""
    mark = data.find(_LF, at, at + _LONGEST)
    size = _SIZES.get(data[at : mark + 1], 0) if mark > at else 0
    return size if at + size <= len(data) else 0
