"""Turns of a coding agent of one dialect with a model of the other: thinking, tool calls and results."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pytest

from tests.e2e.harness import CLAUDE, GPT, HI, KEY, Gateway
from tests.e2e.reading import complete_chunks
from tests.fakes import anthropic_wire, openai_wire
from tests.fakes.http_client import request_bytes
from tests.fakes.provider import FakeProvider
from tests.fakes.script import Gate, answer, body, end, head, hold, sse

SIGNATURE = "c2lnbmF0dXJl" * 40
IMAGE = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "iVBORw0KGgo="}}
READ = {"type": "function", "function": {"name": "read", "parameters": {"type": "object"}}}


def openai_tool_stream() -> list[bytes]:
    call = {"index": 0, "id": "call_1", "type": "function", "function": {"name": "read", "arguments": ""}}
    parts = [{"index": 0, "function": {"arguments": text}} for text in ('{"path": "a', '.txt"', "}")]
    chunks = [openai_wire.chunk({"tool_calls": [delta]}) for delta in (call, *parts)]
    return [openai_wire.role(), *chunks, openai_wire.chunk(finish="tool_calls"), openai_wire.DONE]


def anthropic_tool_stream() -> list[bytes]:
    return anthropic_wire.stream([anthropic_wire.tool_use("toolu_1", "read", '{"path": "a.txt"}')], stop="tool_use")


@pytest.mark.parametrize(
    ("letter", "model", "path", "events", "shown", "hidden"),
    [
        ("A", GPT, "/v1/messages", openai_tool_stream(), rb'"partial_json":"{\"path\": \"a"', b".txt"),
        ("B", CLAUDE, "/v1/chat/completions", anthropic_tool_stream(), rb'"arguments":"{\"path', b".txt"),
    ],
    ids=["to-openai", "to-anthropic"],
)
def test_agent_tool_arguments_arrive_as_the_other_dialect_sends_them(
    gateway: Gateway,
    fakes: Mapping[str, FakeProvider],
    letter: str,
    model: str,
    path: str,
    events: list[bytes],
    shown: bytes,
    hidden: bytes,
) -> None:
    gate = Gate()
    first = next(number for number, event in enumerate(events) if rb"{\"path" in event) + 1
    opened = head(content_type="text/event-stream") + body(b"".join(events[:first]))
    fakes[letter].plays(opened + hold(gate) + body(b"".join(events[first:])) + end())
    request = {"model": model, "messages": HI, "max_tokens": 50, "stream": True}
    with gateway.raw() as raw:
        raw.send(request_bytes("POST", path, request, key=KEY))
        got = raw.read_until(shown)
        assert shown in got.body, "the first part must not wait for the rest"
        assert hidden not in got.body
        gate.open()
        got = raw.read()
    assert got.whole
    assert b"txt" in got.body


@pytest.mark.parametrize("stream", [False, True], ids=["json", "stream"])
def test_agent_of_openai_returns_thinking_and_signature_over_turns(
    gateway: Gateway, provider_b: FakeProvider, stream: bool
) -> None:
    messages: list[dict[str, Any]] = [*HI]
    thoughts = []
    for turn in range(3):
        thought = anthropic_wire.thinking(f"Thought {turn}.", SIGNATURE + str(turn))
        call = anthropic_wire.tool_use(f"toolu_{turn}", "read", '{"path": "a"}')
        blocks = [thought, anthropic_wire.redacted(), call]
        thoughts.append([thought, anthropic_wire.redacted()])
        whole = anthropic_wire.message(blocks, stop="tool_use")
        provider_b.plays(sse(anthropic_wire.stream(blocks, stop="tool_use")) if stream else answer(200, whole))
        got = gateway.chat(CLAUDE, messages=messages, tools=[READ], stream=stream, max_tokens=2000)
        assert got.status == 200
        message = _final_message(got.body) if stream else got.json["choices"][0]["message"]
        result = {"role": "tool", "tool_call_id": message["tool_calls"][0]["id"], "content": "text"}
        messages += [message, result]
    provider_b.plays(answer(200, anthropic_wire.message("Done.")))
    assert gateway.chat(CLAUDE, messages=messages, tools=[READ], max_tokens=2000).status == 200
    sent = provider_b.wait(4).json["messages"]
    returned = [turn["content"][:2] for turn in sent if turn["role"] == "assistant"]
    assert returned == thoughts


def _final_message(raw: bytes) -> dict[str, Any]:
    """Return the message that a client assembles from the chunks, with the extension `thinking_blocks`."""
    message: dict[str, Any] = {"role": "assistant", "content": None, "thinking_blocks": [], "tool_calls": []}
    for chunk in complete_chunks(raw):
        delta = chunk["choices"][0]["delta"]
        message["thinking_blocks"] += delta.get("thinking_blocks") or []
        for call in delta.get("tool_calls") or []:
            if "id" in call:
                message["tool_calls"].append(call)
            else:
                message["tool_calls"][call["index"]]["function"]["arguments"] += call["function"]["arguments"]
    return message


def test_agent_of_anthropic_turn_is_translated_and_omissions_are_named(
    gateway: Gateway, provider_a: FakeProvider
) -> None:
    calls = [anthropic_wire.tool_use(f"toolu_{number}", "read", '{"path": "a"}') for number in range(2)]
    thought = anthropic_wire.thinking("Hm.", SIGNATURE)
    failed = [{"type": "text", "text": "No such file."}, IMAGE]
    results = [
        {"type": "tool_result", "tool_use_id": "toolu_0", "content": "fine", "cache_control": {"type": "ephemeral"}},
        {"type": "tool_result", "tool_use_id": "toolu_1", "content": failed, "is_error": True},
    ]
    messages = [*HI, {"role": "assistant", "content": [thought, *calls]}, {"role": "user", "content": results}]
    tools = [{"name": "read", "input_schema": {"type": "object"}}]
    got = gateway.message(GPT, messages=messages, tools=tools)
    assert got.status == 200
    named = {"messages[].thinking", "messages[].is_error", "cache_control"}
    assert named == set(got.headers["x-svc-dropped"].split(","))
    _, assistant, *sent = provider_a.wait().json["messages"]
    assert [call["id"] for call in assistant["tool_calls"]] == ["toolu_0", "toolu_1"]
    assert [json.loads(call["function"]["arguments"]) for call in assistant["tool_calls"]] == [{"path": "a"}] * 2
    assert [(message["role"], message.get("tool_call_id")) for message in sent] == [
        ("tool", "toolu_0"),
        ("tool", "toolu_1"),
        ("user", None),
    ]
    assert sent[1]["content"] == "No such file."
    assert sent[2]["content"][0]["image_url"]["url"] == f"data:image/png;base64,{IMAGE['source']['data']}"  # type: ignore[index]
