"""The RESP2 parser with arbitrary splits and with malformed data."""

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

REPLIES = b"+OK\r\n:-7\r\n$5\r\na\r\nbc\r\n$-1\r\n*3\r\n:1\r\n*1\r\n$0\r\n\r\n*-1\r\n"


def test_encode_command_mixed_types_are_encoded() -> None:
    assert encode_command(["SET", b"\r\n", "ä", 5]) == b"*4\r\n$3\r\nSET\r\n$2\r\n\r\n\r\n$2\r\n\xc3\xa4\r\n$1\r\n5\r\n"


@given(st.lists(st.integers(1, len(REPLIES)), max_size=8))
def test_resp_parser_any_split_gives_same_replies(cuts: list[int]) -> None:
    parser = RespParser()
    edges = [0, *sorted(cuts), len(REPLIES)]
    found = [reply for start, end in itertools.pairwise(edges) for reply in parser.feed(REPLIES[start:end])]
    assert found == [b"OK", -7, b"a\r\nbc", None, [1, [b""], None]]


def test_resp_parser_error_reply_is_returned_not_raised() -> None:
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
def test_resp_parser_malformed_data_raises_protocol_error(data: bytes) -> None:
    with pytest.raises(RespProtocolError):
        RespParser().feed(data)
