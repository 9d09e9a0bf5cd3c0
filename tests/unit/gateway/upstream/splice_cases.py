"""A relay between two connections: who reads, and where a piece goes. Run by `test_relay.py`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from svc.dialects.fastpath.chunk_template import ChunkTemplate
from svc.gateway.net.read_mode import MAX_DIRECT_READ_BYTES, BufferedRead
from svc.gateway.net.socket_writer import SocketWriter
from svc.gateway.routing.providers import UpstreamOrigin
from svc.gateway.upstream.call import ResponseReceiver, UpstreamCall
from svc.gateway.upstream.connection import UpstreamConnection
from svc.gateway.upstream.splice import Splice

PREFIX, SUFFIX = b'data: {"delta":{"content":"', b'"}}\n\n'
HEAD = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"
END = b"0\r\n\r\n"


def chunk(text: bytes) -> bytes:
    event = PREFIX + text + SUFFIX
    return b"%x\r\n%b\r\n" % (len(event), event)


class Wire:
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


class Pool:
    def __init__(self) -> None:
        self.fast_paths = True
        self.body_parts: list[bytes] = []
        self.parked: list[UpstreamConnection] = []

    def connect(self, origin: UpstreamOrigin, call: UpstreamCall) -> None: ...

    def add(self, connection: UpstreamConnection) -> None: ...

    def release(self, connection: UpstreamConnection) -> None:
        self.parked.append(connection)

    def remove(self, connection: UpstreamConnection) -> None: ...


class Taker(ResponseReceiver):
    """Lays the relay for each piece, as an attempt does."""

    def __init__(self, relay: Splice) -> None:
        self.sink = None
        self.relay = relay
        self.call: UpstreamCall | None = None
        self.bodies: list[bytes] = []
        self.ended = False

    def on_resend(self) -> None: ...

    def on_head(self, status: int, headers: Mapping[bytes, bytes]) -> None: ...

    def on_body(self, data: bytes) -> None:
        self.bodies.append(data)
        if self.call is not None:
            self.call.enable_splice(self.relay)

    def on_end(self) -> None:
        self.ended = True

    def on_connection_lost(self, reason: str, *, timed_out: bool, connected: bool) -> None: ...

    def on_internal_error(self) -> None: ...


class Stream:
    def __init__(self) -> None:
        self.pool, self.below, self.above = Pool(), Wire(), Wire()
        self.connection = UpstreamConnection(self.pool, UpstreamOrigin("127.0.0.1", 1, tls=False))
        self.bounded = BufferedRead(self.connection, bytearray(4 * MAX_DIRECT_READ_BYTES))
        above: Any = self.above
        self.relay = Splice(SocketWriter(above))
        frame = (PREFIX, SUFFIX)
        self.relay.set_template(ChunkTemplate(frame, frame))
        below: Any = self.below
        self.bounded.connection_made(below)
        self.taker = Taker(self.relay)
        self.call = UpstreamCall(self.taker, (b"asked",))
        self.taker.call = self.call
        self.connection.start(self.call, reused=False)
        self.comes(HEAD + chunk(b""))

    def comes(self, data: bytes) -> None:
        """To whoever reads."""
        reader: Any = self.below.readers[-1] if self.below.readers else self.connection
        reader.data_received(data)


def test_who_has_carried_a_small_piece_reads() -> None:
    stream = Stream()
    assert stream.below.readers == []
    stream.comes(chunk(b"one"))
    assert stream.below.readers == [stream.relay]
    stream.comes(chunk(b"two"))
    assert stream.above.written == [chunk(b"one"), chunk(b"two")]
    assert len(stream.taker.bodies) == 1


@pytest.mark.parametrize("text", ["好".encode(), b'a \\"quote\\"'])
def test_what_it_does_not_carry_goes_the_long_way_and_is_read_as_freely(text: bytes) -> None:
    stream = Stream()
    stream.comes(chunk(text))
    stream.comes(chunk(b"plain") + chunk(text))
    assert stream.below.readers == [stream.relay]
    assert stream.above.written == [chunk(b"plain")]
    assert stream.taker.bodies[1:] == [PREFIX + text + SUFFIX] * 2


def test_after_the_end_it_reads_no_more() -> None:
    stream = Stream()
    stream.comes(chunk(b"one"))
    stream.comes(chunk(b"two") + END)
    assert stream.taker.ended
    assert stream.pool.parked == [stream.connection]
    assert not stream.relay.is_enabled
    assert stream.below.readers[-1] is stream.connection
    assert stream.above.written == [chunk(b"one"), chunk(b"two")]


def test_what_comes_behind_the_end_of_a_call_is_carried_nowhere() -> None:
    stream = Stream()
    stream.comes(chunk(b"one"))
    stream.call.cancel()
    stream.comes(chunk(b"two"))
    assert stream.above.written == [chunk(b"one")]
    assert not stream.below.reading


def test_a_large_one_is_carried_and_the_next_are_read_in_parts() -> None:
    stream = Stream()
    stream.comes(chunk(b"one"))
    flood = chunk(b"word") * (MAX_DIRECT_READ_BYTES // 32)
    assert len(flood) > MAX_DIRECT_READ_BYTES
    stream.comes(flood)
    assert stream.above.written[-1] == flood
    assert stream.below.readers == [stream.relay, stream.bounded]
    stream.comes(chunk(b"small again"))
    assert stream.below.readers[-1] is stream.relay


def test_while_the_client_does_not_read_it_reads_in_parts() -> None:
    stream = Stream()
    stream.comes(chunk(b"one"))
    stream.call.pause()
    assert stream.below.readers == [stream.relay, stream.bounded]
    stream.comes(chunk(b"came before"))
    assert stream.above.written[-1] == chunk(b"came before")
    assert stream.below.readers[-1] is stream.bounded
