"""RESP2, split anywhere, and hostile."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from svc.stores.redis.protocol import (
    MAX_RESP_LINE_BYTES,
    RedisReplyError,
    RespParser,
    RespProtocolError,
    encode_command,
)

ANSWERS = b"+OK\r\n:-7\r\n$5\r\na\r\nbc\r\n$-1\r\n*3\r\n:1\r\n*1\r\n$0\r\n\r\n*-1\r\n"


def test_a_command() -> None:
    assert encode_command(["SET", b"\r\n", "ä", 5]) == b"*4\r\n$3\r\nSET\r\n$2\r\n\r\n\r\n$2\r\n\xc3\xa4\r\n$1\r\n5\r\n"


@given(st.lists(st.integers(1, len(ANSWERS)), max_size=8))
def test_any_split_gives_the_same(cuts: list[int]) -> None:
    reader = RespParser()
    edges = [0, *sorted(cuts), len(ANSWERS)]
    found = [reply for start, end in itertools.pairwise(edges) for reply in reader.feed(ANSWERS[start:end])]
    assert found == [b"OK", -7, b"a\r\nbc", None, [1, [b""], None]]


def test_an_error_is_no_exception_of_the_reader() -> None:
    (reply,) = RespParser().feed(b"-NOSCRIPT No matching script.\r\n")
    assert isinstance(reply, RedisReplyError)
    assert reply.kind == "NOSCRIPT"


@pytest.mark.parametrize(
    "data",
    [
        b"HTTP/1.1 400 Bad Request\r\n",
        b":x\r\n",
        b"$-2\r\n",
        b"$999999999999\r\n",
        b"*9999999\r\n",
        b"$1\r\nabc\r\n",
        b"*1\r\n" * 20,
        b"+" + b"x" * (MAX_RESP_LINE_BYTES + 2),
    ],
)
def test_what_is_not_redis(data: bytes) -> None:
    with pytest.raises(RespProtocolError):
        RespParser().feed(data)
