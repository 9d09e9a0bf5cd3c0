"""Opens the Redis client of an address. Needs the extra `redis`."""

from __future__ import annotations

import functools

from svc.stores.redis.address import RedisAddress
from svc.stores.redis.base import RedisClient
from svc.stores.redis.cluster import ClusterClient
from svc.stores.redis.connection import RedisConnection
from svc.stores.redis.discovery import find_primary


def open_client(address: RedisAddress) -> RedisClient:
    """Return a client that is not yet started."""
    if address.kind == "cluster":
        return ClusterClient(address)
    if address.kind == "sentinel":
        return RedisConnection(address, find_server=functools.partial(find_primary, address))
    return RedisConnection(address)
