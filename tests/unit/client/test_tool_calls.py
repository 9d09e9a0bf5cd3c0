"""Tool calls of `client.chat`, complete and streamed, with both clients."""

from __future__ import annotations

import json
from typing import Any

import pytest
from tests.fakes import anthropic_wire, openai_wire
from tests.fakes.anthropic_wire import AnthropicWire
from tests.fakes.provider import FakeProvider
from tests.fakes.script import answer, fin, reset, sse
from tests.unit.client.conftest import Call

from svc import errors
from svc.client.chat import ChatBackend
from svc.client.core import DirectProvider
from svc.client.tool_calls import ChatToolCall
from svc.dialects import anthropic
from svc.dialects.base import ModelProfile

CALLS = [("call_1", "get_weather", '{"city": "Oslo", "days": 3}'), ("call_2", "now", "{}")]
TOOLS = [{"type": "function", "function": {"name": name, "parameters": {"type": "object"}}} for _, name, _ in CALLS]
CUT = openai_wire.tool_stream(CALLS)[:4]


def test_chat_tool_calls_have_names_ids_and_arguments(call: Call, server: FakeProvider) -> None:
    server.plays(answer(200, openai_wire.chat("", tools=CALLS, finish="tool_calls")))
    got = call("chat", "Weather?", tools=TOOLS, tool_choice="auto")
    weather, now = got.tool_calls
    assert (weather.id, weather.name, weather.arguments) == ("call_1", "get_weather", {"city": "Oslo", "days": 3})
    assert (now.name, now.arguments, got.finish_reason) == ("now", {}, "tool_calls")
    assert weather.arguments_json == CALLS[0][2]
    assert server.wait().json["tools"] == TOOLS


def test_chat_message_of_tool_calls_is_accepted_as_next_turn(call: Call, server: FakeProvider) -> None:
    server.plays(
        answer(200, openai_wire.chat("", tools=CALLS, finish="tool_calls")), answer(200, openai_wire.chat("ok"))
    )
    got = call("chat", "Weather?", tools=TOOLS)
    assert got.message["content"] is None
    turns = [{"role": "user", "content": "Weather?"}, got.message]
    turns += [{"role": "tool", "tool_call_id": each.id, "content": "cold"} for each in got.tool_calls]
    assert call("chat", turns).message == {"role": "assistant", "content": "ok"}
    assert server.requests[-1].json["messages"][1]["tool_calls"] == [
        {"id": one, "type": "function", "function": {"name": name, "arguments": text}} for one, name, text in CALLS
    ]


@pytest.mark.parametrize("size", [1, 7, 10_000])
def test_chat_stream_tool_calls_arrive_as_deltas_and_complete_at_end(
    call: Call, server: FakeProvider, size: int
) -> None:
    server.plays(sse(openai_wire.tool_stream(CALLS), split_at=size))
    chunks, stream = call("chat", "Weather?", tools=TOOLS, stream=True)
    deltas = [chunk.tool_call for chunk in chunks if chunk.tool_call]
    assert [(delta.index, delta.id, delta.name) for delta in deltas if not delta.arguments_json][:1] == [
        (0, "call_1", "get_weather")
    ]
    assert len(deltas) > 4
    for index, (one, name, arguments) in enumerate(CALLS):
        own = [delta for delta in deltas if delta.index == index]
        assert {(delta.id, delta.name) for delta in own} == {(one, name)}
        assert "".join(delta.arguments_json for delta in own) == arguments
    assert [each.arguments for each in stream.tool_calls] == [{"city": "Oslo", "days": 3}, {}]
    assert stream.message["tool_calls"][1]["function"]["name"] == "now"


@pytest.mark.parametrize("script", [sse(CUT), sse(CUT, end=fin()), sse(CUT, end=reset())])
def test_chat_stream_cut_in_tool_call_raises(call: Call, server: FakeProvider, script: Any) -> None:
    server.plays(script)
    with pytest.raises((errors.ProviderFailed, errors.GatewayFailed), match="interrupted"):
        call("chat", "Weather?", stream=True)


@pytest.mark.parametrize("text", ['{"city": "Os', "[1]", '"x"', "nothing"])
def test_tool_call_arguments_incomplete_raise_and_keep_text(call: Call, server: FakeProvider, text: str) -> None:
    server.plays(answer(200, openai_wire.chat("", tools=[("c", "f", text)], finish="length")))
    (made,) = call("chat", "Weather?").tool_calls
    assert made.arguments_json == text
    with pytest.raises(errors.ProviderFailed, match="'f'"):
        _ = made.arguments


def test_tool_call_without_arguments_has_none() -> None:
    assert ChatToolCall("c", "f", "").arguments == {}
    assert ChatToolCall("c", "f", "").to_message_item()["function"]["arguments"] == "{}"


@pytest.mark.parametrize("stream", [False, True])
def test_chat_tool_calls_of_anthropic_provider_are_the_same(call: Call, stream: bool) -> None:
    with FakeProvider(AnthropicWire(), key="key-1") as fake:
        blocks = [anthropic_wire.tool_use(one, name, text) for one, name, text in CALLS]
        complete = answer(200, anthropic_wire.message(blocks, stop="tool_use"))
        fake.plays(sse(anthropic_wire.stream(blocks, stop="tool_use")) if stream else complete)
        backend = ChatBackend(anthropic.dialect, ModelProfile("claude", max_output_tokens=100))
        direct = DirectProvider(fake.address, dict(anthropic.dialect.auth_headers("key-1")), backend)
        options: dict[str, Any] = {"client": {"direct": direct}, "tools": TOOLS, "stream": stream}
        got = call("chat", "Weather?", **options)
        made = (got[1] if stream else got).tool_calls
    assert [(each.id, each.name, each.arguments) for each in made] == [
        (one, name, json.loads(text)) for one, name, text in CALLS
    ]
