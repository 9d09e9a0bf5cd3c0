"""The response cache, in the memory of this process and optionally in Redis.

    look_up ── memory ───────> hit or miss
      └─────── Redis ────────> hit or miss (a slow reply is a miss)
    start_recording ─────────> stored when the response is complete

Two requests are identical if their routes, bodies and forwarded heads are equal, byte for byte. The cache key also
contains the API key, or the tag whose keys share responses.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import time
from collections.abc import AsyncIterator, Callable
from hashlib import blake2b

import msgspec

from svc.gateway.cache.memory import CachedResponse, LruMemoryCache
from svc.gateway.cache.recorder import RecordingQuota, ResponseRecorder
from svc.gateway.routing.backends import Backend
from svc.gateway.upstream.forwarded_head import ForwardedHead
from svc.gateway.upstream.splice import StreamSink
from svc.settings import CacheSettings, Settings
from svc.stores.database.base import StoreUnavailable
from svc.stores.redis.base import RedisClient, RedisReply
from svc.stores.redis.factory import connect_redis
from svc.wire.key import ApiKey, EphemeralKey

log = logging.getLogger("svc.gateway")

BYTES_PER_CACHE_MIB = 1024 * 1024
MAX_CACHED_REQUEST_BYTES = BYTES_PER_CACHE_MIB
"""Bytes of the largest request that is looked up. Larger ones take too long to hash, and rarely repeat."""
RECORDING_MEMORY_SHARE = 0.25
"""The share of the cache's memory for incomplete responses."""

CacheLookupCallback = Callable[[CachedResponse | None], None]


class ResponseCache:
    """Belongs to one event loop. No other component uses the connection `redis`. The caller starts and closes it."""

    def __init__(self, settings: CacheSettings, redis: RedisClient | None = None) -> None:
        self.hits = 0
        self.misses = 0
        self._quota = RecordingQuota(
            int(settings.max_size * BYTES_PER_CACHE_MIB * RECORDING_MEMORY_SHARE),
            int(settings.max_answer * BYTES_PER_CACHE_MIB),
        )
        self._settings = settings
        self._memory = LruMemoryCache(int(settings.max_size * BYTES_PER_CACHE_MIB * (1 - RECORDING_MEMORY_SHARE)))
        self.redis = redis
        self._encode = msgspec.msgpack.Encoder().encode
        self._decode = msgspec.msgpack.Decoder(CachedResponse).decode

    @property
    def used_bytes(self) -> int:
        """Bytes in this process's memory."""
        return self._memory.used_bytes + self._quota.used_bytes

    def cache_key(
        self, api_key: ApiKey, route: str, body: bytes, forwarded_head: ForwardedHead | None = None
    ) -> bytes | None:
        """Return the cache key of a request, or None if the request is too large.

        Ephemeral keys share the cached responses of their parent. Their own tags never select those of other keys.
        """
        if isinstance(api_key, EphemeralKey):
            api_key = api_key.parent
        if len(body) > MAX_CACHED_REQUEST_BYTES:
            return None
        tag = self._settings.shared_by
        shared = api_key.tags.get(tag) if tag else None
        owner = ("key", api_key.id) if shared is None else ("tag", tag, shared)
        identity = (route, owner) if forwarded_head is None else (route, owner, forwarded_head.identity)
        digest = blake2b(msgspec.msgpack.encode(identity), digest_size=32)
        digest.update(body)
        return digest.digest()

    def look_up(self, cache_key: bytes, callback: CacheLookupCallback) -> None:
        """Call `callback` with the cached response or None, at once or after a query to Redis."""
        cached = self._memory.get(cache_key, time.time())
        if cached is not None or self.redis is None:
            callback(cached)
            return

        pending_callbacks = [callback]

        def on_slow() -> None:
            if pending_callbacks:
                pending_callbacks.pop()(None)

        def on_reply(reply: RedisReply | StoreUnavailable) -> None:
            cached = self._decode_cached(cache_key, reply)
            if pending_callbacks:
                pending_callbacks.pop()(cached)

        self.redis.send(on_reply, ("GET", _cache_redis_key(cache_key)), on_slow)

    def _decode_cached(self, cache_key: bytes, reply: RedisReply | StoreUnavailable) -> CachedResponse | None:
        if not isinstance(reply, bytes):
            return None
        try:
            cached = self._decode(reply)
        except msgspec.MsgspecError:
            log.warning("skipped a cached response in Redis that cannot be decoded: %s", _cache_redis_key(cache_key))
            return None
        if cached.expires <= time.time():
            return None
        self._memory.put(cache_key, cached)
        return cached

    def start_recording(self, cache_key: bytes, downstream: StreamSink) -> ResponseRecorder:
        """Return a recorder for a response to `downstream`."""
        return ResponseRecorder(downstream, self._quota, functools.partial(self._store, cache_key))

    def count_lookup(self, *, is_hit: bool) -> None:
        """Count a lookup for the metrics."""
        if is_hit:
            self.hits += 1
        else:
            self.misses += 1

    def _store(self, cache_key: bytes, body: bytes, backend: Backend, dropped_fields: tuple[str, ...]) -> None:
        """Store a complete, successful response."""
        ttl = self._settings.ttl
        cached = CachedResponse(body, backend.provider_name, backend.model_id, time.time() + ttl, dropped_fields)
        self._memory.put(cache_key, cached)
        if self.redis is not None:
            command = ("SET", _cache_redis_key(cache_key), self._encode(cached), "PX", max(1, int(ttl * 1000)))
            self.redis.send(_ignore_store_reply, command)


def _cache_redis_key(cache_key: bytes) -> str:
    return f"svc:cache:{cache_key.hex()}"


def _ignore_store_reply(reply: RedisReply | StoreUnavailable) -> None:
    """Do nothing: a failed write only causes a later cache miss."""


def cache_needs_restart(running: Settings, changed: Settings) -> bool:
    """Return whether the change enables a cache with Redis, whose connection is opened only at the start."""
    return changed.cache.enabled and not running.cache.enabled and bool(changed.environ.get("SVC_REDIS_URL"))


def reconfigure_cache(cache: ResponseCache | None, running: Settings, changed: Settings) -> ResponseCache | None:
    """Return the cache for a changed configuration. With changed settings, it is empty."""
    if changed.cache == running.cache or cache_needs_restart(running, changed):
        return cache
    if not changed.cache.enabled:
        return None
    return ResponseCache(changed.cache, cache.redis if cache is not None else None)


@contextlib.asynccontextmanager
async def open_cache(settings: Settings) -> AsyncIterator[ResponseCache | None]:
    """Yield the cache, or None if it is disabled.

    It has its own connection to Redis: responses are large, and must not delay the counters.
    """
    if not settings.cache.enabled:
        yield None
        return
    async with connect_redis(settings.environ) as redis:
        yield ResponseCache(settings.cache, redis)
