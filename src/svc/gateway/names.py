"""Addresses of hosts, each name looked up once at a time.

A name server that is silent holds a thread for each question. There are few of them, so that many requests to one
provider would keep the connections to all others from being made.
"""

from __future__ import annotations

import asyncio
import ipaddress
import socket


class Names:
    """Belongs to one event loop; `close` lets go of the questions that have no answer yet."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._asked: dict[str, asyncio.Task[list[str]]] = {}

    async def addresses(self, host: str) -> list[str]:
        """At least one, best first; raises OSError, or ValueError for what cannot be a name."""
        if _is_address(host):
            return [host]
        asked = self._asked.get(host)
        if asked is None:
            asked = self._asked[host] = self._loop.create_task(self._look_up(host))
            asked.add_done_callback(lambda _: self._asked.pop(host, None))
        return await asyncio.shield(asked)

    async def _look_up(self, host: str) -> list[str]:
        found = await self._loop.getaddrinfo(host, None, type=socket.SOCK_STREAM)
        return list(dict.fromkeys(str(address[0]) for *_, address in found))

    async def close(self) -> None:
        asked = list(self._asked.values())
        for task in asked:
            task.cancel()
        await asyncio.gather(*asked, return_exceptions=True)


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True
