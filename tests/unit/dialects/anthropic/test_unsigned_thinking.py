"""Unsigned thinking in requests to an Anthropic upstream: marked blocks are dropped, and the rest keeps its bytes."""

import pytest
from tests.codecs import decode_routing_info

from svc.dialects import anthropic
from svc.dialects.anthropic.unsigned_thinking import UNSIGNED_MARK, drop_unsigned_thinking
from svc.dialects.base import EncodedRequest, RequestBody

THINKING = b'{"type":"thinking","thinking":"a","signature":"%b"}' % UNSIGNED_MARK.encode()
USER = b'{"role":"user","content":"Hi"}'


def encode_request(*messages: bytes) -> bytes:
    return b'{"model":"m","max_tokens":5,"messages":[%b]}' % b",".join(messages)


def encode_turn(*blocks: bytes) -> bytes:
    return b'{"role":"assistant","content":[%b]}' % b",".join(blocks)


def drop_from(raw: bytes) -> EncodedRequest:
    decode_routing_info(anthropic.dialect, raw)
    return drop_unsigned_thinking(EncodedRequest(raw), RequestBody(raw))


@pytest.mark.parametrize(
    "block",
    [
        b'{"type":"tool_use","id":"a","name":"b","input":{"x":1e400}}',
        b'{"type":"tool_use","id":"a","name":"b","input":{"x":0.12345678901234567890,"y":1.50}}',
        b'{"type":"tool_use","id":"a","name":"b","input":{"x":1, "x":2}}',
        rb'{"type": "text", "text":"\u00e9\/"}',
    ],
)
def test_unsigned_thinking_is_dropped_and_other_blocks_keep_their_bytes(block: bytes) -> None:
    encoded = drop_from(encode_request(USER, encode_turn(THINKING, block), USER))
    assert encoded.body == encode_request(USER, encode_turn(block), USER)
    assert encoded.dropped_fields == ("messages[].thinking",)


def test_unsigned_thinking_alone_in_last_message_is_dropped() -> None:
    encoded = drop_from(encode_request(USER, encode_turn(THINKING)))
    assert encoded.body == encode_request(USER)
    assert encoded.dropped_fields == ("messages[].thinking",)


@pytest.mark.parametrize(
    "block",
    [
        b'{"type":"thinking","thinking":"a","signature":"signed"}',
        b'{"type":"thinking","thinking":"%b","signature":""}' % UNSIGNED_MARK.encode(),
        b'{"type":"text", "text":"%b"}' % UNSIGNED_MARK.encode(),
    ],
)
def test_other_blocks_return_same_request(block: bytes) -> None:
    raw = encode_request(USER, encode_turn(block), USER)
    assert drop_from(raw).body is raw
