"""Unpaired surrogates in the stream or response of a provider do not end it."""

from __future__ import annotations

import json

import pytest

from svc.dialects import anthropic, openai
from svc.dialects.anthropic.stream_passthrough import AnthropicPassthrough
from svc.dialects.base import Dialect
from svc.dialects.openai.stream_passthrough import OpenAIPassthrough
from svc.dialects.stream_transform import StreamTransform
from svc.dialects.translation import StreamTranslation
from svc.dialects.validation import decode_upstream_object
from svc.errors import ProviderFailed

PARTS = (rb"x\ud83d", rb"\ude00y", rb"\ud83d\ude00", rb"\\ud83d", rb"\ud83d\ud83d\ude00")
TEXTS = ("x", "\U0001f600y", "\U0001f600", "\\ud83d", "\ufffd\U0001f600")
"""What `PARTS` are for clients of another dialect."""


def openai_stream() -> list[bytes]:
    head = b'data: {"id":"c","object":"chat.completion.chunk","created":1,"model":"m","choices":[{"index":0,"delta":'
    tail = b',"finish_reason":null}]}\n\n'
    return [
        head + b'{"role":"assistant","content":""}' + tail,
        *[head + b'{"content":"' + part + b'"}' + tail for part in PARTS],
        head + b'{},"finish_reason":"stop"}]}\n\ndata: [DONE]\n\n',
    ]


def anthropic_stream() -> list[bytes]:
    head = b'event: content_block_delta\ndata: {"type":"content_block_delta","index":0,'
    head += b'"delta":{"type":"text_delta","text":"'
    return [
        b'event: message_start\ndata: {"type":"message_start","message":{"id":"m","type":"message","role":"assistant",'
        b'"model":"m","content":[],"stop_reason":null,"usage":{"input_tokens":1,"output_tokens":1}}}\n\n',
        b'event: content_block_start\ndata: {"type":"content_block_start","index":0,"content_block":'
        b'{"type":"text","text":""}}\n\n',
        *[head + part + b'"}}\n\n' for part in PARTS],
        b'event: content_block_stop\ndata: {"type":"content_block_stop","index":0}\n\n'
        b'event: message_delta\ndata: {"type":"message_delta","delta":{"stop_reason":"end_turn"},'
        b'"usage":{"output_tokens":9}}\n\n'
        b'event: message_stop\ndata: {"type":"message_stop"}\n\n',
    ]


def run(transform: StreamTransform, events: list[bytes]) -> list[bytes]:
    """Return the bytes for the client, of each event."""
    found = [transform.feed(event) for event in events]
    assert transform.error is None
    assert transform.has_ended
    return found


@pytest.mark.parametrize(
    ("transform", "events"),
    [(OpenAIPassthrough(include_usage=False), openai_stream()), (AnthropicPassthrough(), anthropic_stream())],
)
def test_stream_of_the_same_dialect_with_unpaired_surrogates_is_unchanged(
    transform: StreamTransform, events: list[bytes]
) -> None:
    assert run(transform, events) == events


@pytest.mark.parametrize(
    ("source", "target", "events"),
    [(openai.dialect, anthropic.dialect, openai_stream()), (anthropic.dialect, openai.dialect, anthropic_stream())],
)
def test_translated_stream_joins_halves_and_replaces_unpaired_surrogates(
    source: Dialect, target: Dialect, events: list[bytes]
) -> None:
    transform = StreamTranslation(source.create_stream_decoder(), target.create_stream_encoder(include_usage=False))
    raw = b"".join(run(transform, events))
    texts = []
    for line in raw.splitlines():
        if line.startswith(b"data: {"):
            data = json.loads(line.removeprefix(b"data: "))
            delta = data["choices"][0]["delta"] if "choices" in data else data.get("delta", {})
            texts.append(delta.get("content") or delta.get("text") or "")
    assert tuple(text for text in texts if text) == TEXTS


@pytest.mark.parametrize("raw", [rb'{"a":"\ud83d', rb'{"a":"\ud83"}', rb'{"a":\ud83d}'])
def test_malformed_json_with_an_unpaired_surrogate_is_invalid(raw: bytes) -> None:
    with pytest.raises(ProviderFailed):
        decode_upstream_object(raw)


@pytest.mark.parametrize("field", ["content", "arguments"])
def test_translated_emoji_that_is_divided_between_events_is_joined(field: str) -> None:
    head = b'data: {"id":"c","object":"chat.completion.chunk","created":1,"model":"m","choices":[{"index":0,"delta":'
    first = b'{"role":"assistant","content":""}'
    parts = [rb"ok \ud83e", rb"\udd99 and", rb" \\\ud83e", rb"\udd99"]
    if field == "content":
        bodies = [b'{"content":"' + part + b'"}' for part in parts]
    else:
        first = b'{"role":"assistant","tool_calls":[{"index":0,"id":"a","function":{"name":"f","arguments":""}}]}'
        bodies = [b'{"tool_calls":[{"index":0,"function":{"arguments":"' + part + b'"}}]}' for part in parts]
    events = [head + body + b',"finish_reason":null}]}\n\n' for body in (first, *bodies)]
    events.append(head + b'{},"finish_reason":"stop"}]}\n\ndata: [DONE]\n\n')
    encoder = anthropic.dialect.create_stream_encoder(include_usage=False)
    transform = StreamTranslation(openai.dialect.create_stream_decoder(), encoder)
    text = ""
    for line in b"".join(run(transform, events)).splitlines():
        if line.startswith(b'data: {"type":"content_block_delta"'):
            delta = json.loads(line.removeprefix(b"data: "))["delta"]
            text += delta.get("text", "") + delta.get("partial_json", "")
    assert text == "ok \U0001f999 and \\\U0001f999"
