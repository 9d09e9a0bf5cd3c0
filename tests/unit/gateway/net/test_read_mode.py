"""How much a connection reads at once, on a real socket: small chunks directly, large data in parts."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable

import pytest
import uvloop

from svc.gateway.net.io_batch import IoBatch
from svc.gateway.net.read_mode import MAX_DIRECT_READ_BYTES, MAX_DIRECT_REQUEST_BYTES, BufferedRead, DirectRead
from svc.gateway.net.read_scheduler import LIMITED_READ_BYTES, ReadScheduler

BUFFER_BYTES = 4 * MAX_DIRECT_READ_BYTES
LARGE_BYTES = 4 * 1024 * 1024


class RecordingProtocol:
    """Records the sizes of reads and allows direct reads after each small chunk, as a streaming connection does."""

    def __init__(self, *, uses_direct: bool = True) -> None:
        self.buffered_read: BufferedRead | None = None
        self._uses_direct = uses_direct
        self.sizes: list[int] = []
        self.expected_size = 0
        self.lost = asyncio.Event()
        self.ended = False

    def connection_made(self, transport: asyncio.Transport) -> None:
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        assert self.buffered_read is not None
        self.sizes.append(len(data))
        if len(data) > MAX_DIRECT_READ_BYTES:
            self.buffered_read.use_buffered()
        elif self._uses_direct:
            self.buffered_read.use_direct(len(data))

    def has_received_all(self) -> bool:
        return sum(self.sizes) == self.expected_size

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


async def read_sizes(reader: RecordingProtocol, *large_sizes: int) -> list[int]:
    """Return the sizes of reads after three small chunks that arrived separately."""
    loop = asyncio.get_running_loop()
    local, remote = socket.socketpair()
    remote.setblocking(False)
    buffered = BufferedRead(reader, bytearray(BUFFER_BYTES))
    await loop.create_connection(lambda: buffered, sock=local)  # type: ignore[type-var]
    small = [b"%d" % number * 100 for number in range(3)]
    with remote:
        for data in (*small, *[b"x" * size for size in large_sizes]):
            reader.expected_size += len(data)
            await loop.sock_sendall(remote, data)
            await until(reader.has_received_all)
    await asyncio.wait_for(reader.lost.wait(), 10)
    assert reader.ended
    return reader.sizes[3:]


def run(reader: Callable[[], RecordingProtocol], *large_sizes: int) -> list[int]:
    async def main() -> list[int]:
        return await read_sizes(reader(), *large_sizes)

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(main())


def test_buffered_read_large_data_is_read_in_parts_after_first_read() -> None:
    sizes = run(RecordingProtocol, LARGE_BYTES)
    assert max(sizes[1:]) <= BUFFER_BYTES < sizes[0]
    assert sum(sizes) == LARGE_BYTES


def test_buffered_read_small_chunk_after_large_data_is_direct_again() -> None:
    """The first read of the second transfer is larger than the buffer."""
    sizes = run(RecordingProtocol, LARGE_BYTES, 100, LARGE_BYTES)
    assert sum(size > BUFFER_BYTES for size in sizes) <= 2
    assert 100 in sizes


def test_buffered_read_without_use_direct_never_exceeds_buffer() -> None:
    assert max(run(lambda: RecordingProtocol(uses_direct=False), LARGE_BYTES)) <= BUFFER_BYTES


class FakeTransport:
    """Records the protocols that are set on it."""

    def __init__(self, *, reading: bool = True) -> None:
        self.protocols: list[object] = []
        self._reading = reading

    def is_reading(self) -> bool:
        return self._reading

    def is_closing(self) -> bool:
        return False

    def set_protocol(self, protocol: object) -> None:
        self.protocols.append(protocol)


@pytest.mark.parametrize(
    ("size", "reading"),
    [(MAX_DIRECT_READ_BYTES, True), (MAX_DIRECT_READ_BYTES + 1, True), (MAX_DIRECT_READ_BYTES, False)],
)
def test_buffered_read_use_direct_needs_small_chunk_and_active_reading(size: int, reading: bool) -> None:
    transport, reader = FakeTransport(reading=reading), RecordingProtocol()
    buffered = BufferedRead(reader, bytearray(BUFFER_BYTES))
    buffered.connection_made(transport)  # type: ignore[arg-type]
    buffered.use_direct(size)
    buffered.use_direct(size)
    buffered.use_buffered()
    buffered.use_buffered()
    assert transport.protocols == ([reader, buffered] if size <= MAX_DIRECT_READ_BYTES and reading else [])


def test_buffered_read_use_direct_accepts_another_protocol() -> None:
    transport, reader, other = FakeTransport(), RecordingProtocol(), RecordingProtocol()
    buffered = BufferedRead(reader, bytearray(BUFFER_BYTES))
    buffered.connection_made(transport)  # type: ignore[arg-type]
    for protocol in (other, other, None, None, other):
        buffered.use_direct(1, protocol)
    buffered.use_buffered()
    buffered.use_direct(MAX_DIRECT_READ_BYTES + 1, other)
    assert transport.protocols == [other, reader, other, buffered]


class PausableTransport(FakeTransport):
    """Knows whether it reads, and has a socket."""

    closing = False

    def pause_reading(self) -> None:
        self._reading = False

    def resume_reading(self) -> None:
        assert not self.closing
        self._reading = True

    def is_closing(self) -> bool:
        return self.closing

    def get_extra_info(self, name: str) -> object:
        return self if name == "socket" else None

    def fileno(self) -> int:
        return 5


class PolledProtocol(RecordingProtocol):
    """Reads without the loop after each small chunk, as a splice does. It is its own PolledRead."""

    def __init__(self) -> None:
        super().__init__()
        self.is_polling = False

    def data_received(self, data: bytes) -> None:
        assert self.buffered_read is not None
        self.buffered_read.use_polled(len(data), self)

    def start_polling(self, fd: int, on_hangup: Callable[[], None]) -> PolledProtocol:
        assert fd == 5
        assert not self.is_polling
        self.is_polling = True
        self.on_hangup = on_hangup
        return self

    def stop(self) -> None:
        assert self.is_polling
        self.is_polling = False


class TurnLoop:
    """Runs the turns of a scheduler on demand."""

    def __init__(self) -> None:
        self._waiting: list[Callable[[], None]] = []

    def call_soon(self, callback: Callable[[], None]) -> None:
        self._waiting.append(callback)

    def run(self) -> None:
        waiting, self._waiting = self._waiting, []
        for callback in waiting:
            callback()


class Polled:
    """A connection that is polled after a small read."""

    def __init__(self) -> None:
        self.loop, self.transport, self.protocol = TurnLoop(), PausableTransport(), PolledProtocol()
        self.scheduler = ReadScheduler(self.loop)  # type: ignore[arg-type]
        self.buffered = BufferedRead(self.protocol, bytearray(BUFFER_BYTES), self.scheduler)
        self.buffered.connection_made(self.transport)  # type: ignore[arg-type]

    @property
    def readers(self) -> tuple[bool, bool]:
        """Whether the transport reads, and whether the poller does. They must never read both."""
        return self.transport.is_reading(), self.protocol.is_polling


@pytest.mark.parametrize("size", [100, LIMITED_READ_BYTES])
def test_polled_reads_pause_the_transport_and_wait_for_no_turn(size: int) -> None:
    polled = Polled()
    polled.scheduler.is_budget_spent = True
    polled.buffered.buffer_updated(size)
    polled.loop.run()
    assert polled.readers == (False, True)


def test_polled_reads_are_not_disturbed_by_a_turn_from_before() -> None:
    polled = Polled()
    polled.protocol.data_received = lambda data: None  # type: ignore[method-assign]
    polled.buffered.buffer_updated(BUFFER_BYTES)
    assert polled.readers == (False, False)
    assert polled.buffered.return_to_transport()
    polled.buffered.use_polled(100, polled.protocol)
    polled.loop.run()
    assert polled.readers == (False, True)


@pytest.mark.parametrize("budget_spent", [False, True])
def test_pause_stops_polled_reads_until_resume(budget_spent: bool) -> None:
    polled = Polled()
    polled.scheduler.is_budget_spent = budget_spent
    polled.buffered.buffer_updated(LIMITED_READ_BYTES)
    polled.buffered.use_buffered()
    polled.buffered.pause_reading()
    polled.loop.run()
    assert polled.readers == (False, False)
    polled.buffered.resume_reading()
    polled.loop.run()
    assert polled.readers == (True, False)


def test_end_of_response_hangup_and_large_read_stop_polled_reads() -> None:
    polled = Polled()
    polled.buffered.buffer_updated(100)
    assert polled.buffered.return_to_transport()
    assert polled.readers == (True, False)
    polled.buffered.use_direct(100)
    polled.buffered.use_polled(100, polled.protocol)
    polled.protocol.on_hangup()
    assert polled.readers == (True, False)
    polled.buffered.use_polled(100, polled.protocol)
    polled.buffered.on_large_read()
    assert polled.readers == (False, False)
    polled.loop.run()
    assert polled.readers == (True, False)


def test_polled_reads_of_a_closing_transport_stop_without_resuming_it() -> None:
    polled = Polled()
    polled.buffered.buffer_updated(100)
    polled.transport.closing = True
    polled.buffered.stop_polling()
    assert polled.readers == (False, False)


class FakeLoop:
    def call_soon(self, callback: Callable[[], None]) -> None: ...


class RecordingConnection:
    """Records what a client connection has to do."""

    def __init__(self) -> None:
        self.calls: list[str] = []

    def receive(self, data: bytes) -> None:
        self.calls.append("receive")

    def wait_turn(self) -> None:
        self.calls.append("wait_turn")

    def eof_received(self) -> None: ...

    def pause_writing(self) -> None: ...

    def resume_writing(self) -> None: ...

    def connection_lost(self, exc: Exception | None) -> None: ...


@pytest.mark.parametrize(
    ("size", "calls", "is_direct"),
    [
        (MAX_DIRECT_REQUEST_BYTES, [], True),
        (MAX_DIRECT_REQUEST_BYTES + 1, ["wait_turn", "receive"], False),
    ],
)
def test_direct_read_only_large_request_returns_to_buffered(size: int, calls: list[str], is_direct: bool) -> None:
    connection, transport, batch = RecordingConnection(), FakeTransport(), IoBatch(FakeLoop())  # type: ignore[arg-type]
    direct = DirectRead(connection, transport, batch)  # type: ignore[arg-type]
    direct.use_direct(1)
    direct.data_received(b"x" * size)
    assert connection.calls == calls
    batch.handle()
    assert connection.calls == (calls or ["receive"])
    assert transport.protocols == ([direct] if is_direct else [direct, connection])
