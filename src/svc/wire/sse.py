"""Server-sent events: bytes in any split -> whole events. No I/O.

An event is the bytes between blank lines. Line ends may be LF, CRLF or CR (WHATWG HTML, 9.2.6).
"""

from __future__ import annotations

from svc.errors import ProviderFailed

MAX_EVENT = 8 * 1024 * 1024
"""Bytes of one event; a longer one is a fault of the upstream."""


class Splitter:
    """Cuts a byte stream into events, whatever its pieces are."""

    __slots__ = ("_carriage", "_rest", "_started")

    def __init__(self) -> None:
        self._rest = b""
        self._carriage = False
        self._started = False

    @property
    def rest(self) -> bytes:
        """Bytes of an event that has not ended yet."""
        return self._rest

    def feed(self, data: bytes) -> list[bytes]:
        """Events that `data` completed, without their blank line; raises ProviderFailed for one over MAX_EVENT."""
        if not self._started and data:
            self._started = True
            data = data.removeprefix(b"\xef\xbb\xbf")
        if self._carriage or b"\r" in data:
            data = self._unify(data)
        if self._rest:
            data = self._rest + data
        *events, self._rest = data.split(b"\n\n")
        if len(self._rest) > MAX_EVENT:
            raise ProviderFailed("The provider sent an event that is too long.")
        return [event for event in events if event.strip(b"\n")]

    def _unify(self, data: bytes) -> bytes:
        """CRLF and CR become LF; a CR at the end may be half of a CRLF that goes on in the next piece."""
        if self._carriage:
            data = b"\r" + data
        self._carriage = data.endswith(b"\r")
        if self._carriage:
            data = data[:-1]
        return data.replace(b"\r\n", b"\n").replace(b"\r", b"\n")


def event_data(event: bytes) -> bytes | None:
    """The data of one event, its `data:` lines joined; None when it has none (a comment, a lone `event:`)."""
    if event.startswith(b"data: ") and b"\n" not in event:
        return event[6:]
    lines = [line[5:].removeprefix(b" ") for line in event.split(b"\n") if line.startswith(b"data:") or line == b"data"]
    return b"\n".join(lines) if lines else None
