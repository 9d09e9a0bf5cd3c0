"""Range requests (RFC 9110, section 14)."""

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from svc.registry.ranges import ByteRange, select_range

TAG = '"sha256:aa"'
DATA = bytes(range(256)) * 3


@given(first=st.integers(0, 1000), last=st.integers(0, 1000))
def test_select_range_any_range_gives_slice(first, last):
    part = select_range(len(DATA), TAG, range_=f"bytes={first}-{last}")
    if last < first:
        assert part == ByteRange(200, 0, len(DATA))
    elif first >= len(DATA):
        assert part.status == 416
    else:
        assert part.status == 206
        assert DATA[part.start : part.end] == DATA[first : last + 1]


@given(length=st.integers(0, 2000))
def test_select_range_any_suffix_gives_slice(length):
    part = select_range(len(DATA), TAG, range_=f"bytes=-{length}")
    assert part.status == (206 if length else 416)
    assert DATA[part.start : part.end] == (DATA[-length:] if length else b"")


@given(start=st.integers(0, len(DATA) - 1))
def test_select_range_open_range_gives_slice(start):
    part = select_range(len(DATA), TAG, range_=f"bytes={start}-")
    assert DATA[part.start : part.end] == DATA[start:]


@given(st.text(max_size=30))
def test_select_range_malformed_header_gives_whole_file(text):
    part = select_range(len(DATA), TAG, range_=text, if_range=text)
    assert part == ByteRange(200, 0, len(DATA))


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"range_": "bytes=0-1", "if_range": TAG}, 206),
        ({"range_": "bytes=0-1", "if_range": '"other"'}, 200),
        ({"range_": "bytes=0-1", "if_range": f"W/{TAG}"}, 200),
        ({"range_": "bytes=0-1", "if_range": "Sat, 21 Nov 2026 06:00:00 GMT"}, 200),
        ({"range_": "bytes=0-1,3-4"}, 200),
        ({"range_": "items=0-1"}, 200),
        ({"range_": "bytes=-"}, 200),
        ({"if_none_match": TAG}, 304),
        ({"if_none_match": f'"x", W/{TAG}'}, 304),
        ({"if_none_match": "*"}, 304),
        ({"if_none_match": '"x"'}, 200),
        ({"range_": "bytes=99999-", "if_none_match": TAG}, 304),
    ],
)
def test_select_range_conditional_headers_give_status(headers, status):
    assert select_range(len(DATA), TAG, **headers).status == status


def test_select_range_empty_file_gives_416_or_200():
    assert select_range(0, TAG, range_="bytes=0-").status == 416
    assert select_range(0, TAG) == ByteRange(200, 0, 0)


def test_select_range_header_of_blanks_takes_bounded_time():
    blanks = " " * 15000
    started_at = time.monotonic()
    assert select_range(9, TAG, range_=f"bytes={blanks}-{blanks}x").status == 200
    assert select_range(9, TAG, range_=f"bytes{blanks}={blanks}1{blanks}-").status == 206
    assert time.monotonic() - started_at < 2
