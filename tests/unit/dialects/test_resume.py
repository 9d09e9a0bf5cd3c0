"""Resuming a broken stream at another upstream."""

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


def chat_request(**more: object) -> ChatRequest:
    return ChatRequest("m", [ChatMessage("user", [TextPart("Say something.")])], stream=True, **more)  # type: ignore[arg-type]


def stream(*texts: str) -> ResumableTranslation:
    """Return a translation that has sent `texts` to an OpenAI client so far."""
    found = ResumableTranslation(openai.create_stream_decoder(), openai.create_stream_encoder(include_usage=False))
    found.feed(chunk({"role": "assistant", "content": ""}))
    for text in texts:
        found.feed(chunk({"content": text}))
    return found


def text_of(out: bytes) -> str:
    """Return the text of all chunks in `out`."""
    events = [line.removeprefix("data: ") for line in out.decode().splitlines() if line.startswith("data: {")]
    choices = [choice for event in events for choice in json.loads(event)["choices"]]
    return "".join(choice["delta"].get("content") or "" for choice in choices)


def test_resume_request_sent_text_becomes_assistant_message() -> None:
    request = stream("Once upon", " a time ").resume_request(chat_request())
    assert request.messages[-1] == ChatMessage("assistant", [TextPart("Once upon a time")])
    assert len(request.messages) == 2
    assert request.messages[0] == chat_request().messages[0]


def test_resume_request_without_text_returns_same_request() -> None:
    request = chat_request()
    assert stream().resume_request(request) is request
    assert stream("  ").resume_request(request) is request


def test_resume_continue_keeps_text_and_starts_stream_once() -> None:
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
    assert text_of(out) == "a time"  # the client has the white space already
    assert b'"role"' not in out
    assert second.resume_request(chat_request()).messages[-1] == ChatMessage(
        "assistant", [TextPart("Once upon a time")]
    )


def test_resume_continue_twice_keeps_all_text() -> None:
    second = stream("one ").continue_with(openai)
    second.feed(chunk({"role": "assistant", "content": ""}))
    second.feed(chunk({"content": "two "}))
    third = second.continue_with(openai)
    out = third.feed(chunk({"role": "assistant", "content": ""})) + third.feed(chunk({"content": "three"}))
    assert text_of(out) == "three"
    assert third.resume_request(chat_request()).messages[-1] == ChatMessage("assistant", [TextPart("one two three")])


@pytest.mark.parametrize(
    ("tail", "chunks", "expected"),
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
def test_resume_continue_drops_white_space_already_sent(tail: str, chunks: list[str], expected: str) -> None:
    second = stream("text" + tail).continue_with(openai)
    out = second.feed(chunk({"role": "assistant", "content": ""}))
    for text in chunks:
        out += second.feed(chunk({"content": text}))
    assert text_of(out) == expected


def test_resume_tool_call_or_finished_stream_is_not_resumable() -> None:
    call = {"index": 0, "id": "c", "type": "function", "function": {"name": "f", "arguments": ""}}
    with_call, ended = stream("text"), stream("text")
    assert with_call.is_resumable
    with_call.feed(chunk({"tool_calls": [call]}))
    ended.feed(chunk({}, "stop"))
    assert (with_call.is_resumable, ended.is_resumable) == (False, False)


def test_resume_text_above_limit_is_discarded_and_not_resumable() -> None:
    full = stream("x" * MAX_RESUMABLE_TEXT_BYTES)
    assert full.is_resumable
    full.feed(chunk({"content": "y"}))
    assert not full.is_resumable
    assert full.resume_request(chat_request()).messages == chat_request().messages


def test_resume_broken_stream_error_is_deferred_until_give_up() -> None:
    broken = stream("text")
    assert broken.end() == b""
    assert broken.is_resumable
    out = broken.give_up(ProviderFailed("The provider's response was interrupted.", reason="10.0.0.1 refused"))
    assert b"response was interrupted" in out
    assert b"10.0.0.1" not in out
    assert b"[DONE]" not in out
    assert broken.has_ended
    assert broken.error is not None


@pytest.mark.parametrize(
    ("request_", "expected"),
    [
        (chat_request(), True),
        (chat_request(extra={"seed": 1, "store": True, "metadata": {}, "service_tier": "auto"}), True),
        (chat_request(extra={"logprobs": True}), False),
        (chat_request(extra={"logprobs": False, "audio": None}), True),
        (ChatRequest("m", [ChatMessage("assistant", [TextPart("I")])]), False),
    ],
)
def test_resume_support_depends_on_fields_and_last_message(request_: ChatRequest, expected: bool) -> None:
    assert supports_resume(request_) is expected
