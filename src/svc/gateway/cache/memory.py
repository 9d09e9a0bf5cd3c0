"""An LRU cache of responses in memory, limited in bytes. No I/O."""

from __future__ import annotations

from collections import OrderedDict

import msgspec

ENTRY_OVERHEAD_BYTES = 600
"""Bytes of memory for each entry, in addition to its body."""


class CachedResponse(msgspec.Struct, frozen=True):
    """A response as sent to the client. `expires` is in Unix seconds. `provider` and `model` produced the response."""

    body: bytes
    provider: str
    model: str
    expires: float
    dropped: tuple[str, ...] = ()


class LruMemoryCache:
    """An LRU cache of `max_bytes` bytes."""

    def __init__(self, max_bytes: int) -> None:
        self.used_bytes = 0
        self._max_bytes = max_bytes
        self._responses: OrderedDict[bytes, CachedResponse] = OrderedDict()

    def get(self, cache_key: bytes, now: float) -> CachedResponse | None:
        """Return a response that has not expired, or None. `now` is in Unix seconds."""
        cached = self._responses.get(cache_key)
        if cached is None:
            return None
        if cached.expires <= now:
            self._evict(cache_key)
            return None
        self._responses.move_to_end(cache_key)
        return cached

    def put(self, cache_key: bytes, cached: CachedResponse) -> None:
        """Add or replace a response, and evict the least recently used ones if necessary."""
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
