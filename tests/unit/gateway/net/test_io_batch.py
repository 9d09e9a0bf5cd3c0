"""Reads are handled in order and sent together, also when one of them fails."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any

import pytest

from svc.gateway.net.io_batch import MAX_READS_PER_BATCH, IoBatch
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
    batch.add(reader, b"request", True)
    batch.add(reader, b"response 1", False)
    batch.add(reader, b"response 2", False)
    assert (events, len(loop.callbacks)) == ([], 1)
    loop.callbacks[0]()
    assert events == ["response 1", "response 2", "request", "sent xxx"]
    loop.callbacks[0]()
    assert len(events) == 4


def test_io_batch_full_is_handled_at_once() -> None:
    (batch, loop), events = make_batch(), []
    for number in range(MAX_READS_PER_BATCH):
        assert events == []
        batch.add(RecordingReader(events), b"%d" % number, True)
    assert events == [str(number) for number in range(MAX_READS_PER_BATCH)]
    batch.add(RecordingReader(events), b"next", True)
    assert len(loop.callbacks) == 2  # the read after a full batch is handled in this turn as well


def test_io_batch_failed_read_aborts_only_its_connection(caplog: pytest.LogCaptureFixture) -> None:
    (batch, _), events = make_batch(), []
    writer, _ = make_writer(events, batch)

    def fail() -> None:
        raise LookupError("internal")

    with caplog.at_level(logging.ERROR):
        batch.add(RecordingReader(events, lambda: writer.write_later(b"a")), b"first", True)
        batch.add(RecordingReader(events, fail), b"failing", True)
        batch.add(RecordingReader(events, lambda: writer.write_later(b"b")), b"last", True)
        batch.handle()
    assert events == ["first", "failing", "abort", "last", "sent ab"]
    assert "LookupError: internal" in caplog.text
    assert not batch.is_handling


def test_io_batch_read_during_a_batch_is_handled_in_the_next() -> None:
    (batch, loop), events = make_batch(), []
    late = RecordingReader(events)
    batch.add(RecordingReader(events, lambda: batch.add(late, b"late", False)), b"first", False)
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

    batch.add(RecordingReader(events, write), b"request", True)
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

    batch.add(RecordingReader(events, write_and_abort), b"request", True)
    batch.handle()
    assert events == ["request"]


async def test_io_batch_of_a_loop_is_handled_before_the_loss_of_a_connection() -> None:
    """A request and the end of the connection arrive in the same turn of the loop."""
    loop = asyncio.get_running_loop()
    events: list[str] = []
    batch = IoBatch(loop)
    batch.add(RecordingReader(events), b"request", True)
    loop.call_soon(events.append, "lost")
    await asyncio.sleep(0)
    assert events == ["request", "lost"]
