"""Answers in this process's memory: so many bytes at most, what was unused for longest goes first. No I/O."""

from __future__ import annotations

from collections import OrderedDict

import msgspec

OVERHEAD = 600
"""Bytes that an answer takes beside its own."""


class Kept(msgspec.Struct, frozen=True):
    """An answer as its client got it. `expires` in Unix seconds; `provider` and `model` are what really answered."""

    body: bytes
    provider: str
    model: str
    expires: float
    dropped: tuple[str, ...] = ()


class Memory:
    """`limit` in bytes."""

    def __init__(self, limit: int) -> None:
        self.size = 0
        self._limit = limit
        self._kept: OrderedDict[bytes, Kept] = OrderedDict()

    def get(self, name: bytes, now: float) -> Kept | None:
        """What is kept under a name, and has not expired."""
        kept = self._kept.get(name)
        if kept is None:
            return None
        if kept.expires <= now:
            self._forget(name)
            return None
        self._kept.move_to_end(name)
        return kept

    def put(self, name: bytes, kept: Kept) -> None:
        """Takes the place of what was there."""
        if name in self._kept:
            self._forget(name)
        self._kept[name] = kept
        self.size += _size(kept)
        while self.size > self._limit:
            self._forget(next(iter(self._kept)))

    def _forget(self, name: bytes) -> None:
        self.size -= _size(self._kept.pop(name))


def _size(kept: Kept) -> int:
    return len(kept.body) + OVERHEAD
