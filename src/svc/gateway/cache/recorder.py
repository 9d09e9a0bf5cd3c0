"""Takes down an answer while it passes by to the client. No I/O of its own."""

from __future__ import annotations

from collections.abc import Callable

from svc.gateway.offers import Offer
from svc.gateway.relay import Sink

Keep = Callable[[bytes, Offer, tuple[str, ...]], None]


class Room:
    """For answers that have not ended yet: `most` bytes of all of them together, `most_each` of one."""

    def __init__(self, most: int, most_each: int) -> None:
        self.used = 0
        self.most = most
        self.most_each = most_each


class Recorder(Sink):
    """Stands before the client. What there is no room for is not kept; the client gets it all the same."""

    __slots__ = ("_client", "_keep", "_parts", "_room", "_size")

    def __init__(self, client: Sink, room: Room, keep: Keep) -> None:
        self._client = client
        self._room = room
        self._keep = keep
        self._parts: list[bytes] | None = []
        self._size = 0

    def write(self, data: bytes, end: bool) -> None:
        """A piece of a stream: taken down, and sent."""
        self.note(data)
        self._client.write(data, end)

    def note(self, data: bytes) -> None:
        """A piece of an answer, or all of it."""
        if self._parts is None:
            return
        self._parts.append(data)
        self._size += len(data)
        self._room.used += len(data)
        if self._size > self._room.most_each or self._room.used > self._room.most:
            self.drop()

    def keep(self, offer: Offer, dropped: tuple[str, ...]) -> None:
        """The answer is whole."""
        parts = self._parts
        self.drop()
        if parts is not None:
            self._keep(b"".join(parts), offer, dropped)

    def drop(self) -> None:
        """The answer is not to be kept; twice is the same as once."""
        self._room.used -= self._size
        self._parts, self._size = None, 0
