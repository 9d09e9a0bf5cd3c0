"""Unusual tool calls through the gateway to the real SDKs."""

from __future__ import annotations

from typing import Any

import anthropic
import openai
import pytest

from tests.e2e.harness import GPT, HI
from tests.fakes import openai_wire
from tests.fakes.provider import FakeProvider
from tests.fakes.script import answer, sse

CUSTOM: Any = {"id": "call_1", "type": "custom", "custom": {"name": "patch", "input": "+ ünï\n"}}
TOOLS: Any = [{"type": "custom", "custom": {"name": "patch", "format": {"type": "text"}}}]
CUT = ("call_1", "write", '{"path": "a.txt", "text": "Once up')


def start_delta(index: int, name: str) -> dict[str, Any]:
    return {"index": index, "id": f"call_{index}", "type": "function", "function": {"name": name, "arguments": ""}}


def arguments_delta(index: int, text: str) -> dict[str, Any]:
    return {"index": index, "function": {"arguments": text}}


def calls(*deltas: dict[str, Any], finish: str) -> list[bytes]:
    chunks = [openai_wire.chunk({"role": "assistant", "content": None})]
    chunks += [openai_wire.chunk({"tool_calls": [delta]}) for delta in deltas]
    return [*chunks, openai_wire.chunk(finish=finish), openai_wire.DONE]


def test_tool_call_custom_in_json_is_forwarded_unchanged(
    openai_client: openai.OpenAI, fakes: dict[str, FakeProvider]
) -> None:
    complete = openai_wire.chat(None, finish="tool_calls", message={"tool_calls": [CUSTOM]})
    fakes["A"].plays(answer(200, complete))
    chosen: Any = {"type": "custom", "custom": {"name": "patch"}}
    got = openai_client.chat.completions.create(model=GPT, messages=HI, tools=TOOLS, tool_choice=chosen)
    assert [call.to_dict() for call in got.choices[0].message.tool_calls or []] == [CUSTOM]
    sent = fakes["A"].wait().json
    assert (sent["tools"], sent["tool_choice"]) == (TOOLS, chosen)


def test_tool_call_custom_in_stream_is_forwarded_unchanged(
    openai_client: openai.OpenAI, fakes: dict[str, FakeProvider]
) -> None:
    start = {"index": 0, **CUSTOM, "custom": {"name": "patch", "input": ""}}
    deltas_sent = [start, *({"index": 0, "custom": {"input": text}} for text in ("+ ", "ünï", "\n"))]
    for _ in range(2):  # the second stream is compared with the first
        fakes["A"].plays(sse(calls(*deltas_sent, finish="tool_calls")))
        stream = openai_client.chat.completions.create(model=GPT, messages=HI, tools=TOOLS, stream=True)
        deltas = [delta.to_dict() for chunk in stream for delta in chunk.choices[0].delta.tool_calls or []]
        assert deltas == deltas_sent


def test_tool_call_truncated_by_max_tokens_returns_200(
    anthropic_client: anthropic.Anthropic, fakes: dict[str, FakeProvider]
) -> None:
    fakes["A"].plays(answer(200, openai_wire.chat(None, tools=[CUT], finish="length")))
    complete = anthropic_client.messages.create(model=GPT, max_tokens=50, messages=HI)
    fakes["A"].plays(sse(calls(start_delta(0, "write"), arguments_delta(0, CUT[2]), finish="length")))
    with anthropic_client.messages.stream(model=GPT, max_tokens=50, messages=HI) as stream:
        streamed = stream.get_final_message()
    for message in (complete, streamed):
        [block] = message.content
        assert (message.stop_reason, block.type) == ("max_tokens", "tool_use")
        assert block.input == {"path": "a.txt"}


@pytest.mark.parametrize("together", [True, False])
def test_tool_call_interleaved_parallel_calls_become_separate_blocks(
    anthropic_client: anthropic.Anthropic, fakes: dict[str, FakeProvider], together: bool
) -> None:
    first, second = (
        [arguments_delta(0, '{"city":'), arguments_delta(0, '"Graz"}')],
        [arguments_delta(1, "{"), arguments_delta(1, "}")],
    )
    mixed = [first[0], second[0], first[1], second[1]] if together else [second[0], *first, second[1]]
    fakes["A"].plays(sse(calls(start_delta(0, "weather"), start_delta(1, "time"), *mixed, finish="tool_calls")))
    with anthropic_client.messages.stream(model=GPT, max_tokens=50, messages=HI) as stream:
        message = stream.get_final_message()
    assert message.stop_reason == "tool_use"
    assert [(block.name, block.input) for block in message.content if block.type == "tool_use"] == [
        ("weather", {"city": "Graz"}),
        ("time", {}),
    ]
