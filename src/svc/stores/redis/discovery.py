"""Finds the servers of Sentinel and of a cluster, with redis-py."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import AsyncExitStack
from typing import Any

from redis.asyncio import Redis, Sentinel
from redis.asyncio.retry import Retry
from redis.asyncio.sentinel import MasterNotFoundError
from redis.backoff import NoBackoff
from redis.exceptions import RedisError

from svc.stores.database.base import StoreUnavailable
from svc.stores.redis.address import RedisAddress
from svc.stores.redis.connection import read_password

DISCOVERY_TIMEOUT_SECONDS = 0.5
"""Timeout of each connect and of each reply, before the next server is asked."""

Host = tuple[str, int]
SlotRange = tuple[int, int, Host]
"""First slot, last slot, and their primary."""


async def find_primary(address: RedisAddress) -> Host:
    """Return host and port of Sentinel's primary. Raises StoreUnavailable."""
    try:
        return await _ask_sentinels(address)
    except StoreUnavailable:
        raise
    except Exception as error:  # boundary: redis-py raises any error for a malformed reply, and while it disconnects
        raise StoreUnavailable(f"Sentinel does not name the primary: {str(error) or type(error).__name__}") from error


async def _ask_sentinels(address: RedisAddress) -> Host:
    options = _client_options(address) | {
        "username": address.sentinel_user,
        "password": address.sentinel_password,
    }
    sentinel = Sentinel(address.hosts, sentinel_kwargs=options)  # type: ignore[no-untyped-call]
    async with AsyncExitStack() as stack:
        for client in sentinel.sentinels:
            stack.push_async_callback(client.aclose)
        try:
            host, port = await sentinel.discover_master(address.primary_name)
        except MasterNotFoundError:
            # Its message has the addresses of Python objects: the log would report each attempt as a new failure.
            raise StoreUnavailable(f"No Sentinel responds and knows the primary {address.primary_name!r}.") from None
    return str(host), int(port)


async def read_slots(address: RedisAddress, hosts: Iterable[Host]) -> list[SlotRange]:
    """Return all ranges of slots, from the first server that replies.

    Raises StoreUnavailable if none of `hosts` does.
    """
    password, reason = await read_password(address), ""
    for host, port in hosts:
        client = Redis(host=host, port=port, username=address.user, password=password, **_client_options(address))
        try:
            reply: Any = await client.execute_command("CLUSTER SLOTS")  # type: ignore[no-untyped-call]
        except (RedisError, OSError) as error:
            reason = f"{host}:{port}: {error}"
            continue
        finally:
            await client.aclose()
        if reply:
            return [_parse_range(each, host) for each in reply]
        reason = f"{host}:{port} has no slots"
    raise StoreUnavailable(f"No server describes the cluster: {reason}")


def _parse_range(reply: Any, asked_host: str) -> SlotRange:
    """Parse the description of a range. Raises StoreUnavailable."""
    try:
        first, last, (host, port, *_), *_ = reply
        name = (host or b"").decode()
        # Empty or "?": the server does not know its own name.
        return int(first), int(last), (asked_host if name in ("", "?") else name, int(port))
    except (TypeError, ValueError, AttributeError) as error:
        raise StoreUnavailable(f"{asked_host} sent an unexpected description of the cluster.") from error


def _client_options(address: RedisAddress) -> dict[str, Any]:
    return {
        "socket_timeout": DISCOVERY_TIMEOUT_SECONDS,
        "socket_connect_timeout": DISCOVERY_TIMEOUT_SECONDS,
        "retry": Retry(NoBackoff(), 0),
        "ssl": address.uses_tls,
        **address.tls_options,
    }
