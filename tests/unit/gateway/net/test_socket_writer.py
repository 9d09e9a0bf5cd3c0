"""The socket writer sends all bytes once, in order, and only to its own socket. Real sockets and event loops."""

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


class WriterProtocol(asyncio.Protocol):
    """A protocol that creates a writer and closes it when the connection is lost."""

    def __init__(self) -> None:
        self.lost: asyncio.Future[Exception | None] = asyncio.get_running_loop().create_future()
        self.paused = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)  # uvloop's transports do not inherit from it
        self.writer = SocketWriter(self.transport)

    def pause_writing(self) -> None:
        self.paused += 1

    def connection_lost(self, exc: Exception | None) -> None:
        self.writer.close()
        self.lost.set_result(exc)


@asynccontextmanager
async def connected() -> AsyncIterator[tuple[WriterProtocol, socket.socket]]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        _, protocol = await asyncio.get_running_loop().create_connection(WriterProtocol, *listener.getsockname())
        peer, _ = listener.accept()
    with peer:
        peer.setblocking(False)
        yield protocol, peer
        protocol.transport.abort()
        await asyncio.wait_for(asyncio.shield(protocol.lost), 20)


async def read(peer: socket.socket, size: int) -> bytes:
    parts = b""
    while len(parts) < size:
        part = await asyncio.wait_for(asyncio.get_running_loop().sock_recv(peer, size - len(parts)), 20)
        if not part:
            break
        parts += part
    return parts


def run(new_loop: Callable[[], asyncio.AbstractEventLoop], main: Coroutine[Any, Any, None]) -> None:
    with asyncio.Runner(loop_factory=new_loop) as runner:
        runner.run(main)


@pytest.mark.parametrize("new_loop", LOOPS)
def test_socket_writer_empty_buffer_sends_without_event_loop(new_loop: Callable[[], asyncio.AbstractEventLoop]) -> None:
    async def main() -> None:
        async with connected() as (protocol, peer):
            protocol.writer.write(b"one")
            protocol.transport.abort()  # the event loop sends nothing after an abort
            protocol.writer.write(b" two")
            assert await read(peer, 7) == b"one two"

    run(new_loop, main())


@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize("new_loop", LOOPS)
def test_socket_writer_slow_reader_receives_all_bytes_in_order(
    new_loop: Callable[[], asyncio.AbstractEventLoop], seed: int
) -> None:
    rng = random.Random(seed)

    async def main() -> None:
        async with connected() as (protocol, peer):
            protocol.transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 65536)
            sent, got = b"", b""
            for _ in range(300):
                data = rng.randbytes(rng.choice([0, 1, 300, 5_000, 100_000]))
                sent += data
                if rng.random() < 0.2:
                    protocol.transport.write(data)
                    protocol.writer.mark_dirty()
                elif rng.random() < 0.2:
                    protocol.writer.writelines([data[:7], data[7:]])
                else:
                    protocol.writer.write(data)
                if rng.random() < 0.3:
                    got += await read(peer, rng.randint(0, len(sent) - len(got)))
                if rng.random() < 0.1:
                    await asyncio.sleep(0)
            assert protocol.paused
            got += await read(peer, len(sent) - len(got))
            assert got == sent
            assert protocol.transport.get_write_buffer_size() == 0

    run(new_loop, main())


@pytest.mark.parametrize("new_loop", LOOPS)
def test_socket_writer_lost_connection_does_not_write_to_reused_descriptor(
    new_loop: Callable[[], asyncio.AbstractEventLoop],
) -> None:
    async def main() -> None:
        async with connected() as (protocol, _):
            protocol.writer.write(b"one")
            number = protocol.transport.get_extra_info("socket").fileno()
            protocol.transport.abort()
            await asyncio.wait_for(asyncio.shield(protocol.lost), 20)
            await asyncio.sleep(0.01)
            local, remote = sorted(socket.socketpair(), key=lambda each: each.fileno() != number)
            with local, remote:
                if local.fileno() != number:
                    os.dup2(local.fileno(), number)
                protocol.writer.write(b"two")
                protocol.writer.mark_dirty()
                protocol.writer.write(b"three")
                remote.setblocking(False)
                with pytest.raises(BlockingIOError):
                    remote.recv(1)
                if local.fileno() != number:
                    os.close(number)

    run(new_loop, main())


@pytest.mark.parametrize("new_loop", LOOPS)
def test_socket_writer_aborted_connection_sends_nothing_more(
    new_loop: Callable[[], asyncio.AbstractEventLoop],
) -> None:
    async def main() -> None:
        async with connected() as (protocol, peer):
            protocol.writer.write(b"a" * 5_000_000)
            assert protocol.transport.get_write_buffer_size()
            protocol.transport.abort()
            protocol.writer.write(b"b")
            protocol.writer.write(b"c")
            assert set(await read(peer, 6_000_000)) == {ord("a")}

    run(new_loop, main())


@pytest.mark.parametrize("new_loop", LOOPS)
def test_socket_writer_broken_connection_calls_connection_lost(
    new_loop: Callable[[], asyncio.AbstractEventLoop],
) -> None:
    async def main() -> None:
        async with connected() as (protocol, peer):
            protocol.transport.pause_reading()  # otherwise reading reports the loss first
            protocol.writer.write(b"one")
            peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
            peer.close()
            for _ in range(3):
                protocol.writer.write(b"two")
            assert isinstance(await asyncio.wait_for(asyncio.shield(protocol.lost), 20), ConnectionError)

    run(new_loop, main())


@pytest.mark.parametrize("new_loop", LOOPS)
def test_borrowed_socket_collected_does_not_close_connection(new_loop: Callable[[], asyncio.AbstractEventLoop]) -> None:
    async def main() -> None:
        async with connected() as (protocol, peer):
            borrowed = borrow_socket(protocol.transport)
            assert borrowed is not None
            borrowed.send(b"one")
            del borrowed
            gc.collect()
            protocol.transport.write(b" two")
            assert await read(peer, 7) == b"one two"

    run(new_loop, main())


def test_socket_writer_transport_without_socket_uses_transport_write() -> None:
    class SocketlessTransport(asyncio.Transport):
        written = b""

        def get_extra_info(self, name: str, default: object = None) -> object:
            return default

        def write(self, data: bytes | bytearray | memoryview) -> None:
            self.written += data

        def get_write_buffer_size(self) -> int:
            return 0

        def is_closing(self) -> bool:
            return False

    transport = SocketlessTransport()
    writer = SocketWriter(transport)
    writer.write(b"one")
    writer.write(b" two")
    assert transport.written == b"one two"
