"""Providers A, B and C are the third-party server of llama.cpp, which supports both dialects.

The fakes encode assumptions about providers. These tests check them against an independent implementation.
"""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from svc.gateway.local_model.supervisor import (
    LocalModelSupervisor,
    LocalServerOptions,
    Sampling,
    inference_thread_count,
)
from tests.e2e.harness import CLAUDE, GPT, LLAMA, Gateway
from tests.e2e.reading import complete_chunks, text_of

MODELS = [GPT, CLAUDE, LLAMA]
ASK = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Say hello."}]
ASK_IN_ONE = [{"role": "user", "content": "Say hello."}]
PARAMETERS = {"type": "object", "properties": {"city": {"type": "string", "maxLength": 12}}, "required": ["city"]}
DESCRIPTION = "The weather of a city"


@dataclass
class Server:
    """The address and key of the running model server."""

    address: str
    key: str


@pytest.fixture(scope="module")
def server(model_path: Path) -> Iterator[Server]:
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, name="model")
    thread.start()
    options = LocalServerOptions(
        model="smollm2-135m",
        model_path=str(model_path),
        key="key-of-the-model-server",
        context=8192,
        sampling=Sampling(),
        threads=inference_thread_count(),
    )
    model = LocalModelSupervisor(options)
    try:
        asyncio.run_coroutine_threadsafe(model.start(), loop).result(60)
        assert model.base_url is not None
        yield Server(model.base_url.removesuffix("/v1"), options.key)
    finally:
        asyncio.run_coroutine_threadsafe(model.stop(), loop).result(20)
        loop.call_soon_threadsafe(loop.stop)
        thread.join(5)
        loop.close()


@pytest.fixture(scope="module")
def gateway(server: Server, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    """A gateway whose three providers are that server, B in Anthropic's dialect."""
    environ = {f"PROVIDER_{letter}_BASE_URL": f"{server.address}/v1" for letter in "AC"}
    environ |= {"PROVIDER_B_BASE_URL": server.address}
    environ |= {f"PROVIDER_{letter}_API_KEY": server.key for letter in "ABC"}
    one = Gateway(tmp_path_factory.mktemp("three"), env=environ, is_forked=True).start()
    yield one
    assert one.stop() == 0, one.log
    assert server.key not in one.log
    assert "Traceback" not in one.log


@pytest.mark.parametrize("model", MODELS)
def test_real_model_openai_client_gets_json_response(gateway: Gateway, model: str) -> None:
    with gateway.openai(timeout=60) as client:
        response = client.chat.completions.create(
            model=model, messages=ASK, max_tokens=16, temperature=0.7, top_p=0.9, stop=["###"]
        )
    assert response.choices[0].message.content
    assert response.choices[0].finish_reason in ("stop", "length")
    assert response.usage.total_tokens == response.usage.prompt_tokens + response.usage.completion_tokens
    assert 0 < response.usage.completion_tokens <= 16


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("usage", [True, False])
def test_real_model_openai_client_gets_stream(gateway: Gateway, model: str, usage: bool) -> None:
    options = {"stream_options": {"include_usage": True}} if usage else {}
    with gateway.raw(timeout=60) as raw:
        body = {"model": model, "messages": ASK, "max_tokens": 16, "temperature": 0, "stream": True, **options}
        got = raw.request("POST", "/v1/chat/completions", body, key=gateway.key)
    chunks = complete_chunks(got.body, usage=usage)
    assert text_of(chunks)
    assert len(chunks) > 3


@pytest.mark.parametrize("model", MODELS)
def test_real_model_anthropic_client_gets_json_response(gateway: Gateway, model: str) -> None:
    with gateway.anthropic(timeout=60) as client:
        response = client.messages.create(
            model=model, messages=ASK_IN_ONE, system="Be brief.", max_tokens=16, stop_sequences=["###"]
        )
    assert response.content[0].text
    assert response.stop_reason in ("end_turn", "max_tokens")
    assert response.usage.input_tokens > 0
    assert 0 < response.usage.output_tokens <= 16


@pytest.mark.parametrize("model", MODELS)
def test_real_model_anthropic_client_gets_stream(gateway: Gateway, model: str) -> None:
    with (
        gateway.anthropic(timeout=60) as client,
        client.messages.stream(model=model, messages=ASK_IN_ONE, max_tokens=16) as stream,
    ):
        text = "".join(stream.text_stream)
        final = stream.get_final_message()
    assert text
    assert final.content[0].text == text
    assert final.usage.output_tokens > 0
    assert final.stop_reason in ("end_turn", "max_tokens")


@pytest.mark.parametrize("model", MODELS)
def test_real_model_accepts_tools(gateway: Gateway, model: str) -> None:
    """The model's template has no tools, so it calls none, but the server validates them."""
    tool = {"name": "weather", "description": DESCRIPTION, "parameters": PARAMETERS}
    with gateway.openai(timeout=60) as client:
        response = client.chat.completions.create(
            model=model,
            messages=ASK,
            max_tokens=8,
            tools=[{"type": "function", "function": tool}],
            tool_choice="required",
            parallel_tool_calls=False,
        )
    assert response.choices[0].finish_reason in ("stop", "length", "tool_calls")
    with gateway.anthropic(timeout=60) as client:
        final = client.messages.create(
            model=model,
            messages=ASK_IN_ONE,
            max_tokens=8,
            tools=[{"name": "weather", "description": DESCRIPTION, "input_schema": PARAMETERS}],
            tool_choice={"type": "any"},
        )
    assert final.stop_reason in ("end_turn", "max_tokens", "tool_use")


@pytest.mark.parametrize("model", [GPT, LLAMA])
def test_real_model_structured_output_matches_schema(gateway: Gateway, model: str) -> None:
    schema = {"type": "object", "properties": {"age": {"type": "integer", "maximum": 99}}, "required": ["age"]}
    form = {"type": "json_schema", "json_schema": {"name": "person", "schema": schema, "strict": True}}
    with gateway.openai(timeout=60) as client:
        response = client.chat.completions.create(
            model=model, messages=ASK_IN_ONE, max_tokens=60, temperature=0, response_format=form
        )
    assert isinstance(json.loads(response.choices[0].message.content)["age"], int)


@pytest.mark.parametrize("model", MODELS)
def test_real_model_accepts_tool_result(gateway: Gateway, model: str) -> None:
    call = {"id": "call_1", "type": "function", "function": {"name": "weather", "arguments": '{"city": "Graz"}'}}
    tool = {"name": "weather", "description": DESCRIPTION, "parameters": PARAMETERS}
    turns = [
        {"role": "user", "content": [{"type": "text", "text": "How is the weather in Graz?"}]},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "call_1", "content": "sunny"},
    ]
    with gateway.openai(timeout=60) as client:
        response = client.chat.completions.create(
            model=model,
            messages=turns,
            tools=[{"type": "function", "function": tool}],
            tool_choice="none",
            max_tokens=16,
        )
    assert response.choices[0].finish_reason in ("stop", "length", "tool_calls")


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("stream", [True, False])
def test_real_model_without_image_input_returns_400(gateway: Gateway, model: str, stream: bool) -> None:
    pixel = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
    image = {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{pixel}"}}
    got = gateway.chat(model, messages=[{"role": "user", "content": [image]}], max_tokens=5, stream=stream)
    assert (got.status, got.code) == (400, "invalid_request"), got.body
    assert got.json["error"]["message"] == "This model does not support image input."
    assert got.headers["x-svc-attempts"] == "1"
