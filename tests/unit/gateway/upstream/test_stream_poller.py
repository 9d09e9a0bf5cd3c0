"""Streams between real sockets, through the C module. The tests poll it themselves, without an event loop."""

from __future__ import annotations

import gc
import socket
import sys
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from svc.dialects.fastpath.chunk_template import ChunkTemplate
from svc.gateway.net.read_mode import MAX_DIRECT_READ_BYTES
from svc.gateway.upstream import stream_poller
from svc.gateway.upstream.chunk_converter import PythonChunkConverter, create_converter
from svc.gateway.upstream.pool import READ_BUFFER_BYTES
from svc.gateway.upstream.stream_poller import PolledStream, StreamPoller

PREFIX, SUFFIX = b'data: {"content":"', b'"}\n\n'
SAME = ChunkTemplate((PREFIX, SUFFIX), (PREFIX, SUFFIX))
OTHER = ChunkTemplate((PREFIX, SUFFIX), (b'data: {"text":"', b'"}\n\n'))
MAX_STREAMS_PER_POLL = 32

pytestmark = pytest.mark.skipif(stream_poller._COMPILED_POLLER is None, reason="it is not compiled")


def framed(event: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(event), event)


def chunk(text: bytes) -> bytes:
    return framed(PREFIX + text + SUFFIX)


class FakeLoop:
    """Gives the tests the callback of the poller."""

    poll: Callable[[], None]

    def add_reader(self, fd: int, callback: Callable[[], None]) -> None:
        assert fd >= 0
        self.poll = callback

    def remove_reader(self, fd: int) -> None:
        assert fd >= 0
        self.poll = _do_nothing


def _do_nothing() -> None: ...


class Stream:
    """Both ends of both connections, and what the callbacks got."""

    def __init__(self, poller: StreamPoller, template: ChunkTemplate = SAME) -> None:
        self.provider, self._provider_side = socket.socketpair()
        self.client, self._client_side = socket.socketpair()
        self._provider_side.setblocking(False)
        self._client_side.setblocking(False)
        self.client.setblocking(False)
        self.converter = create_converter(template)
        self.data: list[bytes] = []
        self.unsent: list[bytes] = []
        self.hangups = 0
        self.after_data: Callable[[], None] = _do_nothing
        polled = poller.start(
            self._provider_side.fileno(), on_data=self._on_data, on_unsent=self.unsent.append, on_hangup=self._on_hangup
        )
        assert polled is not None
        self.polled: PolledStream = polled
        self.enable()

    def enable(self) -> None:
        self.polled.enable_forwarding(self.converter, self._client_side.fileno())

    def _on_data(self, data: bytes) -> None:
        self.data.append(data)
        self.after_data()

    def _on_hangup(self) -> None:
        self.hangups += 1

    def received(self) -> bytes:
        """Return what the client has received."""
        received = b""
        while True:
            try:
                data = self.client.recv(1 << 20)
            except BlockingIOError:
                return received
            if not data:
                return received
            received += data

    def unread(self) -> bytes:
        """Return what the gateway has not read from the provider."""
        try:
            return self._provider_side.recv(1 << 20)
        except BlockingIOError:
            return b""

    def fill(self) -> int:
        """Send to the client until its socket is full. Return the number of bytes."""
        sent = 0
        while True:
            try:
                sent += self._client_side.send(b"x" * 65536)
            except BlockingIOError:
                return sent

    def close(self) -> None:
        self.polled.stop()
        for end in (self.provider, self._provider_side, self.client, self._client_side):
            end.close()


class Poller:
    def __init__(self) -> None:
        self.loop = FakeLoop()
        self.poller = StreamPoller(self.loop)  # type: ignore[arg-type]
        self.streams: list[Stream] = []

    def stream(self, template: ChunkTemplate = SAME) -> Stream:
        stream = Stream(self.poller, template)
        self.streams.append(stream)
        return stream

    def poll(self) -> None:
        self.loop.poll()


@pytest.fixture
def poller() -> Iterator[Poller]:
    poller = Poller()
    yield poller
    for stream in poller.streams:
        stream.close()
    poller.poller.close()


def test_module_is_used_where_the_file_exists() -> None:
    """Otherwise an error of its import would skip all other tests."""
    folder = Path(stream_poller.__file__).parent
    assert (stream_poller._COMPILED_POLLER is not None) == bool(list(folder.glob("_stream_poller.*.so")))


@pytest.mark.parametrize("template", [SAME, OTHER])
def test_chunks_that_match_go_to_the_client_without_a_callback(poller: Poller, template: ChunkTemplate) -> None:
    stream, python = poller.stream(template), PythonChunkConverter(template)
    for texts in ([b"one"], [b""], [b"a", "好 \\n".encode(), b"x" * 500]):
        data = b"".join(map(chunk, texts))
        stream.provider.sendall(data)
        poller.poll()
        if template is SAME or b"" not in texts:
            assert stream.received() == python.convert(data)
            assert stream.data == []
            assert stream.polled.take_activity()
        else:  # another dialect may send nothing for an empty text
            assert stream.data == [data]
            assert not stream.polled.take_activity()
            stream.data.clear()
            stream.enable()
    assert not stream.polled.take_activity()
    assert stream.converter.tokens == python.tokens
    assert stream.unsent == []


@pytest.mark.parametrize(
    "rest", [framed(b'data: {"done":true}\n\n'), chunk(b"\xff"), chunk(b"\\x"), chunk(b"cut off")[:-3], b"zz\r\n", b"0"]
)
def test_a_read_that_does_not_match_as_a_whole_is_not_forwarded(poller: Poller, rest: bytes) -> None:
    stream = poller.stream()
    for data in (chunk(b"word") + rest, chunk(b"word")):  # the second one matches, but forwarding has ended
        stream.provider.sendall(data)
        poller.poll()
        assert stream.data.pop() == data
    stream.enable()
    stream.provider.sendall(chunk(b"word"))
    poller.poll()
    assert stream.received() == chunk(b"word")
    assert stream.data == []
    assert stream.converter.tokens == 1


def test_disable_forwarding_passes_all_reads_to_the_callback(poller: Poller) -> None:
    stream = poller.stream()
    stream.polled.disable_forwarding()
    stream.polled.disable_forwarding()
    stream.provider.sendall(chunk(b"word"))
    poller.poll()
    assert stream.data == [chunk(b"word")]
    assert stream.received() == b""


@pytest.mark.parametrize("count", [1, 50])
def test_full_client_socket_gets_the_rest_through_the_callback(poller: Poller, count: int) -> None:
    stream = poller.stream()
    filled = stream.fill()
    data = chunk(b"w" * 60) * count
    stream.provider.sendall(data)
    poller.poll()
    assert stream.unsent == [data]
    stream.provider.sendall(chunk(b"next"))  # it must not overtake the unsent data
    poller.poll()
    assert stream.data == [chunk(b"next")]
    assert stream.received() == b"x" * filled
    assert stream.converter.tokens == 15 * count


def test_partial_send_passes_on_what_was_not_sent(poller: Poller) -> None:
    """A socket pair accepts a message as a whole, and TCP a part of it."""
    listener = socket.create_server(("127.0.0.1", 0))
    client = socket.create_connection(listener.getsockname())
    gateway, _ = listener.accept()
    gateway.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
    gateway.setblocking(False)
    stream = poller.stream()
    sent = received = b""
    with listener, client, gateway:
        for number in range(100_000):
            stream.polled.enable_forwarding(stream.converter, gateway.fileno())
            data = chunk(b"%d " % number + b"w" * 1500) * 4
            stream.provider.sendall(data)
            poller.poll()
            assert stream.data == []
            sent += data
            if stream.unsent and len(stream.unsent[0]) < len(data):
                break
            if stream.unsent:  # it was full, so that all is unsent
                sent = sent[: -len(stream.unsent.pop())]
                received += client.recv(8192)
        (unsent,) = stream.unsent
        gateway.shutdown(socket.SHUT_WR)
        while data := client.recv(1 << 20):
            received += data
    assert sent.endswith(unsent)
    assert received == sent[: -len(unsent)]


def test_disconnected_client_gets_nothing_and_the_callback_all(poller: Poller) -> None:
    stream = poller.stream()
    stream.client.close()
    stream.provider.sendall(chunk(b"word"))
    poller.poll()
    assert stream.unsent == [chunk(b"word")]
    assert stream.data == []


def test_hangup_is_reported_before_the_last_data_is_read(poller: Poller) -> None:
    stream = poller.stream()
    stream.provider.sendall(chunk(b"last"))
    stream.provider.close()
    poller.poll()
    assert stream.hangups == 1
    assert stream.data == []
    assert stream.received() == b""
    stream.polled.stop()
    poller.poll()
    assert stream.hangups == 1
    assert stream.unread() == chunk(b"last")


def test_large_reads_reach_the_callback_in_parts(poller: Poller) -> None:
    stream = poller.stream()
    data = b"".join(chunk(b"%d" % number * 20) for number in range(2000))
    assert len(data) > 2 * READ_BUFFER_BYTES
    stream.provider.sendall(data)
    for _ in range(10):
        poller.poll()
    assert b"".join(stream.data) == data
    assert max(map(len, stream.data)) == READ_BUFFER_BYTES
    assert stream.received() == b""


@pytest.mark.parametrize("excess", [0, 1])
def test_reads_up_to_the_limit_are_forwarded(poller: Poller, excess: int) -> None:
    stream = poller.stream()
    data = chunk(b"w" * 1500) * 5
    data += chunk(b"w" * (MAX_DIRECT_READ_BYTES + excess - len(data) - len(chunk(b"")) - 1))
    assert len(data) == MAX_DIRECT_READ_BYTES + excess
    stream.provider.sendall(data)
    poller.poll()
    assert stream.received() == (b"" if excess else data)
    assert stream.data == ([data] if excess else [])


def test_translation_that_exceeds_the_buffer_is_left_to_the_callback(poller: Poller) -> None:
    """Each chunk becomes one of 1,030 bytes. The buffer has 16 KiB, and must have room for the largest chunk."""
    template = ChunkTemplate((PREFIX, SUFFIX), (b'data: {"text":"' + b"x" * 1000, b'"}\n\n'))
    stream = poller.stream(template)
    for count in (8, 14, 15):
        stream.enable()
        data = chunk(b"word") * count
        stream.provider.sendall(data)
        poller.poll()
        received, parsed = stream.received(), list(stream.data)
        expected = PythonChunkConverter(template).convert(data)
        assert (received, parsed) in ((expected, []), (b"", [data]))
        assert bool(parsed) == (count == 15)


def test_streams_beyond_the_limit_of_a_poll_follow_in_the_next(poller: Poller) -> None:
    streams = [poller.stream() for _ in range(MAX_STREAMS_PER_POLL + 5)]
    for stream in streams:
        stream.provider.sendall(chunk(b"word"))
    poller.poll()
    assert sum(stream.received() == chunk(b"word") for stream in streams) == MAX_STREAMS_PER_POLL
    poller.poll()
    assert sum(stream.polled.take_activity() for stream in streams) == len(streams)


def test_stop_within_a_callback_suppresses_all_further_callbacks(poller: Poller) -> None:
    """The other stream has data as well, whose event the poller has already fetched."""
    one, other = poller.stream(), poller.stream()

    def stop_both() -> None:
        one.polled.stop()
        other.polled.stop()
        other.polled.stop()

    for stream in (one, other):
        stream.after_data = stop_both
        stream.provider.sendall(b"not a chunk")
    poller.poll()
    poller.poll()
    assert sorted([one.data, other.data]) == [[], [b"not a chunk"]]
    for stream in (one, other):
        stream.enable()
        stream.provider.sendall(chunk(b"word"))
    poller.poll()
    assert len(one.data + other.data) == 1
    assert one.received() == other.received() == b""


def test_closed_descriptor_that_is_reused_reports_to_its_new_stream_only(poller: Poller) -> None:
    """`connection_lost` stops a stream before its descriptor is closed. This is what happens otherwise."""
    old = poller.stream()
    fd = old._provider_side.fileno()
    old._provider_side.close()
    spare, side = socket.socketpair()
    with spare, side:
        side.setblocking(False)
        assert side.fileno() == fd or spare.fileno() == fd
        reused, peer = (side, spare) if side.fileno() == fd else (spare, side)
        received: list[bytes] = []
        polled = poller.poller.start(
            reused.fileno(), on_data=received.append, on_unsent=received.append, on_hangup=_do_nothing
        )
        assert polled is not None
        peer.sendall(b"data")
        poller.poll()
        assert received == [b"data"]
        assert old.data == []
        polled.stop()


def test_poll_and_close_within_a_callback_are_harmless(poller: Poller) -> None:
    stream, other = poller.stream(), poller.stream()
    stream.after_data = poller.poll
    stream.provider.sendall(b"one")
    poller.poll()
    for one in (stream, other):
        one.after_data = poller.poller.close
        one.provider.sendall(b"two")
    poller.poll()
    poller.poll()
    assert sorted([stream.data, other.data]) in ([[], [b"one", b"two"]], [[b"one"], [b"two"]])


@pytest.fixture
def reported(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """Return the exceptions of callbacks."""
    reported: list[object] = []
    monkeypatch.setattr(sys, "unraisablehook", lambda unraisable: reported.append(unraisable.exc_value))
    return reported


def test_exception_in_on_data_ends_the_connection_to_the_provider_only(poller: Poller, reported: list[object]) -> None:
    """Data is lost. Later data must not follow it as if nothing were missing."""
    failing, other = poller.stream(), poller.stream()
    error = ValueError("a bug")

    def fail() -> None:
        raise error

    failing.after_data = fail
    for stream in (failing, other):
        stream.provider.sendall(b"not a chunk")
    poller.poll()
    assert reported == [error]
    assert (failing.hangups, other.hangups) == (1, 0)
    assert other.data == [b"not a chunk"]
    assert failing.unread() == b""
    assert failing.provider.recv(1) == b""
    with pytest.raises(BlockingIOError):
        failing.client.recv(1)


def test_exception_in_on_unsent_ends_both_connections(poller: Poller, reported: list[object]) -> None:
    stream = poller.stream()
    error = ValueError("a bug")

    def fail(data: bytes) -> None:
        raise error

    stream.polled.stop()
    polled = poller.poller.start(
        stream._provider_side.fileno(), on_data=stream._on_data, on_unsent=fail, on_hangup=stream._on_hangup
    )
    assert polled is not None
    stream.polled = polled
    stream.enable()
    filled = stream.fill()
    stream.provider.sendall(chunk(b"word"))
    poller.poll()
    assert reported == [error]
    assert stream.hangups == 1
    assert stream.provider.recv(1) == b""
    assert len(stream.received()) == filled
    assert stream.client.recv(1) == b""


def test_no_resources_leave_the_reads_to_the_event_loop(poller: Poller, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*arguments: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(FakeLoop, "add_reader", fail)
    one, other = socket.socketpair()
    with one, other:
        for _ in range(2):
            started = poller.poller.start(one.fileno(), on_data=print, on_unsent=print, on_hangup=_do_nothing)
            assert started is None
        monkeypatch.undo()
        started = poller.poller.start(one.fileno(), on_data=print, on_unsent=print, on_hangup=_do_nothing)
        assert started is not None
        assert poller.poller.start(9999, on_data=print, on_unsent=print, on_hangup=_do_nothing) is None
        started.stop()


def test_stop_releases_the_callbacks(poller: Poller) -> None:
    stream = Stream(poller.poller)
    reference = weakref.ref(stream)
    stream.close()
    gc.disable()
    try:
        del stream
        assert reference() is None
    finally:
        gc.enable()


def test_errors_of_wrong_calls(poller: Poller) -> None:
    stream = poller.stream()
    with pytest.raises(TypeError):
        stream.polled.enable_forwarding(PythonChunkConverter(SAME), 1)
    with pytest.raises(TypeError):
        type(stream.polled)()
