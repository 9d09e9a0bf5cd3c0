"""How much of what has come is read in one turn of the loop."""

from __future__ import annotations

import asyncio
import socket

import uvloop

from svc.gateway.net.read_mode import BufferedRead
from svc.gateway.net.read_scheduler import (
    LIMITED_READ_BYTES,
    MAX_LARGE_READ_BYTES_PER_TURN,
    MAX_RESUMED_READERS_PER_TURN,
    ReadScheduler,
)

ROOM = 32 * 1024


class Clock:
    """Counts the loop's turns."""

    def __init__(self) -> None:
        self.turn = 0
        self.bytes: dict[int, int] = {}

    async def run(self) -> None:
        while True:
            await asyncio.sleep(0)
            self.turn += 1

    def note(self, size: int) -> None:
        self.bytes[self.turn] = self.bytes.get(self.turn, 0) + size


class Reads:
    """Reads all that comes."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.buffered_read: BufferedRead | None = None
        self.size = 0

    def connection_made(self, transport: asyncio.Transport) -> None: ...

    def data_received(self, data: bytes) -> None:
        self.size += len(data)
        self.clock.note(len(data))

    def eof_received(self) -> None: ...

    def pause_writing(self) -> None: ...

    def resume_writing(self) -> None: ...

    def connection_lost(self, exc: Exception | None) -> None: ...


async def read_floods(connections: int, size: int) -> Clock:
    """Connections on each of which `size` bytes have come already when the loop first looks."""
    loop = asyncio.get_running_loop()
    clock, turns, uppers, theirs = Clock(), ReadScheduler(loop), [], []
    for _ in range(connections):
        ours, other = socket.socketpair()
        other.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 2 * size)
        other.setblocking(False)
        assert other.send(bytes(size)) > size // 2
        uppers.append(Reads(clock))
        theirs.append(other)
        bounded = BufferedRead(uppers[-1], bytearray(ROOM), turns)
        await loop.create_connection(lambda bounded=bounded: bounded, sock=ours)  # type: ignore[misc]
        assert uppers[-1].buffered_read is bounded
        bounded.pause_reading()
    ticking = asyncio.create_task(clock.run())
    await asyncio.sleep(0)
    clock.bytes.clear()
    for upper in uppers:
        assert upper.buffered_read is not None
        upper.buffered_read.resume_reading()
    sent = sum(upper.size for upper in uppers)
    async with asyncio.timeout(20):
        while sum(clock.bytes.values()) < connections * size // 2 + sent:
            await asyncio.sleep(0.01)
    ticking.cancel()
    for other in theirs:
        other.close()
    return clock


def test_bounded_connection_reads_one_buffer_a_turn() -> None:
    clock = uvloop.run(read_floods(1, 1 << 20))
    assert max(clock.bytes.values()) <= 2 * ROOM  # the clock's own turn may come before or after


def test_bounded_many_connections_share_a_turn() -> None:
    clock = uvloop.run(read_floods(60, 1 << 17))
    assert max(clock.bytes.values()) <= 2 * (MAX_LARGE_READ_BYTES_PER_TURN + ROOM + 60 * LIMITED_READ_BYTES)


class Paused:
    """Waits for its turn."""

    def __init__(self, done: list[Paused]) -> None:
        self._done = done

    def on_turn(self) -> None:
        self._done.append(self)


def test_turns_let_a_few_read_on_in_order() -> None:
    async def main() -> list[int]:
        done: list[Paused] = []
        turns = ReadScheduler(asyncio.get_running_loop())
        waiting = [Paused(done) for _ in range(2 * MAX_RESUMED_READERS_PER_TURN + 1)]
        for one in waiting:
            turns.schedule(one)
        counts = []
        while len(done) < len(waiting):
            await asyncio.sleep(0)
            counts.append(len(done))
        assert done == waiting
        return counts

    assert uvloop.run(main()) == [
        MAX_RESUMED_READERS_PER_TURN,
        2 * MAX_RESUMED_READERS_PER_TURN,
        2 * MAX_RESUMED_READERS_PER_TURN + 1,
    ]


def test_bounded_held_while_it_waits_does_not_read_on() -> None:
    async def main() -> int:
        loop = asyncio.get_running_loop()
        ours, other = socket.socketpair()
        other.setblocking(False)
        upper = Reads(Clock())
        bounded = BufferedRead(upper, bytearray(ROOM), ReadScheduler(loop))
        await loop.create_connection(lambda: bounded, sock=ours)  # type: ignore[type-var]
        other.send(bytes(2 * ROOM))
        while not upper.size:
            await asyncio.sleep(0)
        bounded.pause_reading()
        read = upper.size
        await asyncio.sleep(0.05)
        assert upper.size == read < 2 * ROOM
        bounded.resume_reading()
        async with asyncio.timeout(10):
            while upper.size < 2 * ROOM:
                await asyncio.sleep(0)
        other.close()
        return upper.size

    assert uvloop.run(main()) == 2 * ROOM


class Counting:
    """Counts that its turn came, and fails then if it is to."""

    def __init__(self, seen: list[Counting], *, fails: bool) -> None:
        self.seen = seen
        self.fails = fails

    def on_turn(self) -> None:
        self.seen.append(self)
        if self.fails:
            raise RuntimeError("it fails")


async def test_turns_connection_that_fails_takes_no_turn_of_the_others() -> None:
    loop = asyncio.get_running_loop()
    failed: list[object] = []
    loop.set_exception_handler(lambda _, context: failed.append(context["exception"]))
    turns, seen = ReadScheduler(loop), list[Counting]()
    waiting = [Counting(seen, fails=number == 0) for number in range(3 * MAX_RESUMED_READERS_PER_TURN)]
    for each in waiting:
        turns.schedule(each)
    for _ in range(10):
        await asyncio.sleep(0)
    assert seen == waiting
    assert len(failed) == 1
