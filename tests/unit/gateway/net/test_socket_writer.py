"""What a writer sends past the loop: all, once, in order, and never to another's socket. Real sockets and loops."""

from __future__ import annotations

import asyncio
import gc
import os
import random
import socket
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any, cast

import pytest
import uvloop

from svc.gateway.net.borrowed_socket import borrow_socket
from svc.gateway.net.socket_writer import SocketWriter

LOOPS = [asyncio.new_event_loop, uvloop.new_event_loop]


class Side(asyncio.Protocol):
    """One that makes a writer, and lets go of it when its connection is lost."""

    def __init__(self) -> None:
        self.lost: asyncio.Future[Exception | None] = asyncio.get_running_loop().create_future()
        self.paused = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)  # which uvloop's do not inherit from
        self.writer = SocketWriter(self.transport)

    def pause_writing(self) -> None:
        self.paused += 1

    def connection_lost(self, exc: Exception | None) -> None:
        self.writer.close()
        self.lost.set_result(exc)


@asynccontextmanager
async def connected() -> AsyncIterator[tuple[Side, socket.socket]]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        _, side = await asyncio.get_running_loop().create_connection(Side, *listener.getsockname())
        other, _ = listener.accept()
    with other:
        other.setblocking(False)
        yield side, other
        side.transport.abort()
        await asyncio.wait_for(asyncio.shield(side.lost), 5)


async def read(other: socket.socket, size: int) -> bytes:
    parts = b""
    while len(parts) < size:
        part = await asyncio.wait_for(asyncio.get_running_loop().sock_recv(other, size - len(parts)), 5)
        if not part:
            break
        parts += part
    return parts


def run(make: Callable[[], asyncio.AbstractEventLoop], main: Coroutine[Any, Any, None]) -> None:
    with asyncio.Runner(loop_factory=make) as runner:
        runner.run(main)


@pytest.mark.parametrize("make", LOOPS)
def test_once_nothing_waits_it_sends_without_the_loop(make: Callable[[], asyncio.AbstractEventLoop]) -> None:
    async def main() -> None:
        async with connected() as (side, other):
            side.writer.write(b"one")
            side.transport.abort()  # the loop would send nothing any more
            side.writer.write(b" two")
            assert await read(other, 7) == b"one two"

    run(make, main())


@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize("make", LOOPS)
def test_all_arrives_in_order_however_slowly_it_is_read(
    make: Callable[[], asyncio.AbstractEventLoop], seed: int
) -> None:
    rng = random.Random(seed)

    async def main() -> None:
        async with connected() as (side, other):
            side.transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
            sent, got = b"", b""
            for _ in range(300):
                data = rng.randbytes(rng.choice([0, 1, 300, 5_000, 100_000]))
                sent += data
                if rng.random() < 0.2:
                    side.transport.write(data)
                    side.writer.mark_dirty()
                elif rng.random() < 0.2:
                    side.writer.writelines([data[:7], data[7:]])
                else:
                    side.writer.write(data)
                if rng.random() < 0.3:
                    got += await read(other, rng.randint(0, len(sent) - len(got)))
                if rng.random() < 0.1:
                    await asyncio.sleep(0)
            assert side.paused
            got += await read(other, len(sent) - len(got))
            assert got == sent
            assert side.transport.get_write_buffer_size() == 0

    run(make, main())


@pytest.mark.parametrize("make", LOOPS)
def test_after_the_connection_is_lost_nothing_goes_to_who_has_its_number_now(
    make: Callable[[], asyncio.AbstractEventLoop],
) -> None:
    async def main() -> None:
        async with connected() as (side, _):
            side.writer.write(b"one")
            number = side.transport.get_extra_info("socket").fileno()
            side.transport.abort()
            await asyncio.wait_for(asyncio.shield(side.lost), 5)
            await asyncio.sleep(0.01)
            ours, theirs = sorted(socket.socketpair(), key=lambda each: each.fileno() != number)
            with ours, theirs:
                if ours.fileno() != number:
                    os.dup2(ours.fileno(), number)
                side.writer.write(b"two")
                side.writer.mark_dirty()
                side.writer.write(b"three")
                theirs.setblocking(False)
                with pytest.raises(BlockingIOError):
                    theirs.recv(1)
                if ours.fileno() != number:
                    os.close(number)

    run(make, main())


@pytest.mark.parametrize("make", LOOPS)
def test_nothing_follows_what_an_aborted_connection_has_forgotten(
    make: Callable[[], asyncio.AbstractEventLoop],
) -> None:
    async def main() -> None:
        async with connected() as (side, other):
            side.writer.write(b"a" * 5_000_000)
            assert side.transport.get_write_buffer_size()
            side.transport.abort()
            side.writer.write(b"b")
            side.writer.write(b"c")
            assert set(await read(other, 6_000_000)) == {ord("a")}

    run(make, main())


@pytest.mark.parametrize("make", LOOPS)
def test_a_broken_connection_is_lost(make: Callable[[], asyncio.AbstractEventLoop]) -> None:
    async def main() -> None:
        async with connected() as (side, other):
            side.transport.pause_reading()  # or it would be heard of without a word from us
            side.writer.write(b"one")
            other.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
            other.close()
            for _ in range(3):
                side.writer.write(b"two")
            assert isinstance(await asyncio.wait_for(asyncio.shield(side.lost), 5), ConnectionError)

    run(make, main())


@pytest.mark.parametrize("make", LOOPS)
def test_what_is_borrowed_is_never_closed(make: Callable[[], asyncio.AbstractEventLoop]) -> None:
    async def main() -> None:
        async with connected() as (side, other):
            borrowed = borrow_socket(side.transport)
            assert borrowed is not None
            borrowed.send(b"one")
            del borrowed
            gc.collect()
            side.transport.write(b" two")
            assert await read(other, 7) == b"one two"

    run(make, main())


def test_a_transport_without_a_socket_of_its_own_is_written_to() -> None:
    class Elsewhere(asyncio.Transport):
        written = b""

        def get_extra_info(self, name: str, default: object = None) -> object:
            return default

        def write(self, data: bytes | bytearray | memoryview) -> None:
            self.written += data

        def get_write_buffer_size(self) -> int:
            return 0

        def is_closing(self) -> bool:
            return False

    transport = Elsewhere()
    writer = SocketWriter(transport)
    writer.write(b"one")
    writer.write(b" two")
    assert transport.written == b"one two"
