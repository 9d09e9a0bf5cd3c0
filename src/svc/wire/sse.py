"""Split a byte stream into server-sent events. No I/O.

An event is the bytes between blank lines. Line ends are LF, CRLF or CR (WHATWG HTML, section 9.2.6).
"""

from __future__ import annotations

from typing import Final

from svc.errors import ProviderFailed

_LF_BYTE: Final = 10
_CR_BYTE: Final = 13
"""Integers: comparing bytes objects is ten times slower."""
_BYTE_ORDER_MARK: Final = b"\xef\xbb\xbf"
KEEP_ALIVE_COMMENT: Final = b": keep-alive\n\n"
"""A comment, which parsers of server-sent events ignore (HTML standard, section 9.2.6)."""
MAX_EVENT_BYTES: Final = 8 * 1024 * 1024
"""Maximum bytes of one event. A longer event is an upstream error."""


class EventSplitter:
    """Splits a byte stream into events, independent of chunk boundaries. Runs in linear time."""

    __slots__ = ("_buffer", "_has_started", "_pending_cr")

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._pending_cr = False
        self._has_started = False

    @property
    def is_empty(self) -> bool:
        """Return whether the next byte starts an event."""
        return not self._buffer and not self._pending_cr

    @property
    def remainder(self) -> bytes:
        """Return the bytes of the incomplete event."""
        return bytes(self._buffer)

    def feed(self, data: bytes) -> list[bytes]:
        """Return the events that `data` completes, without blank lines. Raises ProviderFailed above MAX_EVENT_BYTES."""
        return split_events(self.feed_block(data))

    def feed_block(self, data: bytes) -> bytes:
        """Return the completed events as one block with LF line ends and a final blank line.

        Raises as `feed`, but only if it would return nothing. After a block, `check_size` raises for the rest.
        """
        self.check_size()
        if not self._has_started and data:
            data = self._remove_byte_order_mark(data)
        if self._pending_cr or _CR_BYTE in data:
            data = self._normalize_newlines(data)
        end = data.rfind(b"\n\n") + 2
        if end == 1 and not (self._buffer.endswith(b"\n") and data.startswith(b"\n")):
            self._append(data)
            return b""
        # end == 1: the blank line spans two chunks.
        block = data if end == len(data) else data[:end]
        if self._buffer:
            block = bytes(self._buffer + block)
            self._buffer.clear()
        if end < len(data):
            self._buffer += data[end:]
        return block

    def check_size(self) -> None:
        """Raise ProviderFailed if the incomplete event has more than MAX_EVENT_BYTES."""
        if len(self._buffer) > MAX_EVENT_BYTES:
            raise ProviderFailed("The provider sent an event that is too long.")

    def flush(self) -> bytes:
        """Return the rest at the end of the stream as a block: some upstreams omit the last blank line."""
        remainder = self.remainder
        self._buffer.clear()
        self._pending_cr = False
        return remainder + b"\n\n" if remainder.strip() else b""

    def _remove_byte_order_mark(self, data: bytes) -> bytes:
        """Return the start of the stream without a byte order mark, or b"" while only a part of one was received."""
        if self._buffer:
            data = bytes(self._buffer) + data
            self._buffer.clear()
        if len(data) < len(_BYTE_ORDER_MARK) and _BYTE_ORDER_MARK.startswith(data):
            self._buffer += data
            return b""
        self._has_started = True
        return data.removeprefix(_BYTE_ORDER_MARK)

    def _append(self, data: bytes) -> None:
        self._buffer += data
        self.check_size()

    def _normalize_newlines(self, data: bytes) -> bytes:
        """Convert CRLF and CR to LF. A CR at the end is held back, since an LF may follow in the next chunk."""
        if self._pending_cr:
            data = b"\r" + data
        self._pending_cr = data.endswith(b"\r")
        if self._pending_cr:
            data = data[:-1]
        return data.replace(b"\r\n", b"\n").replace(b"\r", b"\n")


def split_events(block: bytes) -> list[bytes]:
    """Return the non-empty events of a block. A block ends in a blank line."""
    end = len(block) - 2
    if end > 0 and block.find(b"\n\n") == end:  # the common case
        return [block[:end]]
    return [event for event in block.split(b"\n\n") if event and (event[0] != _LF_BYTE or event.strip(b"\n"))]


def is_single_data_line(event: bytes) -> bool:
    """Return whether the event is exactly one `data:` line, the common case. Its data starts at offset 6."""
    return _LF_BYTE not in event and event.startswith(b"data: ")


def event_data(event: bytes) -> bytes | None:
    """Return the joined `data:` lines of an event, or None without data (a comment, or only `event:`)."""
    if is_single_data_line(event):
        return event[6:]
    lines = [line[5:].removeprefix(b" ") for line in event.split(b"\n") if line.startswith(b"data:") or line == b"data"]
    return b"\n".join(lines) if lines else None


def event_name(event: bytes) -> bytes | None:
    """Return the last `event:` field, or None."""
    if is_single_data_line(event):
        return None
    names = [line[6:].strip() for line in event.split(b"\n") if line.startswith(b"event:")]
    return names[-1] if names else None
