"""Answers in this process's memory: so many bytes at most, what was unused for longest goes first. No I/O."""

from __future__ import annotations

from collections import OrderedDict

import msgspec

ENTRY_OVERHEAD_BYTES = 600
"""Bytes that an answer takes beside its own."""


class CachedResponse(msgspec.Struct, frozen=True):
    """An answer as its client got it. `expires` in Unix seconds; `provider` and `model` are what really answered."""

    body: bytes
    provider: str
    model: str
    expires: float
    dropped: tuple[str, ...] = ()


class LruMemoryCache:
    """`limit` in bytes."""

    def __init__(self, max_bytes: int) -> None:
        self.used_bytes = 0
        self._max_bytes = max_bytes
        self._responses: OrderedDict[bytes, CachedResponse] = OrderedDict()

    def get(self, cache_key: bytes, now: float) -> CachedResponse | None:
        """What is kept under a name, and has not expired."""
        cached = self._responses.get(cache_key)
        if cached is None:
            return None
        if cached.expires <= now:
            self._evict(cache_key)
            return None
        self._responses.move_to_end(cache_key)
        return cached

    def put(self, cache_key: bytes, cached: CachedResponse) -> None:
        """Takes the place of what was there."""
        if cache_key in self._responses:
            self._evict(cache_key)
        self._responses[cache_key] = cached
        self.used_bytes += _entry_bytes(cached)
        while self.used_bytes > self._max_bytes:
            self._evict(next(iter(self._responses)))

    def _evict(self, cache_key: bytes) -> None:
        self.used_bytes -= _entry_bytes(self._responses.pop(cache_key))


def _entry_bytes(cached: CachedResponse) -> int:
    return len(cached.body) + ENTRY_OVERHEAD_BYTES
