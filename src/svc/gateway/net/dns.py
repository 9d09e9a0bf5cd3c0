"""Addresses of hosts, each name looked up once at a time.

A name server that is silent holds a thread for each question. There are few of them, so that many requests to one
provider would keep the connections to all others from being made.
"""

from __future__ import annotations

import asyncio
import ipaddress
import socket


class DnsResolver:
    """Belongs to one event loop; `close` lets go of the questions that have no answer yet."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._lookups: dict[str, asyncio.Task[list[str]]] = {}

    async def resolve(self, host: str) -> list[str]:
        """At least one, best first; raises OSError, or ValueError for what cannot be a name."""
        if _is_ip_address(host):
            return [host]
        lookup = self._lookups.get(host)
        if lookup is None:
            lookup = self._lookups[host] = self._loop.create_task(self._look_up(host))
            lookup.add_done_callback(lambda _: self._lookups.pop(host, None))
        return await asyncio.shield(lookup)

    async def _look_up(self, host: str) -> list[str]:
        address_infos = await self._loop.getaddrinfo(host, None, type=socket.SOCK_STREAM)
        return list(dict.fromkeys(str(address[0]) for *_, address in address_infos))

    async def close(self) -> None:
        lookups = list(self._lookups.values())
        for task in lookups:
            task.cancel()
        await asyncio.gather(*lookups, return_exceptions=True)


def _is_ip_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True
