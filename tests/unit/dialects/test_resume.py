"""A stream that goes on at another upstream after the first one broke."""

from __future__ import annotations

import json

import pytest

from svc.dialects.anthropic import dialect as anthropic
from svc.dialects.openai import dialect as openai
from svc.dialects.resume import (
    MAX_RESUMABLE_TEXT_BYTES,
    RESUME_COMMENT,
    ResumableTranslation,
    supports_resume,
)
from svc.errors import ProviderFailed
from svc.wire.chat import ChatMessage, ChatRequest, TextPart


def chunk(delta: dict[str, object], finish: str | None = None, **more: object) -> bytes:
    choice = {"index": 0, "delta": delta, "finish_reason": finish}
    body = {"id": "one", "object": "chat.completion.chunk", "created": 7, "model": "m", "choices": [choice], **more}
    return f"data: {json.dumps(body)}\n\n".encode()


def asked(**more: object) -> ChatRequest:
    return ChatRequest("m", [ChatMessage("user", [TextPart("Say something.")])], stream=True, **more)  # type: ignore[arg-type]


def stream(*texts: str) -> ResumableTranslation:
    """One that has said `texts` to an OpenAI client so far."""
    found = ResumableTranslation(openai.create_stream_decoder(), openai.create_stream_encoder(include_usage=False))
    found.feed(chunk({"role": "assistant", "content": ""}))
    for text in texts:
        found.feed(chunk({"content": text}))
    return found


def said(out: bytes) -> str:
    """The text of all chunks in `out`."""
    events = [line.removeprefix("data: ") for line in out.decode().splitlines() if line.startswith("data: {")]
    choices = [choice for event in events for choice in json.loads(event)["choices"]]
    return "".join(choice["delta"].get("content") or "" for choice in choices)


def test_resumable_request_begins_the_assistants_turn_with_the_text() -> None:
    request = stream("Once upon", " a time ").resume_request(asked())
    assert request.messages[-1] == ChatMessage("assistant", [TextPart("Once upon a time")])
    assert len(request.messages) == 2
    assert request.messages[0] == asked().messages[0]


def test_resumable_request_without_text_is_the_clients_own() -> None:
    request = asked()
    assert stream().resume_request(request) is request
    assert stream("  ").resume_request(request) is request


def test_resumable_go_on_keeps_the_text_and_begins_once() -> None:
    first = stream("Once upon ")
    second = first.continue_with(anthropic)
    start = {"type": "message_start", "message": {"id": "x", "model": "other", "usage": {"input_tokens": 3}}}
    block = {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}}
    delta = {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": " a time"}}
    out = b"".join(
        second.feed(f"event: {event['type']}\ndata: {json.dumps(event)}\n\n".encode())
        for event in (start, block, delta)
    )
    assert out.startswith(RESUME_COMMENT)
    assert out.count(RESUME_COMMENT) == 1
    assert said(out) == "a time"  # the client has the white space already
    assert b'"role"' not in out
    assert second.resume_request(asked()).messages[-1] == ChatMessage("assistant", [TextPart("Once upon a time")])


def test_resumable_go_on_twice_goes_on_from_all_of_the_text() -> None:
    second = stream("one ").continue_with(openai)
    second.feed(chunk({"role": "assistant", "content": ""}))
    second.feed(chunk({"content": "two "}))
    third = second.continue_with(openai)
    out = third.feed(chunk({"role": "assistant", "content": ""})) + third.feed(chunk({"content": "three"}))
    assert said(out) == "three"
    assert third.resume_request(asked()).messages[-1] == ChatMessage("assistant", [TextPart("one two three")])


@pytest.mark.parametrize(
    ("tail", "pieces", "expected"),
    [
        ("", ["  more"], "  more"),
        (" ", ["more"], "more"),
        (" ", [" more"], "more"),
        ("\n\n", ["\n", "\n", "more"], "more"),
        ("\n\n", ["\n", "more", "\n"], "more\n"),
        ("  ", ["   more"], " more"),
        (" ", ["\nmore"], "\nmore"),
    ],
)
def test_resumable_go_on_drops_white_space_that_was_sent(tail: str, pieces: list[str], expected: str) -> None:
    second = stream("text" + tail).continue_with(openai)
    out = second.feed(chunk({"role": "assistant", "content": ""}))
    for piece in pieces:
        out += second.feed(chunk({"content": piece}))
    assert said(out) == expected


def test_resumable_tool_call_or_end_is_not_resumable() -> None:
    call = {"index": 0, "id": "c", "type": "function", "function": {"name": "f", "arguments": ""}}
    with_call, ended = stream("text"), stream("text")
    assert with_call.is_resumable
    with_call.feed(chunk({"tool_calls": [call]}))
    ended.feed(chunk({}, "stop"))
    assert (with_call.is_resumable, ended.is_resumable) == (False, False)


def test_resumable_long_text_is_let_go_of() -> None:
    full = stream("x" * MAX_RESUMABLE_TEXT_BYTES)
    assert full.is_resumable
    full.feed(chunk({"content": "y"}))
    assert not full.is_resumable
    assert full.resume_request(asked()).messages == asked().messages


def test_resumable_break_is_held_back_until_given_up() -> None:
    broken = stream("text")
    assert broken.end() == b""
    assert broken.is_resumable
    out = broken.give_up(ProviderFailed("The provider gave no whole answer.", reason="10.0.0.1 refused"))
    assert b"no whole answer" in out
    assert b"10.0.0.1" not in out
    assert b"[DONE]" not in out
    assert broken.has_ended
    assert broken.error is not None


@pytest.mark.parametrize(
    ("request_", "expected"),
    [
        (asked(), True),
        (asked(extra={"seed": 1, "store": True, "metadata": {}, "service_tier": "auto"}), True),
        (asked(extra={"logprobs": True}), False),
        (asked(extra={"logprobs": False, "audio": None}), True),
        (ChatRequest("m", [ChatMessage("assistant", [TextPart("I")])]), False),
    ],
)
def test_resumable_request_with_one_text_and_known_fields(request_: ChatRequest, expected: bool) -> None:
    assert supports_resume(request_) is expected
