"""Limits login attempts for each client address."""

from __future__ import annotations

import ipaddress
from collections.abc import Awaitable, Callable
from typing import Final

from svc.console.trusted_proxies import parse_address
from svc.errors import RateLimited

MAX_ATTEMPTS_PER_MINUTE: Final = 10
AttemptCounter = Callable[[str, int], Awaitable[None]]
"""Counts an attempt under a name. Raises RateLimited after the given number of attempts in a minute."""


class LoginLimiter:
    """Allows an address ten attempts in a minute, right or wrong. All workers share `count_attempt`."""

    def __init__(self, count_attempt: AttemptCounter) -> None:
        self._count_attempt = count_attempt

    async def record_attempt(self, address: str) -> None:
        """Count an attempt. Raises RateLimited."""
        try:
            await self._count_attempt(f"login:{_network(address)}", MAX_ATTEMPTS_PER_MINUTE)
        except RateLimited as error:
            seconds = error.retry_after
            message = f"Too many login attempts. Try again in {seconds:.0f} s."
            raise RateLimited(message, retry_after=seconds) from None


def _network(address: str) -> str:
    """Return the /64 network of an IPv6 address: a client chooses the rest of it freely."""
    parsed = parse_address(address)
    if parsed is None:
        return "other"
    return str(parsed) if parsed.version == 4 else str(ipaddress.ip_network((parsed, 64), strict=False))
