"""Clients of the Messages API get the ledger's estimate from an OpenAI upstream that reports no usage."""

from __future__ import annotations

from typing import Any

import anthropic
import pytest

from tests.e2e.accounts.test_usage import entry_of
from tests.e2e.harness import GPT, HI, Gateway
from tests.fakes import openai_wire
from tests.fakes.provider import FakeProvider
from tests.fakes.script import answer, fin, sse

TEXT = "The quick brown fox jumps over the lazy dog. " * 20
SHORT_TEXT = "Two words are enough, and these are more."
LONG_NAME = "mcp__a_server_with_a_long_name__and_a_tool_with_a_name_that_is_longer"
LONG_TOOL: Any = {"name": LONG_NAME, "input_schema": {"type": "object"}}


def check_estimate(gateway: Gateway, request_id: str, usage: Any) -> None:
    """The client and the ledger have the same plausible numbers."""
    entry = entry_of(gateway, request_id, 30)
    assert (entry["prompt_tokens"], entry["completion_tokens"]) == (usage.input_tokens, usage.output_tokens)
    assert entry["estimated"] is True
    assert 1 <= usage.input_tokens < 1000
    assert 20 < usage.output_tokens < 1000
    assert (usage.cache_read_input_tokens, usage.cache_creation_input_tokens) == (0, 0)


@pytest.mark.parametrize("tools", [[], [LONG_TOOL]], ids=["no tools", "long name"])
@pytest.mark.parametrize(
    "usage",
    [None, {}, {"prompt_tokens": "many"}, {"prompt_tokens": -1, "completion_tokens": -1, "total_tokens": -2}],
    ids=str,
)
def test_message_without_usage_states_estimate_of_ledger(
    gateway: Gateway, anthropic_client: anthropic.Anthropic, provider_a: FakeProvider, usage: Any, tools: list[Any]
) -> None:
    provider_a.plays(answer(200, openai_wire.chat(TEXT, usage=usage)))
    got = anthropic_client.messages.with_raw_response.create(
        model=GPT, max_tokens=500, messages=HI, tools=tools or anthropic.omit
    )
    message = got.parse()
    assert [block.type for block in message.content] == ["text"]
    check_estimate(gateway, got.headers["x-request-id"], message.usage)


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/messages"])
def test_short_response_without_usage_counts_its_text_alone(
    gateway: Gateway, provider_a: FakeProvider, path: str
) -> None:
    provider_a.plays(answer(200, openai_wire.chat(SHORT_TEXT, usage=None)))
    got = gateway.request("POST", path, {"model": GPT, "max_tokens": 500, "messages": HI})
    entry = entry_of(gateway, got.headers["x-request-id"], 30)
    assert (entry["completion_tokens"], entry["estimated"]) == (len(SHORT_TEXT) // 4, True)


@pytest.mark.parametrize("size", [None, 0, 7, 1000], ids=["one event", "one chunk", "small chunks", "large chunks"])
@pytest.mark.parametrize("end", ["end mark", "no end mark", "closed"])
def test_message_stream_without_usage_states_estimate_of_ledger(
    gateway: Gateway, anthropic_client: anthropic.Anthropic, provider_a: FakeProvider, size: int | None, end: str
) -> None:
    events = openai_wire.stream(TEXT, usage=False, done=end == "end mark")
    ending: dict[str, Any] = {"end": fin()} if end == "closed" else {}
    split_at = sum(map(len, events)) if size == 0 else size  # the splice forwards single events
    provider_a.plays(sse(events, split_at=split_at, every=0.002 if size is None else 0, **ending))
    with anthropic_client.messages.stream(model=GPT, max_tokens=500, messages=HI) as stream:
        message = stream.get_final_message()
        request_id = stream.response.headers["x-request-id"]
    assert message.stop_reason == "end_turn"
    assert message.usage.output_tokens > 100
    check_estimate(gateway, request_id, message.usage)


def test_message_with_usage_states_usage_of_provider(
    gateway: Gateway, anthropic_client: anthropic.Anthropic, provider_a: FakeProvider
) -> None:
    provider_a.plays(sse(openai_wire.stream(TEXT)))
    with anthropic_client.messages.stream(model=GPT, max_tokens=500, messages=HI) as stream:
        usage = stream.get_final_message().usage
        entry = entry_of(gateway, stream.response.headers["x-request-id"], 30)
    assert (entry["prompt_tokens"], entry["completion_tokens"]) == (
        openai_wire.USAGE["prompt_tokens"],
        usage.output_tokens,
    )
    assert entry["estimated"] is False
