"""Server-sent events out of bytes."""

from __future__ import annotations

import time

import pytest

from svc.errors import ProviderFailed
from svc.wire.sse import MAX_EVENT_BYTES, EventSplitter, event_data, event_name


@pytest.mark.parametrize("end", [b"\n", b"\r\n", b"\r"])
def test_line_ends(end: bytes) -> None:
    splitter = EventSplitter()
    events = splitter.feed(b"\xef\xbb\xbf" + b"a" + end + b"b" + end + end + b"c" + end + end + b"d")
    assert events == [b"a\nb", b"c"]
    assert splitter.remainder == b"d"
    assert splitter.flush() == b"d\n\n"
    assert splitter.flush() == b""


def test_a_long_line_in_small_pieces_is_linear() -> None:
    def taken(size: int) -> float:
        splitter = EventSplitter()
        begin = time.perf_counter()
        for _ in range(size // 100):
            splitter.feed(b"x" * 100)
        assert splitter.feed(b"\n\n") == [b"x" * size]
        return time.perf_counter() - begin

    taken(10_000)
    assert taken(4_000_000) < 100 * max(taken(400_000), 1e-3)


def test_an_endless_event_is_bounded() -> None:
    splitter = EventSplitter()
    for _ in range(MAX_EVENT_BYTES // 65_536):
        assert splitter.feed(b"x" * 65_536) == []
    with pytest.raises(ProviderFailed):
        splitter.feed(b"x")
    assert len(splitter.remainder) < MAX_EVENT_BYTES + 2 * 65_536


@pytest.mark.parametrize(
    ("event", "name", "data"),
    [
        (b"data: x", None, b"x"),
        (b"data:x", None, b"x"),
        (b"event: e\ndata: x\ndata: y", b"e", b"x\ny"),
        (b"event: e", b"e", None),
        (b": comment", None, None),
        (b"retry: 5\nid: 3", None, None),
        (b"data", None, b""),
    ],
)
def test_fields(event: bytes, name: bytes | None, data: bytes | None) -> None:
    assert event_name(event) == name
    assert event_data(event) == data
