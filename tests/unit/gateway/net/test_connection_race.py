"""The first of several addresses that responds gets the connection."""

from __future__ import annotations

import asyncio

import pytest

from svc.gateway.net.connection_race import ConnectionRace

SOON = 0.01


class Network:
    """Addresses that accept, refuse, or are silent until `released` is set. A connection is the name of its address.

    The attempt at an address that is slow to cancel ends only when `released` is set.
    """

    def __init__(self, **behaviour: str) -> None:
        self.tried: list[str] = []
        self.closed: list[str] = []
        self.cancelled: list[str] = []
        self.released = asyncio.Event()
        self.race: ConnectionRace[str] = ConnectionRace(self.closed.append)
        self._behaviour = behaviour

    async def connect(self, address: str) -> str:
        self.tried.append(address)
        if self._behaviour[address] == "refuse":
            raise ConnectionRefusedError(address)
        if self._behaviour[address] == "silent":
            try:
                await self.released.wait()
            except asyncio.CancelledError:
                self.cancelled.append(address)
                raise
        if self._behaviour[address] == "slow to cancel":
            try:
                await asyncio.Event().wait()
            finally:
                await self.released.wait()
        return address

    async def run(self, next_after: float = SOON) -> str:
        self.tried.clear()
        try:
            return await self.race.connect(list(self._behaviour), self.connect, next_after)
        finally:
            await asyncio.sleep(0)  # the other attempts get their cancellation


async def test_race_silent_address_does_not_prevent_a_connection_and_is_tried_last_afterwards() -> None:
    network = Network(a="silent", b="accept", c="accept")
    assert await network.run() == "b"
    assert (network.tried, network.cancelled) == (["a", "b"], ["a"])
    assert await network.run() == "b"
    assert network.tried == ["b"]


async def test_race_refused_address_is_followed_by_the_next_at_once() -> None:
    network = Network(a="refuse", b="accept")
    assert await network.run(next_after=60) == "b"
    assert await network.run(next_after=60) == "b"
    assert network.tried == ["a", "b"]


async def test_race_no_address_accepts_raises_the_error_of_the_last() -> None:
    network = Network(a="refuse", b="refuse")
    with pytest.raises(ConnectionRefusedError, match="b"):
        await network.run()


async def test_race_late_response_of_the_first_address_wins() -> None:
    network = Network(a="silent", b="silent")
    attempt = asyncio.create_task(network.run())
    while network.tried != ["a", "b"]:
        await asyncio.sleep(SOON)
    network.released.set()
    assert await attempt == "a"
    assert network.closed + network.cancelled == ["b"]


async def test_race_does_not_wait_for_other_attempts_so_that_a_cancellation_cannot_lose_the_connection() -> None:
    network = Network(a="slow to cancel", b="accept")
    async with asyncio.timeout(5):
        assert await network.run() == "b"
    network.released.set()


async def test_race_cancelled_ends_all_attempts() -> None:
    network = Network(a="silent", b="silent")
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(10 * SOON):
            await network.run()
    assert sorted(network.cancelled) == sorted(network.tried)
