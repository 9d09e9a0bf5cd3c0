"""openai-python with `/v1/responses`: reasoning, images, custom tools, errors and cancellation, for every upstream."""

from __future__ import annotations

import json
import time
from typing import Any

import openai
import pytest

from tests.e2e.harness import CLAUDE, GPT, LLAMA, Gateway
from tests.e2e.test_responses import EVERY, TOOLS, TRANSLATED, City, scripted
from tests.fakes import anthropic_wire, openai_wire, responses_wire
from tests.fakes.provider import FakeProvider
from tests.fakes.script import Script, answer, sse, stall

ENCRYPTED: list[Any] = ["reasoning.encrypted_content"]
PNG = "data:image/png;base64,iVBORw0KGgo="
MAX_CLOSE_DELAY_SECONDS = 1.0
PATCH_TOOL: dict[str, Any] = {"type": "custom", "name": "apply_patch", "description": "Edits files."}
CRM_TOOLS: dict[str, Any] = {
    "type": "namespace",
    "name": "crm",
    "description": "Customers",
    "tools": [{"type": "function", "name": "find", "parameters": {"type": "object", "properties": {}}}],
}


@pytest.mark.parametrize("stream", [False, True])
def test_reasoning_of_anthropic_is_sent_back_to_it_alone(
    openai_client: openai.OpenAI, fakes: dict[str, FakeProvider], stream: bool
) -> None:
    blocks = [
        anthropic_wire.thinking("Hm.", "c2ln"),
        anthropic_wire.redacted(),
        anthropic_wire.tool_use("t1", "time", "{}"),
    ]
    whole = (
        sse(anthropic_wire.stream(blocks, stop="tool_use")),
        answer(200, anthropic_wire.message(blocks, stop="tool_use")),
    )
    fakes["B"].plays(whole[0] if stream else whole[1], answer(200, anthropic_wire.message("12:00")))
    first: Any = {"model": CLAUDE, "input": "Time?", "tools": TOOLS, "include": ENCRYPTED}
    if stream:
        with openai_client.responses.stream(**first) as opened:
            response = opened.get_final_response()
    else:
        response = openai_client.responses.create(**first)
    assert [item.type for item in response.output] == ["reasoning", "reasoning", "function_call"]
    assert response.output[0].summary[0].text == "Hm."
    result = {"type": "function_call_output", "call_id": "t1", "output": "12:00"}
    conversation: Any = [{"role": "user", "content": "Time?"}, *response.output, result]
    openai_client.responses.create(model=CLAUDE, input=conversation, tools=TOOLS, include=ENCRYPTED)
    assert fakes["B"].wait(2).json["messages"][1]["content"] == blocks
    got = openai_client.responses.with_raw_response.create(model=LLAMA, input=conversation, tools=TOOLS)
    assert "x-svc-dropped" not in got.headers
    assert b"Hm." not in fakes["C"].wait().body
    assert [message["role"] for message in fakes["C"].wait().json["messages"]] == ["user", "assistant", "tool"]


@pytest.mark.parametrize(("letter", "model"), EVERY)
def test_image_reaches_upstream(
    openai_client: openai.OpenAI, fakes: dict[str, FakeProvider], letter: str, model: str
) -> None:
    part = {"type": "input_image", "image_url": PNG, "detail": "low"}
    openai_client.responses.create(model=model, input=[{"role": "user", "content": [part]}])  # type: ignore[list-item,misc]
    sent = fakes[letter].wait().json
    if letter == "A":
        assert sent["input"][0]["content"] == [part]
    elif letter == "B":
        source = {"type": "base64", "media_type": "image/png", "data": "iVBORw0KGgo="}
        assert sent["messages"][0]["content"] == [{"type": "image", "source": source}]
    else:
        assert sent["messages"][0]["content"] == [{"type": "image_url", "image_url": {"url": PNG, "detail": "low"}}]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(("letter", "model"), TRANSLATED)
def test_custom_tool_and_namespace_are_restored(
    openai_client: openai.OpenAI, fakes: dict[str, FakeProvider], letter: str, model: str, stream: bool
) -> None:
    calls = [
        ("call_1", "apply_patch", json.dumps({"input": '*** Begin "Patch"\n'})),
        ("call_2", "crm__find", '{"id":1}'),
    ]
    fakes[letter].plays(scripted(letter, None, tools=calls, stream=stream))
    request: Any = {"model": model, "input": "Fix it", "tools": [PATCH_TOOL, CRM_TOOLS]}
    if stream:
        events = list(openai_client.responses.create(**request, stream=True))
        deltas = [event.delta for event in events if event.type == "response.custom_tool_call_input.delta"]
        assert "".join(deltas) == '*** Begin "Patch"\n'
        assert len(deltas) > 1, "the input is streamed as it arrives"
        response = events[-1].response  # type: ignore[union-attr]
    else:
        response = openai_client.responses.create(**request)
    patch, find = response.output
    assert (patch.type, patch.name, patch.input) == ("custom_tool_call", "apply_patch", '*** Begin "Patch"\n')
    assert (find.type, find.name, find.namespace) == ("function_call", "find", "crm")
    assert json.loads(find.arguments) == {"id": 1}


@pytest.mark.parametrize(("letter", "model"), EVERY)
def test_stream_with_text_format_is_parsed(
    openai_client: openai.OpenAI, fakes: dict[str, FakeProvider], letter: str, model: str
) -> None:
    fakes[letter].plays(scripted(letter, '{"name": "Graz", "people": 305000}', stream=True))
    with openai_client.responses.stream(model=model, input="Graz?", text_format=City) as stream:
        assert stream.get_final_response().output_parsed == City(name="Graz", people=305000)


@pytest.mark.parametrize(("letter", "model"), EVERY)
def test_hosted_tool_that_upstream_lacks_is_left_out_and_named(
    gateway: Gateway, fakes: dict[str, FakeProvider], letter: str, model: str
) -> None:
    tools = [TOOLS[0], {"type": "web_search"}]
    request = {"model": model, "input": "Hi", "tools": tools, "brand_new": 1}
    got = gateway.request("POST", "/v1/responses", request)
    assert got.status == 200
    if letter == "A":
        assert "x-svc-dropped" not in got.headers
        assert fakes["A"].wait().json["tools"] == tools
    else:
        assert got.headers["x-svc-dropped"] == "brand_new,tools[].web_search"
        assert [tool["name"] for tool in got.json["tools"]] == ["weather"]


@pytest.mark.parametrize(("letter", "model"), TRANSLATED)
@pytest.mark.parametrize(
    ("param", "fields"),
    [
        ("background", {"background": True}),
        ("top_logprobs", {"top_logprobs": 3}),
        ("prompt", {"prompt": {"id": "pmpt_1"}}),
        ("tool_choice", {"tools": [{"type": "web_search"}], "tool_choice": {"type": "web_search"}}),
        ("reasoning.effort", {"reasoning": {"effort": 3}}),
        ("input[0].content[0].type", {"input": [{"role": "user", "content": [{"type": "input_audio"}]}]}),
    ],
)
def test_request_that_cannot_be_translated_returns_400_and_sends_nothing(
    openai_client: openai.OpenAI, fakes: dict[str, FakeProvider], letter: str, model: str, param: str, fields: Any
) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        openai_client.responses.create(model=model, **{"input": "Hi", **fields})
    assert (caught.value.code, caught.value.param) == ("invalid_request", param)
    assert fakes[letter].requests == []


def upstream_error(letter: str, status: int) -> Script:
    return answer(status, anthropic_wire.error() if letter == "B" else openai_wire.error())


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(("letter", "model"), EVERY)
def test_errors_have_type_and_code(
    gateway_without_retries: Gateway, fakes: dict[str, FakeProvider], letter: str, model: str, stream: bool
) -> None:
    cases: list[tuple[int, type[openai.APIStatusError], str]] = [
        (400, openai.BadRequestError, "invalid_request"),
        (404, openai.NotFoundError, "model_not_found"),
        (500, openai.InternalServerError, "provider_error"),
    ]
    with gateway_without_retries.openai() as client:
        for status, error_type, code in cases:
            fakes[letter].plays(upstream_error(letter, status))
            with pytest.raises(error_type) as caught:
                client.responses.create(model=model, input="Hi", stream=stream)
            assert caught.value.code == code
            assert caught.value.request_id
        with pytest.raises(openai.NotFoundError):
            client.responses.create(model="no-such-model", input="Hi", stream=stream)
        with pytest.raises(openai.AuthenticationError):
            client.with_options(api_key="wrong").responses.create(model=model, input="Hi", stream=stream)


FIRST_EVENTS = {
    "A": responses_wire.stream("eins zwei")[:5],
    "B": anthropic_wire.stream("eins zwei")[:4],
    "C": openai_wire.stream("eins zwei")[:2],
}


@pytest.mark.parametrize(("letter", "model"), EVERY)
def test_client_leaving_in_mid_stream_closes_upstream(
    gateway: Gateway, openai_client: openai.OpenAI, fakes: dict[str, FakeProvider], letter: str, model: str
) -> None:
    fakes[letter].plays(sse(FIRST_EVENTS[letter], end=stall()))
    with openai_client.responses.create(model=model, input="Hi", stream=True) as stream:
        request_id = stream.response.headers["x-request-id"]
        for event in stream:
            if event.type == "response.output_text.delta":
                break
        left = time.monotonic()
    assert fakes[letter].wait().wait_left() - left < MAX_CLOSE_DELAY_SECONDS
    line = next(line for line in gateway.logged(request_id).splitlines() if request_id in line)
    assert (json.loads(line)["status"], json.loads(line)["endpoint"]) == ("client_closed", "/v1/responses")


def test_responses_of_cache_are_complete(start_gateway: Any, fakes: dict[str, FakeProvider]) -> None:
    gateway = start_gateway(config="[cache]\nenabled = true\n")
    for model in (GPT, CLAUDE, LLAMA):
        request = {"model": model, "input": "Hi", "stream": True, "temperature": 0}
        first, second = (gateway.request("POST", "/v1/responses", request) for _ in range(2))
        assert second.headers["x-svc-cache"] == "hit"
        assert first.body == second.body
        assert b"response.completed" in second.body
