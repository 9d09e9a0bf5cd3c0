"""Conversations whose next turn goes to another provider than the one that made the thinking of the last turn."""

from __future__ import annotations

from typing import Any

import pytest

from tests.e2e.conftest import StartGateway
from tests.e2e.harness import CLAUDE, GPT, HI, LLAMA, Gateway
from tests.fakes import anthropic_wire, openai_wire
from tests.fakes.provider import FakeProvider
from tests.fakes.script import answer, sse

TOOL: Any = {"name": "read", "input_schema": {"type": "object"}}
FUNCTION: Any = {"type": "function", "name": "read", "parameters": {"type": "object"}}
CALL = ("call_1", "read", '{"path":"a.txt"}')
RESULT: Any = {"role": "user", "content": [{"type": "tool_result", "tool_use_id": CALL[0], "content": "text"}]}


def thinking_stream() -> list[bytes]:
    """Return an OpenAI stream with thinking and a tool call."""
    thoughts = [openai_wire.chunk({"reasoning_content": text}) for text in ("I have ", "to read.")]
    first, *rest = openai_wire.tool_stream([CALL])
    return [first, *thoughts, *rest]


def ask_for_thinking(gateway: Gateway, provider_a: FakeProvider, *, stream: bool) -> list[Any]:
    """Return the blocks that an OpenAI provider's model sends to an Anthropic client."""
    client = gateway.anthropic()
    if stream:
        provider_a.plays(sse(thinking_stream()))
        with client.messages.stream(model=GPT, max_tokens=50, messages=HI, tools=[TOOL]) as events:
            return [block.model_dump(exclude_none=True) for block in events.get_final_message().content]
    message = {"reasoning_content": "I have to read."}
    provider_a.plays(answer(200, openai_wire.chat(None, tools=[CALL], finish="tool_calls", message=message)))
    got = client.messages.create(model=GPT, max_tokens=50, messages=HI, tools=[TOOL])
    return [block.model_dump(exclude_none=True) for block in got.content]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("path", ["/v1/messages", "/v1/messages/count_tokens"])
def test_thinking_of_openai_provider_is_not_sent_to_anthropic(
    gateway: Gateway, provider_a: FakeProvider, provider_b: FakeProvider, stream: bool, path: str
) -> None:
    blocks = ask_for_thinking(gateway, provider_a, stream=stream)
    assert [block["type"] for block in blocks] == ["thinking", "tool_use"]
    assert blocks[0]["thinking"] == "I have to read."
    turn = {"role": "assistant", "content": blocks}
    request: dict[str, Any] = {"model": CLAUDE, "messages": [*HI, turn, RESULT], "tools": [TOOL]}
    if path == "/v1/messages":
        request["max_tokens"] = 50
    got = gateway.request("POST", path, request)
    assert (got.status, got.headers["x-svc-dropped"]) == (200, "messages[].thinking")
    sent = provider_b.requests[-1].json
    assert sent == {**request, "messages": [*HI, {**turn, "content": blocks[1:]}, RESULT]}


def test_thinking_of_openai_provider_returns_to_it_without_signature(
    gateway: Gateway, provider_a: FakeProvider
) -> None:
    blocks = ask_for_thinking(gateway, provider_a, stream=True)
    got = gateway.message(GPT, messages=[*HI, {"role": "assistant", "content": blocks}, RESULT], tools=[TOOL])
    assert (got.status, got.headers["x-svc-dropped"]) == (200, "messages[].thinking")
    assert blocks[0]["signature"].encode() not in provider_a.requests[-1].body


def test_turn_with_thinking_alone_is_not_sent_to_anthropic(
    gateway: Gateway, provider_a: FakeProvider, provider_b: FakeProvider
) -> None:
    thinking = ask_for_thinking(gateway, provider_a, stream=False)[:1]
    got = gateway.message(CLAUDE, messages=[*HI, {"role": "assistant", "content": thinking}, *HI])
    assert got.status == 200
    assert provider_b.requests[-1].json["messages"] == [*HI, *HI]


def test_signed_thinking_and_similar_text_are_sent_to_anthropic_unchanged(
    gateway: Gateway, provider_a: FakeProvider, provider_b: FakeProvider
) -> None:
    mark = ask_for_thinking(gateway, provider_a, stream=False)[0]["signature"]
    blocks = [anthropic_wire.thinking("signed"), anthropic_wire.text(mark)]
    messages = [{"role": "user", "content": mark}, {"role": "assistant", "content": blocks}, *HI]
    got = gateway.message(CLAUDE, messages=messages)
    assert (got.status, got.headers.get("x-svc-dropped")) == (200, None)
    assert provider_b.requests[-1].json["messages"] == messages


def test_signed_thinking_of_stream_gets_no_second_signature(gateway: Gateway, provider_b: FakeProvider) -> None:
    blocks = [anthropic_wire.thinking("first"), anthropic_wire.redacted(), anthropic_wire.text("Done")]
    provider_b.plays(sse(anthropic_wire.stream(blocks)))
    with gateway.anthropic().messages.stream(model=CLAUDE, max_tokens=50, messages=HI) as events:
        assert [block.model_dump(exclude_none=True) for block in events.get_final_message().content] == blocks


def test_fallback_from_anthropic_gets_no_thinking_that_groq_rejects(
    start_gateway: StartGateway, provider_b: FakeProvider, provider_c: FakeProvider
) -> None:
    started = start_gateway(config=f'[routing]\nretries = 0\n[routing.fallbacks]\n"{CLAUDE}" = ["{LLAMA}"]\n')
    provider_b.plays(answer(200, anthropic_wire.message([anthropic_wire.thinking("hm"), anthropic_wire.text("Yes")])))
    turn = started.openai().chat.completions.create(model=CLAUDE, messages=HI).choices[0].message
    replayed: Any = turn.model_dump(exclude_none=True)
    assert {"reasoning_content", "thinking_blocks"} <= replayed.keys()
    provider_b.plays(answer(529, anthropic_wire.error("overloaded_error")))
    got = started.chat(CLAUDE, messages=[*HI, replayed, *HI])
    assert (got.status, got.headers["x-svc-provider"]) == (200, "groq")
    assert got.headers["x-svc-dropped"] == "messages[].reasoning_content,messages[].thinking_blocks"
    assert not provider_c.complaints
    assert provider_c.requests[-1].json["messages"] == [*HI, {"role": "assistant", "content": "Yes"}, *HI]


def test_fallback_from_openai_gets_no_fields_that_groq_rejects(
    start_gateway: StartGateway, provider_a: FakeProvider, provider_c: FakeProvider
) -> None:
    started = start_gateway(config=f'[routing]\nretries = 0\n[routing.fallbacks]\n"{GPT}" = ["{LLAMA}"]\n')
    replayed = {"role": "assistant", "content": "Yes", "refusal": None, "annotations": []}
    provider_a.plays(answer(503, openai_wire.error("overloaded")))
    got = started.chat(GPT, messages=[*HI, replayed, *HI])
    assert (got.status, got.headers["x-svc-provider"], got.headers.get("x-svc-dropped")) == (200, "groq", None)
    assert provider_c.requests[-1].json["messages"] == [*HI, {"role": "assistant", "content": "Yes"}, *HI]


def test_responses_tool_loop_gets_no_thinking_that_groq_rejects(gateway: Gateway, provider_c: FakeProvider) -> None:
    client = gateway.openai()
    message = {"reasoning": "I have to read."}
    provider_c.plays(answer(200, openai_wire.chat(None, tools=[CALL], finish="tool_calls", message=message)))
    include: Any = ["reasoning.encrypted_content"]
    first = client.responses.create(model=LLAMA, input="Hi", tools=[FUNCTION], include=include)
    assert [item.type for item in first.output] == ["reasoning", "function_call"]
    items: Any = [item.model_dump(exclude_none=True) for item in first.output]
    result: Any = {"type": "function_call_output", "call_id": CALL[0], "output": "text"}
    second = client.responses.create(model=LLAMA, input=[*HI, *items, result], tools=[FUNCTION], include=include)
    assert second.output_text == openai_wire.TEXT
    assert not provider_c.complaints
