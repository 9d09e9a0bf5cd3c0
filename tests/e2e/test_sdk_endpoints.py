"""`embed`, `responses` and tool calls of both SDK clients, through a gateway to providers of each dialect."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import svc
from svc import errors
from tests.e2e.harness import CLAUDE, GPT, LLAMA, Gateway
from tests.fakes import anthropic_wire, openai_wire, responses_wire
from tests.fakes.provider import FakeProvider
from tests.fakes.script import Script, answer, reset, sse

CALLS = [("call_1", "get_weather", '{"city":"Oslo"}'), ("call_2", "get_time", "{}")]
MODELS = [GPT, CLAUDE, LLAMA]


def call(kind: str, gateway: Gateway, method: str, *args: Any, **named: Any) -> Any:
    """Call a method of a client. Returns the result, or the events and the stream."""
    if kind == "sync":
        with svc.Client(gateway_url=gateway.url, api_key=gateway.key) as client:
            made = getattr(client, method)(*args, **named)
            return (list(made), made) if named.get("stream") else made

    async def run() -> Any:
        async with svc.AsyncClient(gateway_url=gateway.url, api_key=gateway.key) as client:
            made = await getattr(client, method)(*args, **named)
            return ([event async for event in made], made) if named.get("stream") else made

    return asyncio.run(run())


def tool_script(model: str, *, stream: bool, cut: bool = False) -> Script:
    """Two tool calls, in the form of the model's provider."""
    if model == CLAUDE:
        blocks = [anthropic_wire.tool_use(*one) for one in CALLS]
        events = anthropic_wire.stream(blocks, stop="tool_use")
        whole: Any = anthropic_wire.message(blocks, stop="tool_use")
    else:
        events, whole = openai_wire.tool_stream(CALLS), openai_wire.chat(None, tools=CALLS, finish="tool_calls")
    if cut:
        return sse(events[:6], end=reset())
    return sse(events) if stream else answer(200, whole)


def provider_of(model: str, fakes: dict[str, FakeProvider]) -> FakeProvider:
    return fakes[{GPT: "A", CLAUDE: "B", LLAMA: "C"}[model]]


def values(tool_calls: Any) -> list[tuple[str, str, dict[str, Any]]]:
    return [(each.id, each.name, each.arguments) for each in tool_calls]


@pytest.mark.parametrize("kind", ["sync", "async"])
@pytest.mark.parametrize("model", MODELS)
def test_sdk_chat_tool_calls_are_typed_for_every_provider(
    gateway: Gateway, fakes: dict[str, FakeProvider], kind: str, model: str
) -> None:
    provider = provider_of(model, fakes)
    provider.plays(*(tool_script(model, stream=stream) for stream in (False, True)))
    expected = [("call_1", "get_weather", {"city": "Oslo"}), ("call_2", "get_time", {})]
    tools = [{"type": "function", "function": {"name": name, "parameters": {"type": "object"}}} for _, name, _ in CALLS]
    assert values(call(kind, gateway, "chat", "Hi", model=model, tools=tools).tool_calls) == expected
    chunks, stream = call(kind, gateway, "chat", "Hi", model=model, tools=tools, stream=True)
    assert values(stream.tool_calls) == expected
    assert [chunk.tool_call.name for chunk in chunks if chunk.tool_call and not chunk.tool_call.arguments_json][:2]


@pytest.mark.parametrize("kind", ["sync", "async"])
@pytest.mark.parametrize("model", MODELS)
def test_sdk_responses_are_typed_for_every_provider(
    gateway: Gateway, fakes: dict[str, FakeProvider], kind: str, model: str
) -> None:
    text = anthropic_wire.TEXT if model == CLAUDE else openai_wire.TEXT
    got = call(kind, gateway, "responses", "Hi", model=model, instructions="Be brief.", max_output_tokens=50)
    assert (got.text, got.status, bool(got.request_id)) == (text, "completed", True)
    assert got.usage.total_tokens == got.usage.input_tokens + got.usage.output_tokens > 0
    events, stream = call(kind, gateway, "responses", "Hi", model=model, max_output_tokens=50, stream=True)
    assert "".join(event.text for event in events) == stream.text == stream.result.text == text
    assert [event.raw["sequence_number"] for event in events] == list(range(len(events)))


@pytest.mark.parametrize("model", [CLAUDE, LLAMA])
def test_sdk_responses_tool_calls_go_into_the_next_request(
    gateway: Gateway, fakes: dict[str, FakeProvider], model: str
) -> None:
    provider = provider_of(model, fakes)
    tools = [{"type": "function", "name": name, "parameters": {"type": "object"}} for _, name, _ in CALLS]
    for stream in (False, True):
        provider.plays(tool_script(model, stream=stream))
        made = call("sync", gateway, "responses", "Hi", model=model, tools=tools, stream=stream)
        got = made[1].result if stream else made
        assert values(got.tool_calls) == [("call_1", "get_weather", {"city": "Oslo"}), ("call_2", "get_time", {})]
        results = [{"type": "function_call_output", "call_id": each.id, "output": "ok"} for each in got.tool_calls]
        items = [{"role": "user", "content": "Hi"}, *got.output, *results]
        assert call("sync", gateway, "responses", items, model=model, tools=tools).text


@pytest.mark.parametrize("kind", ["sync", "async"])
@pytest.mark.parametrize("model", [CLAUDE, LLAMA])
@pytest.mark.parametrize("method", ["chat", "responses"])
def test_sdk_stream_cut_in_tool_call_raises(
    gateway: Gateway, fakes: dict[str, FakeProvider], kind: str, model: str, method: str
) -> None:
    provider_of(model, fakes).always_plays(tool_script(model, stream=True, cut=True))
    with pytest.raises(errors.ProviderFailed):
        call(kind, gateway, method, "Hi", model=model, stream=True)


def test_sdk_native_responses_stream_without_end_raises(gateway: Gateway, provider_a: FakeProvider) -> None:
    provider_a.always_plays(sse(responses_wire.stream(end=False)))
    with pytest.raises(errors.ProviderFailed):
        call("sync", gateway, "responses", "Hi", model=GPT, stream=True)


@pytest.mark.parametrize("kind", ["sync", "async"])
def test_sdk_errors_of_embed_and_responses_name_the_field(gateway: Gateway, kind: str) -> None:
    for method, fields, param in (
        ("embed", {"model": GPT}, "model"),
        ("embed", {"model": "text-embedding-3-small", "dimensions": 0}, "dimensions"),
        ("responses", {"model": "text-embedding-3-small"}, "model"),
        ("responses", {"model": CLAUDE, "temperature": "hot"}, "temperature"),
    ):
        with pytest.raises(errors.InvalidRequest) as caught:
            call(kind, gateway, method, "Hi", **fields)
        assert (caught.value.param, bool(caught.value.request_id)) == (param, True)
    with pytest.raises(errors.ModelNotFound):
        call(kind, gateway, "responses", "Hi", model="no-such-model")


@pytest.mark.parametrize("kind", ["sync", "async"])
def test_sdk_embed_2048_texts_have_2048_vectors(gateway: Gateway, provider_a: FakeProvider, kind: str) -> None:
    got = call(kind, gateway, "embed", ["word"] * 2048, model="text-embedding-3-large", dimensions=512)
    assert [vector[0] for vector in got.vectors] == [float(at) for at in range(2048)]
    assert {len(vector) for vector in got.vectors} == {512}
