"""Chunks of plain text on their way from a provider's connection to the client's: as they are, framing and all.

On the hottest path: of a long stream, nearly every piece goes through `Relay.data_received` and nothing else.

    e3 CRLF data: {"id":"c1",…,"delta":{"content":" Hello"},"finish_reason":null}]} LF LF CRLF
    └line─┘ └───────────────── prefix ───────────────┘└text┘└────────── suffix ──────────────┘
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from functools import lru_cache
from typing import Final, Protocol

from svc.dialects.template import Template, is_plain
from svc.gateway.bounded import SMALL
from svc.gateway.estimate import ASCII_PER_TOKEN
from svc.gateway.reply import SIZE_LINES
from svc.gateway.writer import Writer

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

    def chunks_to(self) -> Writer | None:
        """Where chunks of HTTP/1.1 may be written instead, from now on; None if they may not."""
        return None


class Below(Protocol):
    """The provider's connection."""

    def read(self, data: bytes, begin: int, /) -> None:
        """What has come, from `begin` on."""

    def bind(self) -> None:
        """A large one has come."""

    def eof_received(self) -> None: ...

    def pause_writing(self) -> None: ...

    def resume_writing(self) -> None: ...

    def connection_lost(self, exc: Exception | None, /) -> None: ...


class Relay:
    """Of one attempt, whose client takes chunks. What it does not carry goes the long way, and loses nothing.

    It reads for the provider's connection while what comes is small: a Protocol of asyncio's, by its methods.
    """

    __slots__ = ("_below", "_frame", "_prefix", "_suffix", "_to", "active", "laid", "tokens")

    _below: Below

    def __init__(self, to: Writer) -> None:
        self._to = to
        """Says nothing when the client has just left: that is the door's matter, in the loop's next turn."""
        self._frame: Template | None = None
        self._prefix = self._suffix = b""
        self.tokens = 0
        """In what it has carried, by the rule of `estimate.completion_tokens`."""
        self.active = False
        """It has carried something since this was last set to False."""
        self.laid = False
        """The next chunk may be carried. Its connection says so, and takes it back."""

    def lay(self, below: Below) -> None:
        """What comes from there may be carried, until `laid` is taken back."""
        self._below = below
        self.laid = True

    def fit(self, frame: Template) -> None:
        """Carries chunks of this frame only, from now on. It has to be `plain`."""
        if self._frame is not frame:
            self._frame = frame
            self._prefix, self._suffix = frame.prefix, _ending(frame.suffix)

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
        self._to.write(data)

    # asyncio

    def data_received(self, data: bytes) -> None:
        size = len(data)
        if size > SMALL:
            self._below.bind()
        begin = self.carry(data) if self.laid else 0
        if begin < size:
            self._below.read(data, begin)

    def eof_received(self) -> None:
        self._below.eof_received()

    def pause_writing(self) -> None:
        self._below.pause_writing()

    def resume_writing(self) -> None:
        self._below.resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        self._below.connection_lost(exc)


@lru_cache(maxsize=64)
def _short_ending(suffix: bytes) -> bytes:
    """One object for all streams that end their chunks alike: it stays in the CPU's cache."""
    return suffix + _CRLF


def _ending(suffix: bytes) -> bytes:
    return _short_ending(suffix) if len(suffix) < len(LINES) else suffix + _CRLF


def _size_at(data: bytes, at: int) -> int:
    """Of the chunk that begins there, with its framing; 0 if its size is written in another way, or it is not whole."""
    mark = data.find(_LF, at, at + _LONGEST)
    size = _SIZES.get(data[at : mark + 1], 0) if mark > at else 0
    return size if at + size <= len(data) else 0
