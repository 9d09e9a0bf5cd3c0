"""Reads are handled in order and step by step, and sent together, also when one of them fails."""

from __future__ import annotations

import asyncio
import functools
import logging
from collections.abc import Callable
from typing import Any

import pytest

from svc.gateway.net.io_batch import MAX_READS_PER_BATCH, IoBatch
from svc.gateway.net.read_mode import MAX_DIRECT_REQUEST_BYTES, DirectRead
from svc.gateway.net.socket_writer import SocketWriter


class FakeLoop:
    """Records the callbacks of `call_soon`."""

    def __init__(self) -> None:
        self.callbacks: list[Callable[[], None]] = []

    def call_soon(self, callback: Callable[[], None]) -> None:
        self.callbacks.append(callback)


class RecordingReader:
    """Adds its reads and its abort to a shared list."""

    def __init__(self, events: list[str], on_read: Callable[[], None] = lambda: None) -> None:
        self.events = events
        self.on_read = on_read

    def handle_read(self, data: bytes) -> None:
        self.events.append(data.decode())
        self.on_read()

    def abort(self) -> None:
        self.events.append("abort")


class RecordingWork:
    """Adds its steps to a shared list. The second step fails if `fails` is true."""

    def __init__(self, events: list[str], name: str, batch: IoBatch, *, fails: bool = False) -> None:
        self.events = events
        self.name = name
        self.batch = batch
        self.fails = fails
        self.count = 0

    def run_step(self) -> None:
        self.count += 1
        self.events.append(f"{self.name} {self.count}")
        if self.fails and self.count == 2:
            raise LookupError("internal")
        if self.count < 3:
            self.batch.schedule_step(self)


class RecordingTransport:
    """A transport without a socket, which adds its writes to a shared list."""

    def __init__(self, events: list[str]) -> None:
        self.events = events
        self.closing = False

    def get_extra_info(self, name: str) -> object:
        return None

    def write(self, data: bytes) -> None:
        self.events.append(f"sent {data.decode()}")

    def writelines(self, parts: list[bytes]) -> None:
        self.write(b"".join(parts))

    def get_write_buffer_size(self) -> int:
        return 0

    def is_closing(self) -> bool:
        return self.closing


def make_batch() -> tuple[IoBatch, FakeLoop]:
    loop: Any = FakeLoop()
    return IoBatch(loop), loop


def make_writer(events: list[str], batch: IoBatch) -> tuple[SocketWriter, RecordingTransport]:
    transport: Any = RecordingTransport(events)
    return SocketWriter(transport, batch), transport


def test_io_batch_handles_responses_then_requests_and_sends_last() -> None:
    (batch, loop), events = make_batch(), []
    writer, _ = make_writer(events, batch)
    reader = RecordingReader(events, lambda: writer.write_later(b"x"))
    batch.add(reader, b"request", is_request=True)
    batch.add(reader, b"response 1", is_request=False)
    batch.add(reader, b"response 2", is_request=False)
    assert (events, len(loop.callbacks)) == ([], 1)
    loop.callbacks[0]()
    assert events == ["response 1", "response 2", "request", "sent xxx"]
    loop.callbacks[0]()
    assert len(events) == 4


def test_io_batch_full_is_handled_at_once() -> None:
    (batch, loop), events = make_batch(), []
    for number in range(MAX_READS_PER_BATCH):
        assert events == []
        batch.add(RecordingReader(events), b"%d" % number, is_request=True)
    assert events == [str(number) for number in range(MAX_READS_PER_BATCH)]
    batch.add(RecordingReader(events), b"next", is_request=True)
    assert len(loop.callbacks) == 2  # the read after a full batch is handled in this turn as well


def test_io_batch_failed_read_aborts_only_its_connection(caplog: pytest.LogCaptureFixture) -> None:
    (batch, _), events = make_batch(), []
    writer, _ = make_writer(events, batch)

    def fail() -> None:
        raise LookupError("internal")

    with caplog.at_level(logging.ERROR):
        batch.add(RecordingReader(events, lambda: writer.write_later(b"a")), b"first", is_request=True)
        batch.add(RecordingReader(events, fail), b"failing", is_request=True)
        batch.add(RecordingReader(events, lambda: writer.write_later(b"b")), b"last", is_request=True)
        batch.handle()
    assert events == ["first", "failing", "abort", "last", "sent ab"]
    assert "LookupError: internal" in caplog.text
    assert not batch.is_handling


def test_io_batch_runs_each_step_of_all_work_before_the_next() -> None:
    (batch, _), events = make_batch(), []
    writer, _ = make_writer(events, batch)
    for name in ("a", "b"):
        work = RecordingWork(events, name, batch)
        batch.add(RecordingReader(events, functools.partial(batch.schedule_step, work)), name.encode(), is_request=True)
    batch.add(RecordingReader(events, lambda: writer.write_later(b"x")), b"c", is_request=True)
    batch.handle()
    assert events == ["a", "b", "c", "a 1", "b 1", "a 2", "b 2", "a 3", "b 3", "sent x"]


def test_io_batch_step_without_a_batch_runs_now() -> None:
    (batch, loop), events = make_batch(), []
    batch.schedule_step(RecordingWork(events, "a", batch))
    assert (events, loop.callbacks) == (["a 1", "a 2", "a 3"], [])


def test_io_batch_failed_step_affects_no_other_work(caplog: pytest.LogCaptureFixture) -> None:
    (batch, _), events = make_batch(), []
    writer, _ = make_writer(events, batch)

    def start() -> None:
        writer.write_later(b"x")
        batch.schedule_step(RecordingWork(events, "bad", batch, fails=True))
        batch.schedule_step(RecordingWork(events, "good", batch))

    batch.add(RecordingReader(events, start), b"read", is_request=True)
    with caplog.at_level(logging.ERROR):
        batch.handle()
    assert events == ["read", "bad 1", "good 1", "bad 2", "good 2", "good 3", "sent x"]
    assert "LookupError: internal" in caplog.text


def test_io_batch_failed_abort_or_write_affects_no_other_connection(caplog: pytest.LogCaptureFixture) -> None:
    (batch, _), events = make_batch(), []
    writer, _ = make_writer(events, batch)
    broken_writer, broken_transport = make_writer(events, batch)

    def fail() -> None:
        broken_writer.write_later(b"y")
        raise LookupError("internal")

    def fail_to_write(data: bytes) -> None:
        raise RuntimeError("broken transport")

    reader = RecordingReader(events, fail)
    reader.abort = reader.on_read  # type: ignore[method-assign]
    broken_transport.write = fail_to_write  # type: ignore[method-assign]
    batch.add(reader, b"failing", is_request=True)
    batch.add(RecordingReader(events, lambda: writer.write_later(b"x")), b"next", is_request=True)
    with caplog.at_level(logging.ERROR):
        batch.handle()
    assert (events, batch.is_handling, batch.writers) == (["failing", "next", "sent x"], False, [])
    for message in ("error while handling a read", "error while closing a connection", "error while sending"):
        assert message in caplog.text


def test_direct_read_large_request_does_not_overtake_a_small_one() -> None:
    """The loop can read twice from a connection in one turn."""
    (batch, _), events = make_batch(), []

    class Protocol:
        def receive(self, data: bytes) -> None:
            events.append(str(len(data)))

        def wait_turn(self) -> None: ...

    protocol: Any = Protocol()
    transport: Any = RecordingTransport(events)
    reader = DirectRead(protocol, transport, batch)
    reader.data_received(b"small")
    reader.data_received(bytes(MAX_DIRECT_REQUEST_BYTES + 1))
    assert events == ["5", str(MAX_DIRECT_REQUEST_BYTES + 1)]


def test_io_batch_read_during_a_batch_is_handled_in_the_next() -> None:
    (batch, loop), events = make_batch(), []
    late = RecordingReader(events)
    batch.add(RecordingReader(events, lambda: batch.add(late, b"late", is_request=False)), b"first", is_request=False)
    loop.callbacks[0]()
    assert events == ["first"]
    loop.callbacks[1]()
    assert events == ["first", "late"]


@pytest.mark.parametrize(
    ("then", "expected"),
    [
        (lambda writer: writer.write(b" now"), ["sent later now"]),
        (lambda writer: writer.writelines([b" and", b" lines"]), ["sent later", "sent  and lines"]),
        (lambda writer: writer.mark_dirty(), ["sent later"]),
        (lambda writer: writer.flush(), ["sent later"]),
    ],
)
def test_write_later_precedes_what_follows(then: Callable[[SocketWriter], None], expected: list[str]) -> None:
    (batch, _), events = make_batch(), []
    writer, _ = make_writer(events, batch)

    def write() -> None:
        events.clear()
        writer.write_later(b"later")
        assert events == []
        then(writer)
        assert events == expected

    batch.add(RecordingReader(events, write), b"request", is_request=True)
    batch.handle()
    assert events == expected


def test_write_later_without_a_batch_sends_now() -> None:
    (batch, _), events = make_batch(), []
    for writer in (make_writer(events, batch)[0], SocketWriter(RecordingTransport(events))):  # type: ignore[arg-type]
        writer.write_later(b"x")
    assert events == ["sent x"] * 2


def test_write_later_to_a_connection_that_is_aborted_is_dropped() -> None:
    (batch, _), events = make_batch(), []
    writer, transport = make_writer(events, batch)

    def write_and_abort() -> None:
        writer.write_later(b"x")
        transport.closing = True

    batch.add(RecordingReader(events, write_and_abort), b"request", is_request=True)
    batch.handle()
    assert events == ["request"]


async def test_io_batch_of_a_loop_is_handled_before_the_loss_of_a_connection() -> None:
    """A request and the end of the connection arrive in the same turn of the loop."""
    loop = asyncio.get_running_loop()
    events: list[str] = []
    batch = IoBatch(loop)
    batch.add(RecordingReader(events), b"request", is_request=True)
    loop.call_soon(events.append, "lost")
    await asyncio.sleep(0)
    assert events == ["request", "lost"]
