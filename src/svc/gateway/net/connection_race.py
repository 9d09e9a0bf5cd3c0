"""Connects to the first of several addresses that responds (RFC 8305, Happy Eyeballs, without the sorting).

A silent address, such as IPv6 behind a broken route or a dead machine in the DNS, delays a connection and does not
prevent it.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from typing import Any, Final, Generic, TypeVar

log = logging.getLogger("svc.gateway")

SILENT_ADDRESS_SECONDS: Final = 60.0
"""Seconds for which an address that did not respond in time is tried last."""
Connection = TypeVar("Connection")


class ConnectionRace(Generic[Connection]):
    """Races of one event loop. `close` closes a connection that another one has beaten."""

    def __init__(self, close: Callable[[Connection], None]) -> None:
        self._close = close
        self._silent_until: dict[str, float] = {}

    async def connect(
        self, addresses: Sequence[str], connect: Callable[[str], Coroutine[Any, Any, Connection]], next_after: float
    ) -> Connection:
        """Return the first connection. Each further address is tried after a failure, or after `next_after` seconds.

        Raises the error of the last address if none accepts.
        """
        now = time.monotonic()
        ordered = sorted(addresses, key=lambda address: self._silent_until.get(address, now) > now)
        attempts: list[asyncio.Task[Connection]] = []
        winner: asyncio.Task[Connection] | None = None
        try:
            for address in ordered:
                attempts.append(asyncio.create_task(connect(address)))
                winner = await _wait_for_first(attempts, None if len(attempts) == len(ordered) else next_after)
                if winner is not None:
                    self._record_silent(ordered, attempts, winner)
                    break
            else:
                winner = attempts[-1]
            return winner.result()
        finally:
            # Without an await here: if it were cancelled, no one would close the connection of the winner.
            for address, attempt in zip(ordered, attempts, strict=False):
                if attempt is not winner:
                    attempt.add_done_callback(partial(self._close_loser, address))
                    attempt.cancel()

    def _record_silent(
        self, ordered: Sequence[str], attempts: Sequence[asyncio.Task[Connection]], winner: asyncio.Task[Connection]
    ) -> None:
        now = time.monotonic()
        self._silent_until = {address: until for address, until in self._silent_until.items() if until > now}
        for address, attempt in zip(ordered, attempts, strict=False):
            if attempt is winner:
                self._silent_until.pop(address, None)
                return
            if not attempt.done():
                self._silent_until[address] = now + SILENT_ADDRESS_SECONDS

    def _close_loser(self, address: str, attempt: asyncio.Task[Connection]) -> None:
        if attempt.cancelled():
            return
        if (error := attempt.exception()) is None:
            self._close(attempt.result())
        else:  # the traceback is part of a reference cycle through the connection
            log.info("%s: %s", address, error.with_traceback(None))


async def _wait_for_first(
    attempts: Sequence[asyncio.Task[Connection]], timeout: float | None
) -> asyncio.Task[Connection] | None:
    """Return a successful attempt, or None after a failure or the timeout. Without a timeout, None after all failed."""
    while pending := [attempt for attempt in attempts if not attempt.done()]:
        await asyncio.wait(pending, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
        for attempt in attempts:
            if attempt.done() and not attempt.cancelled() and attempt.exception() is None:
                return attempt
        if timeout is not None:
            return None
    return None
