"""What a splice counts and reports. `splice_cases.py` has its place between two connections."""

from __future__ import annotations

from typing import Any

from svc.dialects.fastpath.chunk_template import ChunkTemplate
from svc.gateway.net.socket_writer import SocketWriter
from svc.gateway.upstream.splice import Splice

SUFFIX = b'"}\n\n'


class FakeTransport:
    def __init__(self) -> None:
        self.written = b""

    def get_extra_info(self, name: str) -> object:
        return None

    def get_write_buffer_size(self) -> int:
        return 0

    def is_closing(self) -> bool:
        return False

    def write(self, data: bytes) -> None:
        self.written += data


def template(name: bytes) -> ChunkTemplate:
    parts = b'data: {"%b":"' % name, SUFFIX
    return ChunkTemplate(parts, parts)


def chunk(name: bytes, text: bytes) -> bytes:
    event = b'data: {"%b":"%b' % (name, text) + SUFFIX
    return b"%x\r\n%b\r\n" % (len(event), event)


def splice_of(first: ChunkTemplate) -> tuple[Splice, FakeTransport]:
    transport: Any = FakeTransport()
    return Splice(SocketWriter(transport), first), transport


def test_splice_counts_tokens_over_changes_of_its_template() -> None:
    content, thinking = template(b"content"), template(b"thinking")
    splice, _ = splice_of(content)
    expected = 0
    for name, used, size in (
        (b"content", content, 40),
        (b"content", content, 4),  # the same template once more
        (b"thinking", thinking, 400),
        (b"content", content, 8),
        (b"content", template(b"content"), 12),  # an equal one
    ):
        splice.set_template(used)
        data = chunk(name, b"x" * size)
        assert splice.forward(data) == len(data)
        expected += size // 4
        assert splice.forwarded_tokens == expected


def test_splice_reports_how_much_of_a_read_it_has_forwarded() -> None:
    splice, transport = splice_of(template(b"content"))
    one, other = chunk(b"content", b"word"), chunk(b"thinking", b"word")
    assert splice.forward(other) == 0
    assert not splice.take_activity()
    assert splice.forward(one + other) == len(one)
    assert splice.take_activity()
    assert not splice.take_activity()
    assert splice.forward(b"") == 0
    assert not splice.take_activity()
    assert transport.written == one
    assert splice.forwarded_tokens == 1
