"""Ends of streams, and normalization of nonstandard upstream streams."""

from __future__ import annotations

import json

import openai
import pytest

from tests.e2e.harness import CLAUDE, GPT, HI, LLAMA, Gateway
from tests.e2e.reading import broken_stream, complete_chunks, finish_of, text_of, tools_of
from tests.fakes import anthropic_wire, openai_wire
from tests.fakes.http_client import request_bytes
from tests.fakes.provider import FakeProvider
from tests.fakes.script import Gate, Script, body, end, fin, head, hold, pause, raw, reset, sse

A_AND_B = [("A", GPT), ("B", CLAUDE)]


def events_of(letter: str, text: str = "eins zwei drei vier") -> list[bytes]:
    return anthropic_wire.stream(text) if letter == "B" else openai_wire.stream(text)


def first_events(letter: str) -> list[bytes]:
    """Return the first events, including some text."""
    return events_of(letter)[:5] if letter == "B" else events_of(letter)[:3]


@pytest.mark.parametrize(("letter", "model"), A_AND_B)
@pytest.mark.parametrize("framing", ["chunked", "close"])
@pytest.mark.parametrize("split_at", [1, 2, 3, 7, 100_000])
def test_stream_bytes_split_anywhere_lose_no_text(
    gateway: Gateway, fakes: dict[str, FakeProvider], letter: str, model: str, split_at: int, framing: str
) -> None:
    fakes[letter].plays(sse(events_of(letter, "Grüße 🦙!"), split_at=split_at, framing=framing))
    assert text_of(complete_chunks(gateway.chat(model, stream=True).body)) == "Grüße 🦙!"


@pytest.mark.parametrize(("letter", "model"), A_AND_B)
@pytest.mark.parametrize("line_end", [b"\r\n", b"\r"])
def test_stream_all_line_endings_and_fields_of_sse_are_accepted(
    gateway: Gateway, fakes: dict[str, FakeProvider], letter: str, model: str, line_end: bytes
) -> None:
    first, *rest = events_of(letter)
    other_fields = b"\xef\xbb\xbf: hello\n\nretry: 3000\n\nid: 7\n\nevent: ping\ndata: {}\n\n: more\n\n"
    written = b"".join([other_fields, first, *(b"id: 1\n: x\n" + event for event in rest)]).replace(b"\n", line_end)
    fakes[letter].plays(sse([written], split_at=11))
    assert text_of(complete_chunks(gateway.chat(model, stream=True).body)) == "eins zwei drei vier"


INTERRUPTIONS: dict[str, Script] = {
    "clean end": end(),
    "fin": fin(),
    "reset": pause(0.02) + reset(),
    "half an event": body(b'data: {"id": "x", "cho') + end(),
    "half an event and fin": body(b"data:") + fin(),
    "broken JSON": body(b'data: {"id": \n\n') + pause(5),
    "not UTF-8": body(b'event: content_block_delta\ndata: {"\xff\xfe": 1}\n\n') + pause(5),
    "wrong chunk size": pause(0.05) + raw(b"zzz\r\n") + pause(5),
}


@pytest.mark.parametrize("cut", INTERRUPTIONS)
@pytest.mark.parametrize(("letter", "model"), A_AND_B)
def test_stream_interrupted_ends_with_error(
    gateway: Gateway, fakes: dict[str, FakeProvider], letter: str, model: str, cut: str
) -> None:
    fakes[letter].plays(sse(first_events(letter), end=INTERRUPTIONS[cut]))
    got = gateway.chat(model, stream=True)
    assert got.status == 200
    assert got.whole
    chunks, error = broken_stream(got.body)
    assert text_of(chunks).startswith("eins")
    assert (error["code"], error["type"]) == ("provider_error", "api_error")
    assert not [chunk for chunk in chunks if chunk["choices"] and chunk["choices"][0]["finish_reason"]]


def chunked(events: list[bytes]) -> bytes:
    return b"".join(b"%x\r\n%b\r\n" % (len(event), event) for event in events)


@pytest.mark.parametrize("before", [1, 2])
@pytest.mark.parametrize(("letter", "model"), A_AND_B)
def test_stream_events_before_invalid_http_are_forwarded(
    gateway: Gateway, fakes: dict[str, FakeProvider], letter: str, model: str, before: int
) -> None:
    events = first_events(letter)
    together = pause(0.3) + raw(chunked(events[before:]) + b"zzz\r\n") + pause(5)
    fakes[letter].plays(sse(events[:before], end=together))
    chunks, error = broken_stream(gateway.chat(model, stream=True).body)
    assert text_of(chunks).startswith("eins")
    assert error["code"] == "provider_error"


@pytest.mark.parametrize(("letter", "model"), A_AND_B)
def test_stream_invalid_http_before_first_event_returns_502(
    gateway: Gateway, fakes: dict[str, FakeProvider], letter: str, model: str
) -> None:
    """Nothing was sent to the client, so another backend may still answer."""
    fakes[letter].always_plays(sse([], end=raw(chunked(first_events(letter)) + b"zzz\r\n") + pause(5)))
    got = gateway.chat(model, stream=True)
    assert (got.status, got.code) == (502, "provider_error")


@pytest.mark.parametrize(("letter", "model"), A_AND_B)
def test_stream_invalid_http_after_done_is_ignored(
    gateway: Gateway, fakes: dict[str, FakeProvider], letter: str, model: str
) -> None:
    first, *rest = events_of(letter)
    fakes[letter].plays(sse([first], end=pause(0.3) + raw(chunked(rest) + b"zzz\r\n") + pause(5)))
    assert text_of(complete_chunks(gateway.chat(model, stream=True).body)) == "eins zwei drei vier"


@pytest.mark.parametrize(("letter", "model"), A_AND_B)
def test_stream_interrupted_raises_in_openai_sdk(
    openai_client: openai.OpenAI, fakes: dict[str, FakeProvider], letter: str, model: str
) -> None:
    fakes[letter].plays(sse(first_events(letter)))
    with pytest.raises(openai.APIError) as caught:
        list(openai_client.chat.completions.create(model=model, messages=HI, stream=True))
    assert caught.value.code == "provider_error"


def test_stream_done_without_finish_reason_is_error(gateway: Gateway, provider_a: FakeProvider) -> None:
    provider_a.plays(sse([*first_events("A"), openai_wire.DONE]))
    _, error = broken_stream(gateway.chat(stream=True).body)
    assert error["code"] == "provider_error"


@pytest.mark.parametrize("ending", [end(), fin(), pause(0.02) + reset()])
def test_stream_finish_reason_without_done_is_complete(
    gateway: Gateway, provider_a: FakeProvider, ending: Script
) -> None:
    provider_a.plays(sse(openai_wire.stream(usage=False, done=False), end=ending))
    assert text_of(complete_chunks(gateway.chat(stream=True).body)) == openai_wire.TEXT


def test_stream_stop_reason_without_message_stop_is_complete(gateway: Gateway, provider_b: FakeProvider) -> None:
    provider_b.plays(sse(events_of("B")[:-1]))
    assert text_of(complete_chunks(gateway.chat(CLAUDE, stream=True).body)) == "eins zwei drei vier"


@pytest.mark.parametrize("kind", ["overloaded_error", "api_error", "rate_limit_error"])
def test_stream_anthropic_error_event_ends_with_error(gateway: Gateway, provider_b: FakeProvider, kind: str) -> None:
    provider_b.plays(sse([*first_events("B"), anthropic_wire.error_event(kind, "Sorry")]))
    chunks, error = broken_stream(gateway.chat(CLAUDE, stream=True).body)
    assert text_of(chunks).startswith("eins")
    assert error["code"] in ("provider_error", "rate_limit_exceeded")


def test_stream_openai_error_event_ends_with_error(gateway: Gateway, provider_a: FakeProvider) -> None:
    failure = openai_wire.event(openai_wire.error("The server had an error", "server_error"))
    provider_a.plays(sse([*first_events("A"), failure, openai_wire.DONE]))
    _, error = broken_stream(gateway.chat(stream=True).body)
    assert error["code"] == "provider_error"


def test_stream_finish_reason_error_ends_with_error(gateway: Gateway, provider_c: FakeProvider) -> None:
    provider_c.plays(sse([*first_events("A"), openai_wire.chunk({}, "error"), openai_wire.DONE]))
    _, error = broken_stream(gateway.chat(LLAMA, stream=True).body)
    assert error["code"] == "provider_error"


def test_stream_repeated_role_is_sent_once(gateway: Gateway, provider_a: FakeProvider) -> None:
    chunks = [openai_wire.chunk({"role": "assistant", "content": word}) for word in ("a", "b", "c")]
    provider_a.plays(sse([*chunks, openai_wire.chunk({"role": "assistant"}, "stop"), openai_wire.DONE]))
    assert text_of(complete_chunks(gateway.chat(stream=True).body)) == "abc"


def test_stream_missing_role_is_added(gateway: Gateway, provider_a: FakeProvider) -> None:
    provider_a.plays(sse([*openai_wire.words("a b"), openai_wire.chunk({}, "stop"), openai_wire.DONE]))
    assert text_of(complete_chunks(gateway.chat(stream=True).body)) == "a b"


def test_stream_finish_reason_in_last_text_chunk_is_accepted(gateway: Gateway, provider_a: FakeProvider) -> None:
    events = [openai_wire.role(), openai_wire.chunk({"content": "a"}), openai_wire.chunk({"content": "b"}, "stop")]
    provider_a.plays(sse([*events, openai_wire.DONE]))
    assert text_of(complete_chunks(gateway.chat(stream=True).body)) == "ab"


def test_stream_repeated_tool_id_and_name_are_sent_once(gateway: Gateway, provider_a: FakeProvider) -> None:
    chunks = [openai_wire.tool_chunk(0, "call_1", "f", part) for part in ('{"a"', ": 1", "}")]
    provider_a.plays(sse([openai_wire.role(), *chunks, openai_wire.chunk({}, "tool_calls"), openai_wire.DONE]))
    assert tools_of(complete_chunks(gateway.chat(stream=True).body)) == [("call_1", "f", '{"a": 1}')]


def test_stream_tool_chunks_without_index_get_index(gateway: Gateway, provider_a: FakeProvider) -> None:
    chunks = [
        openai_wire.tool_chunk(None, "call_1", "f", '{"a"'),
        openai_wire.tool_chunk(None, arguments=": 1}"),
        openai_wire.tool_chunk(None, "call_2", "g", "{}"),
    ]
    provider_a.plays(sse([openai_wire.role(), *chunks, openai_wire.chunk({}, "tool_calls"), openai_wire.DONE]))
    calls = tools_of(complete_chunks(gateway.chat(stream=True).body))
    assert calls == [("call_1", "f", '{"a": 1}'), ("call_2", "g", "{}")]


def test_stream_changing_id_and_created_are_unified(gateway: Gateway, provider_a: FakeProvider) -> None:
    events = [
        openai_wire.chunk({"role": "assistant", "content": "a"}, id="one", created=1),
        openai_wire.chunk({"content": "b"}, id="two", created=2),
        openai_wire.chunk({}, "stop", id="three", created=3),
        openai_wire.DONE,
    ]
    provider_a.plays(sse(events))
    assert text_of(complete_chunks(gateway.chat(stream=True).body)) == "ab"


def test_stream_chunks_after_done_are_not_forwarded(gateway: Gateway, provider_a: FakeProvider) -> None:
    provider_a.plays(sse([*openai_wire.stream("a"), openai_wire.chunk({"content": "late"})]))
    assert text_of(complete_chunks(gateway.chat(stream=True).body)) == "a"


def test_stream_event_of_2_mb_is_forwarded(gateway: Gateway, provider_a: FakeProvider) -> None:
    long = "x" * 2_000_000
    provider_a.plays(sse([openai_wire.role(), openai_wire.chunk({"content": long}), *openai_wire.stream("")[2:]]))
    assert text_of(complete_chunks(gateway.chat(stream=True).body)) == long


def test_stream_line_beyond_limit_ends_with_error(gateway: Gateway, provider_a: FakeProvider) -> None:
    provider_a.plays(sse([*first_events("A"), b"data: " + b"x" * 10_000_000], end=pause(5)))
    got = gateway.chat(stream=True)
    _, error = broken_stream(got.body)
    assert error["code"] == "provider_error"


def test_stream_events_are_forwarded_immediately(gateway: Gateway, provider_a: FakeProvider) -> None:
    gate = Gate()
    first, *rest = openai_wire.stream("eins zwei")
    provider_a.plays(sse([first, rest[0]], end=hold(gate) + body(b"".join(rest[1:])) + end()))
    with gateway.raw() as client:
        client.send(chat_bytes(gateway))
        gate.reached()
        assert b"eins" in client.read_until(b"eins").body
        gate.open()
        assert text_of(complete_chunks(client.read().body)) == "eins zwei"


def test_stream_head_is_sent_with_first_event(gateway: Gateway, provider_a: FakeProvider) -> None:
    gate = Gate()
    script = head(content_type="text/event-stream") + body(b": keep-alive\n\n") + hold(gate) + reset()
    provider_a.always_plays(script)
    with gateway.raw() as client:
        client.send(chat_bytes(gateway))
        gate.reached()
        gate.open()
        assert client.read().status == 502


def test_stream_response_has_documented_headers(gateway: Gateway) -> None:
    got = gateway.chat(stream=True)
    assert got.headers["content-type"] == "text/event-stream; charset=utf-8"
    assert "no-cache" in got.headers["cache-control"]
    assert got.headers["x-svc-provider"] == "openai"
    assert got.headers["x-svc-attempts"] == "1"
    assert got.headers["x-request-id"]


def test_stream_unknown_finish_reason_is_normalized(gateway: Gateway, provider_a: FakeProvider) -> None:
    provider_a.plays(sse(openai_wire.stream("a", finish="end_turn")))
    assert finish_of(complete_chunks(gateway.chat(stream=True).body)) == "stop"


def test_stream_trickled_bytes_lose_no_text(gateway: Gateway, provider_a: FakeProvider) -> None:
    provider_a.plays(sse(openai_wire.stream("a b"), split_at=40, every=0.005))
    assert text_of(complete_chunks(gateway.chat(stream=True).body)) == "a b"


def chat_bytes(gateway: Gateway, model: str = GPT) -> bytes:
    request = {"model": model, "messages": HI, "stream": True}
    return request_bytes("POST", "/v1/chat/completions", json.dumps(request).encode(), key=gateway.key)


@pytest.mark.parametrize("model", [GPT, CLAUDE])
@pytest.mark.parametrize("dialect", ["openai", "anthropic"])
def test_stream_headers_disable_proxy_buffering(gateway: Gateway, dialect: str, model: str) -> None:
    got = (gateway.chat if dialect == "openai" else gateway.message)(model, stream=True)
    assert got.status == 200
    assert (got.headers["cache-control"], got.headers.get("x-accel-buffering")) == ("no-cache", "no")
