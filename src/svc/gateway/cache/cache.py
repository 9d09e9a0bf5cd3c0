"""Which answers are kept, for whom, and where: in this process's memory, and in Redis where there is one.

    look ── in memory ───────────────> found, or not
      └──── Redis is asked ──────────> found, or not (also when it does not answer in time)
    record ── the answer passes by ──> kept, once it is whole

Two requests are the same when their route, their bodies and what goes on of their heads are equal, byte for byte. Who
may get whose answers is part of the name under which they lie.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import time
from collections.abc import AsyncIterator, Callable
from hashlib import blake2b

import msgspec

from svc.gateway.cache.memory import Kept, Memory
from svc.gateway.cache.recorder import Recorder, Room
from svc.gateway.forwarding import ForwardedHead
from svc.gateway.offers import Offer
from svc.gateway.relay import Sink
from svc.settings import CacheSettings, Settings
from svc.stores.base import StoreDown
from svc.stores.redis import Redis, connected
from svc.stores.resp import Reply
from svc.wire.key import Key

log = logging.getLogger("svc.gateway")

MIB = 1024 * 1024
MAX_ASKED = MIB
"""Bytes of a request that is looked up; a longer one takes too long to tell from others, and hardly comes twice."""
ASK_SECONDS = 0.5
"""For Redis to answer; after that a request goes on without."""
RUNNING = 0.25
"""The share of the memory that answers may take which have not ended yet."""

Then = Callable[[Kept | None], None]


class Cache:
    """Belongs to one event loop. `redis` is its own connection, which its owner starts and closes."""

    def __init__(self, settings: CacheSettings, redis: Redis | None = None) -> None:
        self.hits = 0
        self.misses = 0
        self._room = Room(int(settings.max_size * MIB * RUNNING), int(settings.max_answer * MIB))
        self._settings = settings
        self._memory = Memory(int(settings.max_size * MIB * (1 - RUNNING)))
        self.redis = redis
        self._encode = msgspec.msgpack.Encoder().encode
        self._decode = msgspec.msgpack.Decoder(Kept).decode

    @property
    def size(self) -> int:
        """Bytes in this process's memory."""
        return self._memory.size + self._room.used

    def name(self, key: Key, route: str, raw: bytes, forwarded: ForwardedHead | None = None) -> bytes | None:
        """Under which the answer to a request lies; None: it is not looked up."""
        if len(raw) > MAX_ASKED:
            return None
        tag = self._settings.shared_by
        shared = key.tags.get(tag) if tag else None
        whose = ("key", key.id) if shared is None else ("tag", tag, shared)
        sent = (route, whose) if forwarded is None else (route, whose, forwarded.identity)
        made = blake2b(msgspec.msgpack.encode(sent), digest_size=32)
        made.update(raw)
        return made.digest()

    def look(self, name: bytes, then: Then) -> None:
        """Calls `then` with what is kept, or None: at once, or later when Redis has to be asked."""
        kept = self._memory.get(name, time.time())
        if kept is not None or self.redis is None:
            then(kept)
            return

        waiting = [then]
        late = asyncio.get_running_loop().call_later(ASK_SECONDS, lambda: waiting.pop()(None))

        def told(reply: Reply | StoreDown) -> None:
            found = self._taken(name, reply)
            late.cancel()
            if waiting:
                waiting.pop()(found)

        self.redis.send(told, "GET", _place(name))

    def _taken(self, name: bytes, reply: Reply | StoreDown) -> Kept | None:
        if not isinstance(reply, bytes):
            return None
        try:
            kept = self._decode(reply)
        except msgspec.MsgspecError:
            log.warning("an answer in Redis is none of ours: %s", _place(name))
            return None
        if kept.expires <= time.time():
            return None
        self._memory.put(name, kept)
        return kept

    def record(self, name: bytes, client: Sink) -> Recorder:
        """For an answer on its way to the client."""
        return Recorder(client, self._room, functools.partial(self._keep, name))

    def count(self, *, hit: bool) -> None:
        """A request was looked up."""
        if hit:
            self.hits += 1
        else:
            self.misses += 1

    def _keep(self, name: bytes, body: bytes, offer: Offer, dropped: tuple[str, ...]) -> None:
        """An answer that is whole, and no error."""
        ttl = self._settings.ttl
        kept = Kept(body, offer.provider_name, offer.model_id, time.time() + ttl, dropped)
        self._memory.put(name, kept)
        if self.redis is not None:
            self.redis.send(_unheard, "SET", _place(name), self._encode(kept), "PX", max(1, int(ttl * 1000)))


def _place(name: bytes) -> str:
    return f"svc:cache:{name.hex()}"


def _unheard(reply: Reply | StoreDown) -> None:
    """Whether it was kept makes no difference to anyone."""


def needs_restart(before: Settings, after: Settings) -> bool:
    """Whether a cache is turned on that has a connection to Redis: it is made at the start."""
    return after.cache.enabled and not before.cache.enabled and bool(after.environ.get("SVC_REDIS_URL"))


def reconfigured(cache: Cache | None, before: Settings, after: Settings) -> Cache | None:
    """The cache under a changed configuration; one with other settings begins empty."""
    if after.cache == before.cache or needs_restart(before, after):
        return cache
    if not after.cache.enabled:
        return None
    return Cache(after.cache, cache.redis if cache is not None else None)


@contextlib.asynccontextmanager
async def cache_of(settings: Settings) -> AsyncIterator[Cache | None]:
    """None unless it is asked for. Its connection to Redis is its own: answers are large, counters must not wait."""
    if not settings.cache.enabled:
        yield None
        return
    async with connected(settings.environ) as redis:
        yield Cache(settings.cache, redis)
