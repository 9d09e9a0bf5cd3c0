"""A splice between two connections: which protocol reads, and where a chunk goes. Run by `test_cases.py`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from svc.dialects.fastpath.chunk_template import ChunkTemplate
from svc.gateway.net.io_batch import IoBatch
from svc.gateway.net.read_mode import MAX_DIRECT_READ_BYTES, BufferedRead
from svc.gateway.net.socket_writer import SocketWriter
from svc.gateway.routing.providers import UpstreamOrigin
from svc.gateway.upstream.call import ResponseReceiver, UpstreamCall
from svc.gateway.upstream.connection import UpstreamConnection
from svc.gateway.upstream.splice import Splice
from svc.gateway.upstream.stream_poller import StreamPoller
from svc.wire.http_chunk import SIZE_LINE_COUNT

PREFIX, SUFFIX = b'data: {"delta":{"content":"', b'"}}\n\n'
HEAD = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"
END = b"0\r\n\r\n"


def chunk(text: bytes) -> bytes:
    event = PREFIX + text + SUFFIX
    return b"%x\r\n%b\r\n" % (len(event), event)


class FakeTransport:
    def __init__(self) -> None:
        self.readers: list[object] = []
        self.written: list[bytes] = []
        self.reading = True

    def is_reading(self) -> bool:
        return self.reading

    def pause_reading(self) -> None:
        self.reading = False

    def get_extra_info(self, name: str) -> object:
        return None

    def get_write_buffer_size(self) -> int:
        return 0

    def is_closing(self) -> bool:
        return False

    def set_protocol(self, protocol: object) -> None:
        self.readers.append(protocol)

    def write(self, data: bytes) -> None:
        self.written.append(data)

    def abort(self) -> None:
        self.reading = False


class FakeLoop:
    def call_soon(self, callback: object) -> None: ...


class FakePool:
    def __init__(self) -> None:
        loop: Any = FakeLoop()
        self.io_batch = IoBatch(loop)
        self.stream_poller = StreamPoller(loop)
        self.fast_paths = True
        self.body_parts: list[bytes] = []
        self.parked: list[UpstreamConnection] = []

    def connect(self, origin: UpstreamOrigin, call: UpstreamCall) -> None: ...

    def add(self, connection: UpstreamConnection) -> None: ...

    def release(self, connection: UpstreamConnection) -> None:
        self.parked.append(connection)

    def remove(self, connection: UpstreamConnection) -> None: ...


class FakeReceiver(ResponseReceiver):
    """Enables the splice for each chunk, as an attempt does."""

    def __init__(self, splice: Splice) -> None:
        self.sink = None
        self.splice = splice
        self.call: UpstreamCall | None = None
        self.bodies: list[bytes] = []
        self.ended = False

    def on_resend(self) -> None: ...

    def on_head(self, status: int, headers: Mapping[bytes, bytes]) -> None: ...

    def on_body(self, data: bytes) -> None:
        self.bodies.append(data)
        if self.call is not None:
            self.call.enable_splice(self.splice)

    def on_end(self) -> None:
        self.ended = True

    def on_connection_lost(self, reason: str, *, timed_out: bool, connected: bool) -> None: ...

    def on_internal_error(self) -> None: ...


class Stream:
    def __init__(self, client_parts: tuple[bytes, bytes] = (PREFIX, SUFFIX)) -> None:
        """`client_parts` are prefix and suffix of the client's chunks."""
        self.pool, self.upstream, self.client = FakePool(), FakeTransport(), FakeTransport()
        self.connection = UpstreamConnection(self.pool, UpstreamOrigin("127.0.0.1", 1, uses_tls=False))
        self.buffered = BufferedRead(self.connection, bytearray(4 * MAX_DIRECT_READ_BYTES))
        client: Any = self.client
        self.splice = Splice(SocketWriter(client, self.pool.io_batch), ChunkTemplate((PREFIX, SUFFIX), client_parts))
        upstream: Any = self.upstream
        self.buffered.connection_made(upstream)
        self.receiver = FakeReceiver(self.splice)
        self.call = UpstreamCall(self.receiver, (b"request",))
        self.receiver.call = self.call
        self.connection.start(self.call, reused=False)
        self.feed(HEAD + chunk(b""))

    def feed(self, data: bytes) -> None:
        """Deliver data to the current reader, and handle the batch."""
        self.read(data)
        self.pool.io_batch.handle()

    def read(self, data: bytes) -> None:
        """Deliver data to the current reader."""
        reader: Any = self.upstream.readers[-1] if self.upstream.readers else self.connection
        reader.data_received(data)


def test_splice_forwarded_small_chunk_reads_directly() -> None:
    stream = Stream()
    assert stream.upstream.readers == []
    stream.feed(chunk(b"one"))
    assert stream.upstream.readers == [stream.splice]
    stream.feed(chunk(b"two"))
    assert stream.client.written == [chunk(b"one"), chunk(b"two")]
    assert len(stream.receiver.bodies) == 1


def test_splice_chunks_for_another_dialect_are_converted() -> None:
    stream = Stream((b'data: {"text":"', b'"}\n\n'))
    stream.feed(chunk(b"one"))
    assert stream.upstream.readers == [stream.splice]
    stream.feed(chunk(b"two") + chunk("a \\n好".encode()))
    converted = [b'data: {"text":"%b"}\n\n' % text for text in (b"one", b"two", "a \\n好".encode())]
    framed = [b"%x\r\n%b\r\n" % (len(event), event) for event in converted]
    assert stream.client.written == [framed[0], framed[1] + framed[2]]
    assert len(stream.receiver.bodies) == 1


def test_splice_chunk_that_is_too_large_for_the_client_is_parsed() -> None:
    stream = Stream((b"x" * SIZE_LINE_COUNT, SUFFIX))
    stream.feed(chunk(b"one"))
    assert stream.client.written == []
    assert stream.receiver.bodies[1:] == [PREFIX + b"one" + SUFFIX]


@pytest.mark.parametrize("text", ["好".encode(), b'a \\"quote\\"', b"\\u00e9" * 20])
def test_splice_text_with_escapes_is_forwarded(text: bytes) -> None:
    stream = Stream()
    stream.feed(chunk(text))
    stream.feed(chunk(b"plain") + chunk(text))
    assert stream.client.written == [chunk(text), chunk(b"plain") + chunk(text)]
    assert len(stream.receiver.bodies) == 1


@pytest.mark.parametrize("text", [b"\\ud83d", b"\xff", b"\\x", b'", "other": "'])
def test_splice_text_that_may_be_invalid_is_parsed_and_still_read_directly(text: bytes) -> None:
    stream = Stream()
    stream.feed(chunk(text))
    stream.feed(chunk(b"plain") + chunk(text))
    assert stream.upstream.readers == [stream.splice]
    assert stream.client.written == [chunk(b"plain")]
    assert stream.receiver.bodies[1:] == [PREFIX + text + SUFFIX] * 2


def test_splice_end_of_response_stops_reading() -> None:
    stream = Stream()
    stream.feed(chunk(b"one"))
    stream.feed(chunk(b"two") + END)
    assert stream.receiver.ended
    assert stream.pool.parked == [stream.connection]
    assert not stream.splice.is_enabled
    assert stream.upstream.readers[-1] is stream.connection
    assert stream.client.written == [chunk(b"one"), chunk(b"two")]


def test_splice_data_after_cancel_is_not_forwarded() -> None:
    stream = Stream()
    stream.feed(chunk(b"one"))
    stream.call.cancel()
    stream.feed(chunk(b"two"))
    assert stream.client.written == [chunk(b"one")]
    assert not stream.upstream.reading


def test_splice_large_data_is_forwarded_and_next_is_buffered() -> None:
    stream = Stream()
    stream.feed(chunk(b"one"))
    data = chunk(b"word") * (MAX_DIRECT_READ_BYTES // 32)
    assert len(data) > MAX_DIRECT_READ_BYTES
    stream.feed(data)
    assert stream.client.written[-1] == data
    assert stream.upstream.readers == [stream.splice, stream.buffered]
    stream.feed(chunk(b"small again"))
    assert stream.upstream.readers[-1] is stream.splice


def test_splice_paused_client_uses_buffered_read() -> None:
    stream = Stream()
    stream.feed(chunk(b"one"))
    stream.call.pause()
    assert stream.upstream.readers == [stream.splice, stream.buffered]
    stream.feed(chunk(b"came before"))
    assert stream.client.written[-1] == chunk(b"came before")
    assert stream.upstream.readers[-1] is stream.buffered


def test_idle_connection_with_an_unhandled_read_is_not_reused() -> None:
    """Otherwise an unrequested response would be taken for that of the next request."""
    stream = Stream()
    stream.feed(END)
    assert stream.pool.parked == [stream.connection]
    assert stream.connection.is_usable
    stream.read(HEAD)
    assert not stream.connection.is_usable
    stream.pool.io_batch.handle()
    assert not stream.connection.is_usable
    assert not stream.upstream.reading


def test_last_data_before_the_end_of_the_connection_is_handled() -> None:
    stream = Stream()
    stream.feed(chunk(b"one")[:-1])
    stream.read(b"\n" + END)
    assert not stream.receiver.ended
    stream.connection.eof_received()
    assert stream.receiver.ended


def test_large_read_does_not_overtake_an_unhandled_one() -> None:
    """The loop can read twice from a connection in one turn, if very many connections have data."""
    stream = Stream()
    text = b"x" * (2 * MAX_DIRECT_READ_BYTES)
    stream.feed(chunk(b"one")[:-1])
    stream.read(b"\n" + chunk(b"two"))
    stream.read(chunk(text))
    stream.pool.io_batch.handle()
    received = b"".join([*stream.receiver.bodies, *stream.client.written])
    assert received.index(b"two") < received.index(text)
