"""Opens the Redis of SVC_REDIS_URL. The extra `redis` is imported only if the variable is set."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Mapping

from svc import plugins
from svc.distribution import install_command
from svc.errors import UsageError
from svc.stores.redis.address import parse_redis_url
from svc.stores.redis.base import RedisClient


def open_redis(url: str) -> RedisClient:
    """Return a client, not yet connected. Raises UsageError, which also names a missing package to install."""
    address = parse_redis_url(url)
    try:
        module = plugins.load("stores.redis", "client")
    except ImportError as error:
        raise UsageError(f"Redis needs the extra 'redis': {install_command('redis')} ({error}).") from error
    client: RedisClient = module.open_client(address)
    return client


@contextlib.asynccontextmanager
async def connect_redis(environ: Mapping[str, str]) -> AsyncIterator[RedisClient | None]:
    """Yield a started client of `SVC_REDIS_URL`, or None if it is unset. Raises UsageError."""
    url = environ.get("SVC_REDIS_URL")
    if not url:
        yield None
        return
    redis = open_redis(url)
    await redis.start()
    try:
        yield redis
    finally:
        await redis.close()
