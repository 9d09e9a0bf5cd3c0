"""How many of the received bytes are read in one turn of the event loop."""

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

BUFFER_BYTES = 32 * 1024


class TurnCounter:
    """Counts the event loop's turns and the bytes read in each."""

    def __init__(self) -> None:
        self.turn = 0
        self.bytes: dict[int, int] = {}

    async def run(self) -> None:
        while True:
            await asyncio.sleep(0)
            self.turn += 1

    def note(self, size: int) -> None:
        self.bytes[self.turn] = self.bytes.get(self.turn, 0) + size


class RecordingProtocol:
    """Reads all received bytes."""

    def __init__(self, counter: TurnCounter) -> None:
        self.counter = counter
        self.buffered_read: BufferedRead | None = None
        self.size = 0

    def connection_made(self, transport: asyncio.Transport) -> None: ...

    def data_received(self, data: bytes) -> None:
        self.size += len(data)
        self.counter.note(len(data))

    def eof_received(self) -> None: ...

    def pause_writing(self) -> None: ...

    def resume_writing(self) -> None: ...

    def connection_lost(self, exc: Exception | None) -> None: ...


async def read_large_data(connections: int, size: int) -> TurnCounter:
    """Read from connections that each have `size` bytes in their receive buffer."""
    loop = asyncio.get_running_loop()
    counter, scheduler, protocols, remotes = TurnCounter(), ReadScheduler(loop), [], []
    for _ in range(connections):
        local, remote = socket.socketpair()
        remote.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 2 * size)
        remote.setblocking(False)
        assert remote.send(bytes(size)) > size // 2
        protocols.append(RecordingProtocol(counter))
        remotes.append(remote)
        buffered = BufferedRead(protocols[-1], bytearray(BUFFER_BYTES), scheduler)
        await loop.create_connection(lambda buffered=buffered: buffered, sock=local)  # type: ignore[misc]
        assert protocols[-1].buffered_read is buffered
        buffered.pause_reading()
    ticking = asyncio.create_task(counter.run())
    await asyncio.sleep(0)
    counter.bytes.clear()
    for protocol in protocols:
        assert protocol.buffered_read is not None
        protocol.buffered_read.resume_reading()
    sent = sum(protocol.size for protocol in protocols)
    async with asyncio.timeout(20):
        while sum(counter.bytes.values()) < connections * size // 2 + sent:
            await asyncio.sleep(0.01)
    ticking.cancel()
    for remote in remotes:
        remote.close()
    return counter


def test_buffered_read_one_connection_reads_one_buffer_per_turn() -> None:
    counter = uvloop.run(read_large_data(1, 1 << 20))
    assert max(counter.bytes.values()) <= 2 * BUFFER_BYTES  # the counter's own turn may come before or after


def test_buffered_read_many_connections_share_bytes_per_turn() -> None:
    counter = uvloop.run(read_large_data(60, 1 << 17))
    assert max(counter.bytes.values()) <= 2 * (MAX_LARGE_READ_BYTES_PER_TURN + BUFFER_BYTES + 60 * LIMITED_READ_BYTES)


class PausedReader:
    """Waits for its turn."""

    def __init__(self, done: list[PausedReader]) -> None:
        self._done = done

    def on_turn(self) -> None:
        self._done.append(self)


def test_read_scheduler_resumes_a_few_readers_per_turn_in_order() -> None:
    async def main() -> list[int]:
        done: list[PausedReader] = []
        scheduler = ReadScheduler(asyncio.get_running_loop())
        waiting = [PausedReader(done) for _ in range(2 * MAX_RESUMED_READERS_PER_TURN + 1)]
        for one in waiting:
            scheduler.schedule(one)
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


def test_buffered_read_paused_while_scheduled_does_not_resume() -> None:
    async def main() -> int:
        loop = asyncio.get_running_loop()
        local, remote = socket.socketpair()
        remote.setblocking(False)
        protocol = RecordingProtocol(TurnCounter())
        buffered = BufferedRead(protocol, bytearray(BUFFER_BYTES), ReadScheduler(loop))
        await loop.create_connection(lambda: buffered, sock=local)  # type: ignore[type-var]
        remote.send(bytes(2 * BUFFER_BYTES))
        while not protocol.size:
            await asyncio.sleep(0)
        buffered.pause_reading()
        read = protocol.size
        await asyncio.sleep(0.05)
        assert protocol.size == read < 2 * BUFFER_BYTES
        buffered.resume_reading()
        async with asyncio.timeout(10):
            while protocol.size < 2 * BUFFER_BYTES:
                await asyncio.sleep(0)
        remote.close()
        return protocol.size

    assert uvloop.run(main()) == 2 * BUFFER_BYTES


class CountingReader:
    """Records its turn, then fails if `fails` is set."""

    def __init__(self, seen: list[CountingReader], *, fails: bool) -> None:
        self.seen = seen
        self.fails = fails

    def on_turn(self) -> None:
        self.seen.append(self)
        if self.fails:
            raise RuntimeError("reader fails")


async def test_read_scheduler_failing_reader_does_not_delay_others() -> None:
    loop = asyncio.get_running_loop()
    failed: list[object] = []
    loop.set_exception_handler(lambda _, context: failed.append(context["exception"]))
    scheduler, seen = ReadScheduler(loop), list[CountingReader]()
    waiting = [CountingReader(seen, fails=number == 0) for number in range(3 * MAX_RESUMED_READERS_PER_TURN)]
    for each in waiting:
        scheduler.schedule(each)
    for _ in range(10):
        await asyncio.sleep(0)
    assert seen == waiting
    assert len(failed) == 1
