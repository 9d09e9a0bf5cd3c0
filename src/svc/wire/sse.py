"""Server-sent events: bytes in any split -> whole events. No I/O.

An event is the bytes between blank lines. Line ends may be LF, CRLF or CR (WHATWG HTML, 9.2.6).
"""

from __future__ import annotations

from typing import Final

from svc.errors import ProviderFailed

_LF_BYTE, _CR_BYTE = 10, 13
"""Numbers: bytes that are asked for other bytes take ten times as long to answer."""
MAX_EVENT_BYTES: Final = 8 * 1024 * 1024
"""Bytes of one event; a longer one is a fault of the upstream."""


class EventSplitter:
    """Cuts a byte stream into events, whatever its pieces are. Linear in the bytes fed."""

    __slots__ = ("_buffer", "_has_started", "_pending_cr")

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._pending_cr = False
        self._has_started = False

    @property
    def is_empty(self) -> bool:
        """Nothing of an event is held: the next byte begins one."""
        return not self._buffer and not self._pending_cr

    @property
    def remainder(self) -> bytes:
        """Bytes of an event that has not ended yet."""
        return bytes(self._buffer)

    def feed(self, data: bytes) -> list[bytes]:
        """Events that `data` completed, without their blank line; raises ProviderFailed for one over MAX_EVENT."""
        return split_events(self.feed_block(data))

    def feed_block(self, data: bytes) -> bytes:
        """The events that `data` completed as one block that ends in a blank line, LF throughout; raises as `feed`."""
        if not self._has_started and data:
            self._has_started = True
            data = data.removeprefix(b"\xef\xbb\xbf")
        if self._pending_cr or _CR_BYTE in data:
            data = self._normalize_newlines(data)
        end = data.rfind(b"\n\n") + 2
        if end == 1 and not (self._buffer.endswith(b"\n") and data.startswith(b"\n")):
            self._append(data)
            return b""
        # An end of 1: the blank line lies across two pieces.
        block = data if end == len(data) else data[:end]
        if self._buffer:
            block = bytes(self._buffer + block)
            self._buffer.clear()
        if end < len(data):
            self._append(data[end:])
        return block

    def flush(self) -> bytes:
        """What is left at the end of the stream, as a block; upstreams forget the last blank line."""
        remainder = self.remainder
        self._buffer.clear()
        self._pending_cr = False
        return remainder + b"\n\n" if remainder.strip() else b""

    def _append(self, data: bytes) -> None:
        self._buffer += data
        if len(self._buffer) > MAX_EVENT_BYTES:
            raise ProviderFailed("The provider sent an event that is too long.")

    def _normalize_newlines(self, data: bytes) -> bytes:
        """CRLF and CR become LF; a CR at the end may be half of a CRLF that goes on in the next piece."""
        if self._pending_cr:
            data = b"\r" + data
        self._pending_cr = data.endswith(b"\r")
        if self._pending_cr:
            data = data[:-1]
        return data.replace(b"\r\n", b"\n").replace(b"\r", b"\n")


def split_events(block: bytes) -> list[bytes]:
    """The events of a block, without empty ones. A block ends in a blank line."""
    end = len(block) - 2
    if end > 0 and block.find(b"\n\n") == end:  # nearly always
        return [block[:end]]
    return [event for event in block.split(b"\n\n") if event and (event[0] != _LF_BYTE or event.strip(b"\n"))]


def is_single_data_line(event: bytes) -> bool:
    """One line of data and nothing else, as nearly all are; its data begins at 6."""
    return _LF_BYTE not in event and event.startswith(b"data: ")


def event_data(event: bytes) -> bytes | None:
    """The data of one event, its `data:` lines joined; None when it has none (a comment, a lone `event:`)."""
    if is_single_data_line(event):
        return event[6:]
    lines = [line[5:].removeprefix(b" ") for line in event.split(b"\n") if line.startswith(b"data:") or line == b"data"]
    return b"\n".join(lines) if lines else None


def event_name(event: bytes) -> bytes | None:
    """The last `event:` field, if there is one."""
    if is_single_data_line(event):
        return None
    names = [line[6:].strip() for line in event.split(b"\n") if line.startswith(b"event:")]
    return names[-1] if names else None
