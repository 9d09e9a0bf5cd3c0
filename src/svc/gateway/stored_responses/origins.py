"""Remembers which provider and account made a response that the gateway does not store.

A later request with its id as `previous_response_id` goes there, if it has the same key. No other key can continue the
response: the keys share the provider's account, which would let them read it. The memory of a worker is small, and
Redis shares it.
"""

from __future__ import annotations

import hashlib
import logging
from collections import OrderedDict
from collections.abc import Callable
from typing import Final, Literal

import msgspec

from svc.stores.database.base import StoreUnavailable
from svc.stores.redis.base import RedisClient, RedisReply

log = logging.getLogger("svc.gateway")

MAX_REMEMBERED_ORIGINS: Final = 10_000
"""Maximum responses that a worker remembers: about 3 MiB."""
MAX_RESPONSE_ID_CHARS: Final = 256
ORIGIN_TTL_SECONDS: Final = 30 * 86_400
"""How long Redis remembers. OpenAI keeps responses for 30 days."""


class ResponseOrigin(msgspec.Struct, frozen=True, array_like=True):
    """The provider that made a response, and its account by name."""

    provider: str
    account_name: str


FoundOrigin = ResponseOrigin | Literal["another_key"] | None
"""An origin, whether another key made the response, or None if it is unknown."""

_ORIGIN_DECODER: Final = msgspec.json.Decoder(ResponseOrigin)


class ResponseOrigins:
    """The origins of the latest native responses, by the key that made them and their id."""

    def __init__(self, redis: RedisClient | None = None) -> None:
        self._redis = redis
        self._origins: OrderedDict[tuple[str, str], ResponseOrigin] = OrderedDict()
        self._owners: dict[str, str] = {}
        """The key that made each response of `_origins`."""

    def remember(self, key_id: str, response_id: str, origin: ResponseOrigin) -> None:
        """Remember who made a response. Ids that are too long are skipped."""
        if len(response_id) > MAX_RESPONSE_ID_CHARS:
            return
        self._put(key_id, response_id, origin)
        if self._redis is not None:
            for name, value in (
                (_redis_key(key_id, response_id), msgspec.json.encode(origin)),
                (_redis_owner_key(response_id), key_id.encode()),
            ):
                self._redis.send(_ignore_reply, ("SET", name, value, "EX", ORIGIN_TTL_SECONDS))

    def find(self, key_id: str, response_id: str, on_found: Callable[[FoundOrigin], None]) -> None:
        """Call `on_found` with the origin, at once or after queries to Redis. A slow reply is not waited for."""
        found = self._origins.get((key_id, response_id))
        if found is not None:
            on_found(found)
            return
        known: FoundOrigin = "another_key" if self._owners.get(response_id, key_id) != key_id else None
        if self._redis is None or len(response_id) > MAX_RESPONSE_ID_CHARS:
            on_found(known)
            return

        redis, pending_callbacks = self._redis, [on_found]

        def report(origin: FoundOrigin) -> None:
            if pending_callbacks:
                pending_callbacks.pop()(origin)

        def on_owner(reply: RedisReply | StoreUnavailable) -> None:
            report("another_key" if isinstance(reply, bytes) and reply != key_id.encode() else known)

        def on_reply(reply: RedisReply | StoreUnavailable) -> None:
            origin = _decode_origin(reply)
            if origin is not None:
                self._put(key_id, response_id, origin)
                report(origin)
            elif known is not None:
                report(known)
            else:
                redis.send(on_owner, ("GET", _redis_owner_key(response_id)), on_slow)

        def on_slow() -> None:
            report(known)

        redis.send(on_reply, ("GET", _redis_key(key_id, response_id)), on_slow)

    def _put(self, key_id: str, response_id: str, origin: ResponseOrigin) -> None:
        name = (key_id, response_id)
        self._origins[name] = origin
        self._origins.move_to_end(name)
        self._owners[response_id] = key_id
        if len(self._origins) > MAX_REMEMBERED_ORIGINS:
            (old_key_id, old_response_id), _ = self._origins.popitem(last=False)
            if self._owners.get(old_response_id) == old_key_id:
                del self._owners[old_response_id]


def _redis_key(key_id: str, response_id: str) -> str:
    digest = hashlib.sha256(f"{key_id}\n{response_id}".encode())
    return f"svc:response:{digest.hexdigest()}"


def _redis_owner_key(response_id: str) -> str:
    return f"svc:response_owner:{hashlib.sha256(response_id.encode()).hexdigest()}"


def _decode_origin(reply: RedisReply | StoreUnavailable) -> ResponseOrigin | None:
    if not isinstance(reply, bytes):
        return None
    try:
        return _ORIGIN_DECODER.decode(reply)
    except msgspec.MsgspecError:
        log.warning("skipped an origin of a response in Redis that cannot be decoded")
        return None


def _ignore_reply(reply: RedisReply | StoreUnavailable) -> None:
    """Do nothing: without the origin, a later request goes to the model's first provider."""
