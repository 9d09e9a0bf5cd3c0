"""Parsing of server-sent events."""

from __future__ import annotations

import time

import pytest

from svc.errors import ProviderFailed
from svc.wire.sse import MAX_EVENT_BYTES, EventSplitter, event_data, event_name


@pytest.mark.parametrize("end", [b"\n", b"\r\n", b"\r"])
def test_event_splitter_any_line_ending_is_accepted(end: bytes) -> None:
    splitter = EventSplitter()
    events = splitter.feed(b"\xef\xbb\xbf" + b"a" + end + b"b" + end + end + b"c" + end + end + b"d")
    assert events == [b"a\nb", b"c"]
    assert splitter.remainder == b"d"
    assert splitter.flush() == b"d\n\n"
    assert splitter.flush() == b""


def test_event_splitter_long_line_in_small_chunks_takes_linear_time() -> None:
    def elapsed_seconds(size: int) -> float:
        splitter = EventSplitter()
        begin = time.process_time()
        for _ in range(size // 100):
            splitter.feed(b"x" * 100)
        assert splitter.feed(b"\n\n") == [b"x" * size]
        return time.process_time() - begin

    elapsed_seconds(10_000)
    assert elapsed_seconds(4_000_000) < 100 * max(elapsed_seconds(400_000), 1e-3)


def test_event_splitter_oversized_event_raises_provider_failed() -> None:
    splitter = EventSplitter()
    for _ in range(MAX_EVENT_BYTES // 65_536):
        assert splitter.feed(b"x" * 65_536) == []
    with pytest.raises(ProviderFailed):
        splitter.feed(b"x")
    assert len(splitter.remainder) < MAX_EVENT_BYTES + 2 * 65_536


def test_event_splitter_returns_the_events_before_an_oversized_one_first() -> None:
    splitter = EventSplitter()
    assert splitter.feed(b"data: 1\n\n" + b"x" * (MAX_EVENT_BYTES + 1)) == [b"data: 1"]
    for rest in (b"", b"x", b"\n\n"):
        with pytest.raises(ProviderFailed, match="too long"):
            splitter.feed(rest)
    with pytest.raises(ProviderFailed, match="too long"):
        splitter.check_size()


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
def test_event_fields_are_parsed(event: bytes, name: bytes | None, data: bytes | None) -> None:
    assert event_name(event) == name
    assert event_data(event) == data
