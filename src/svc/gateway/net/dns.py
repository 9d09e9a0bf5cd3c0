"""Resolves host names, with at most one lookup per name at a time.

Each lookup occupies one of a few threads until the name server responds. Without the limit, requests to one provider
could occupy all of them, and block connections to all other providers.
"""

from __future__ import annotations

import asyncio
import ipaddress
import socket


class DnsResolver:
    """The name lookups of one event loop."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._lookups: dict[str, asyncio.Task[list[str]]] = {}

    async def resolve(self, host: str) -> list[str]:
        """Return one or more addresses of a host, preferred ones first.

        Raises OSError if the lookup fails, and ValueError if the name cannot be encoded.
        """
        if _is_ip_address(host):
            return [host]
        lookup = self._lookups.get(host)
        if lookup is None:
            lookup = self._lookups[host] = self._loop.create_task(self._look_up(host))
            lookup.add_done_callback(lambda _: self._lookups.pop(host, None))
        return await asyncio.shield(lookup)

    def is_pending(self, host: str) -> bool:
        """Return whether a lookup of the host is in progress."""
        return host in self._lookups

    async def _look_up(self, host: str) -> list[str]:
        address_infos = await self._loop.getaddrinfo(host, None, type=socket.SOCK_STREAM)
        return list(dict.fromkeys(str(address[0]) for *_, address in address_infos))

    async def close(self) -> None:
        """Cancel the lookups in progress."""
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
