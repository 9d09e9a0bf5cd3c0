"""What a connection reads at once, on a real socket: small pieces freely, a flood in parts."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable

import pytest
import uvloop

from svc.gateway.net.read_mode import MAX_DIRECT_READ_BYTES, BufferedRead

ROOM = 4 * MAX_DIRECT_READ_BYTES
FLOOD = 4 * 1024 * 1024


class Reads:
    """Lets go after each piece, as a connection does that carries a stream."""

    def __init__(self, *, lets: bool = True) -> None:
        self.buffered_read: BufferedRead | None = None
        self._lets = lets
        self.sizes: list[int] = []
        self.wanted = 0
        self.lost = asyncio.Event()
        self.ended = False

    def connection_made(self, transport: asyncio.Transport) -> None:
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        assert self.buffered_read is not None
        self.sizes.append(len(data))
        if len(data) > MAX_DIRECT_READ_BYTES:
            self.buffered_read.use_buffered()
        elif self._lets:
            self.buffered_read.use_direct(len(data))

    def satisfied(self) -> bool:
        return sum(self.sizes) == self.wanted

    def eof_received(self) -> None:
        self.ended = True

    def pause_writing(self) -> None: ...

    def resume_writing(self) -> None: ...

    def connection_lost(self, exc: Exception | None) -> None:
        self.lost.set()


async def until(done: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not done():
            await asyncio.sleep(0.001)


async def reads(upper: Reads, *floods: int) -> list[int]:
    """The sizes of what was read after three small pieces, of which each came alone."""
    loop = asyncio.get_running_loop()
    ours, theirs = socket.socketpair()
    theirs.setblocking(False)
    bounded = BufferedRead(upper, bytearray(ROOM))
    await loop.create_connection(lambda: bounded, sock=ours)  # type: ignore[type-var]
    small = [b"%d" % number * 100 for number in range(3)]
    with theirs:
        for piece in (*small, *[b"x" * size for size in floods]):
            upper.wanted += len(piece)
            await loop.sock_sendall(theirs, piece)
            await until(upper.satisfied)
    await asyncio.wait_for(upper.lost.wait(), 10)
    assert upper.ended
    return upper.sizes[3:]


def run(upper: Callable[[], Reads], *floods: int) -> list[int]:
    async def main() -> list[int]:
        return await reads(upper(), *floods)

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(main())


def test_a_flood_is_read_in_parts_but_for_the_first() -> None:
    sizes = run(Reads, FLOOD)
    assert max(sizes[1:]) <= ROOM < sizes[0]
    assert sum(sizes) == FLOOD


def test_free_again_after_it() -> None:
    """So the second flood begins with one that is larger than the room."""
    sizes = run(Reads, FLOOD, 100, FLOOD)
    assert sum(size > ROOM for size in sizes) <= 2
    assert 100 in sizes


def test_who_lets_nothing_go_is_bounded_throughout() -> None:
    assert max(run(lambda: Reads(lets=False), FLOOD)) <= ROOM


class Wire:
    """Who has been given to it to read."""

    def __init__(self, *, reading: bool = True) -> None:
        self.given: list[object] = []
        self._reading = reading

    def is_reading(self) -> bool:
        return self._reading

    def set_protocol(self, protocol: object) -> None:
        self.given.append(protocol)


@pytest.mark.parametrize(
    ("size", "reading"),
    [(MAX_DIRECT_READ_BYTES, True), (MAX_DIRECT_READ_BYTES + 1, True), (MAX_DIRECT_READ_BYTES, False)],
)
def test_only_small_pieces_make_it_free_and_only_while_it_reads(size: int, reading: bool) -> None:
    wire, upper = Wire(reading=reading), Reads()
    bounded = BufferedRead(upper, bytearray(ROOM))
    bounded.connection_made(wire)  # type: ignore[arg-type]
    bounded.use_direct(size)
    bounded.use_direct(size)
    bounded.use_buffered()
    bounded.use_buffered()
    assert wire.given == ([upper, bounded] if size <= MAX_DIRECT_READ_BYTES and reading else [])


def test_another_may_read_in_the_place_of_the_upper_one() -> None:
    wire, upper, other = Wire(), Reads(), Reads()
    bounded = BufferedRead(upper, bytearray(ROOM))
    bounded.connection_made(wire)  # type: ignore[arg-type]
    for reads in (other, other, None, None, other):
        bounded.use_direct(1, reads)
    bounded.use_buffered()
    bounded.use_direct(MAX_DIRECT_READ_BYTES + 1, other)
    assert wire.given == [other, upper, other, bounded]
