"""The presets of [[providers]] against the traffic of their vendors, with the deviations that they document.

Bodies follow the vendors' public API references and issue trackers, named at each test.
"""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.accounts.test_keys import until
from tests.e2e.harness import HI, Gateway, run
from tests.e2e.reading import complete_chunks, data_lines, text_of
from tests.fakes import openai_wire
from tests.fakes.http_client import Got
from tests.fakes.openai_wire import DONE, event
from tests.fakes.provider import FakeProvider
from tests.fakes.script import answer, sse
from tests.fakes.vendor_wire import VendorWire

WIRES: Mapping[str, VendorWire] = {
    "azure": VendorWire("/openai/v1/chat/completions", key_header="api-key"),
    "azure-east": VendorWire(
        "/openai/deployments/gpt%204o/chat/completions?api-version=2024-10-21", key_header="api-key"
    ),
    "gemini": VendorWire("/v1beta/openai/chat/completions"),
    "mistral": VendorWire("/v1/chat/completions"),
    "openrouter": VendorWire("/api/v1/chat/completions"),
    "ollama": VendorWire("/v1/chat/completions", key_header=""),
    "vllm": VendorWire("/v1/chat/completions", key_header=""),
}
MODELS = {
    "azure": "azure-gpt-4o",
    "azure-east": "azure-east-gpt-4o",
    "gemini": "gemini-3.8-flash",
    "mistral": "mistral-small-latest",
    "openrouter": "deepseek/deepseek-r1",
    "ollama": "qwen3:8b",
    "vllm": "Qwen/Qwen3-32B",
}
KEYS = {
    "AZURE_OPENAI_API_KEY": "azure-secret",
    "GEMINI_API_KEY": "gemini-secret",
    "MISTRAL_API_KEY": "mistral-secret",
    "OPENROUTER_API_KEY": "openrouter-secret",
}
TOOLS = [{"type": "function", "function": {"name": "get_weather", "parameters": {"type": "object"}}}]
WEATHER = '{"city":"Oslo"}'


@pytest.fixture(scope="module")
def all_vendors() -> Iterator[dict[str, FakeProvider]]:
    with contextlib.ExitStack() as stack:
        keys = {name: KEYS.get(f"{name.upper()}_API_KEY", KEYS["AZURE_OPENAI_API_KEY"]) for name in WIRES}
        yield {name: stack.enter_context(FakeProvider(wire, key=keys[name])) for name, wire in WIRES.items()}


@pytest.fixture(scope="module")
def running(all_vendors: dict[str, FakeProvider], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    """A gateway whose entries have a preset, and the address of a fake in place of the vendor's."""
    at = {name: fake.address for name, fake in all_vendors.items()}
    config = f"""
        [routing]
        retries = 0
        breaker = false

        [[providers]]
        preset = "azure"
        base_url = "{at["azure"]}/"
        models = [{{ id = "{MODELS["azure"]}", upstream_id = "gpt 4o" }}]

        [[providers]]
        preset = "azure"
        name = "azure-east"
        base_url = "{at["azure-east"]}"
        api_version = "2024-10-21"
        models = [{{ id = "{MODELS["azure-east"]}", upstream_id = "gpt 4o" }}]

        [[providers]]
        preset = "gemini"
        base_url = "{at["gemini"]}/v1beta/openai"

        [[providers]]
        preset = "mistral"
        base_url = "{at["mistral"]}/v1"

        [[providers]]
        preset = "openrouter"
        base_url = "{at["openrouter"]}/api/v1"
        models = [{{ id = "{MODELS["openrouter"]}" }}]

        [[providers]]
        preset = "ollama"
        base_url = "{at["ollama"]}/v1"
        models = [{{ id = "{MODELS["ollama"]}" }}]

        [[providers]]
        preset = "vllm"
        base_url = "{at["vllm"]}/v1"
        models = [{{ id = "{MODELS["vllm"]}" }}]
    """
    gateway = Gateway(tmp_path_factory.mktemp("presets"), env=KEYS, config=config, is_forked=True).start()
    yield gateway
    assert gateway.stop() == 0
    assert "Traceback" not in gateway.log
    assert not [key for key in KEYS.values() if key in gateway.log]


@pytest.fixture
def vendors(all_vendors: dict[str, FakeProvider]) -> Iterator[dict[str, FakeProvider]]:
    for fake in all_vendors.values():
        fake.forget()
    yield all_vendors
    assert {name: fake.complaints for name, fake in all_vendors.items() if fake.complaints} == {}


def chunk_of(name: str, delta: dict[str, Any], finish: str | None = None, **more: Any) -> bytes:
    """Return a chunk with the vendor's own fields in place of OpenAI's."""
    choice = {"index": 0, "delta": delta, "finish_reason": finish, **more.pop("choice", {})}
    base = {"id": f"{name}-1", "object": "chat.completion.chunk", "created": 1_757_499_916, "model": name}
    return event({**base, "choices": [choice], **more})


def calls_of(chunks: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the tool calls of a stream, put together by index as clients do."""
    calls: dict[int, dict[str, Any]] = {}
    for chunk in chunks:
        for part in chunk["choices"][0]["delta"].get("tool_calls") or () if chunk["choices"] else ():
            call = calls.setdefault(part["index"], {"arguments": ""})
            call["arguments"] += part["function"].get("arguments", "")
            call |= {key: part[key] for key in ("id", "extra_content") if key in part}
            call |= {"name": part["function"]["name"]} if part["function"].get("name") else {}
    return list(calls.values())


def message_events(got: Got) -> list[dict[str, Any]]:
    return [json.loads(line[6:]) for line in got.body.decode().split("\n") if line.startswith("data: ")]


@pytest.mark.parametrize("name", list(WIRES))
@pytest.mark.parametrize("stream", [False, True])
def test_preset_request_reaches_the_path_of_the_vendor_with_its_key(
    running: Gateway, vendors: dict[str, FakeProvider], name: str, stream: bool
) -> None:
    got = running.chat(MODELS[name], stream=stream, stream_options={"include_usage": True} if stream else None)
    assert (got.status, got.headers["x-svc-provider"]) == (200, name)
    (seen,) = vendors[name].requests
    assert seen.json["model"] == ("gpt 4o" if name.startswith("azure") else MODELS[name])
    if stream:
        complete_chunks(got.body, usage=name != "mistral")
    assert running.message(MODELS[name], stream=stream).status == 200


# Azure: https://learn.microsoft.com/azure/ai-foundry/openai/concepts/content-streaming


@pytest.mark.parametrize("name", ["azure", "azure-east"])
def test_azure_stream_with_filter_results_is_complete_under_one_id(
    running: Gateway, vendors: dict[str, FakeProvider], name: str
) -> None:
    safe = {"hate": {"filtered": False, "severity": "safe"}}
    prompt = [{"prompt_index": 0, "content_filter_results": safe}]
    blank = {"id": "", "object": "", "created": 0, "model": ""}
    first = event({**blank, "choices": [], "prompt_filter_results": prompt})
    offsets = {"check_offset": 4, "start_offset": 0, "end_offset": 9}
    late = {"index": 0, "finish_reason": None, "content_filter_results": safe, "content_filter_offsets": offsets}
    annotation = event({**blank, "choices": [late], "usage": None})
    events = [
        first,
        chunk_of("gpt-4o", {"role": "assistant", "content": "", "refusal": None}),
        chunk_of("gpt-4o", {"content": "Hello "}, choice={"content_filter_results": safe}),
        annotation,
        chunk_of("gpt-4o", {"content": "you."}, choice={"content_filter_results": {}}),
        chunk_of("gpt-4o", {}, "stop"),
        annotation,
        event({**blank, "id": "gpt-4o-1", "choices": [], "usage": openai_wire.USAGE}),
        DONE,
    ]
    vendors[name].plays(sse(events), sse(events))
    chunks = complete_chunks(running.chat(MODELS[name], stream=True).body)
    assert text_of(chunks) == "Hello you."
    assert chunks[0]["id"] == "gpt-4o-1"
    assert [one for one in chunks if one["choices"][0].get("content_filter_results") == safe]
    events_of_message = message_events(running.message(MODELS[name], stream=True))
    assert [one["delta"]["text"] for one in events_of_message if one["type"] == "content_block_delta"] == [
        "Hello ",
        "you.",
    ]


def test_azure_errors_keep_message_and_meaning(running: Gateway, vendors: dict[str, FakeProvider]) -> None:
    filtered = {
        "error": {
            "message": "The response was filtered: the prompt triggered Azure OpenAI's content management policy.",
            "type": None,
            "param": "prompt",
            "code": "content_filter",
            "status": 400,
            "innererror": {
                "code": "ResponsibleAIPolicyViolation",
                "content_filter_result": {"jailbreak": {"filtered": True, "detected": True}},
            },
        }
    }
    missing = {
        "error": {"code": "DeploymentNotFound", "message": "The API deployment for this resource does not exist."}
    }
    limited = {"error": {"code": "429", "message": "Requests to the ChatCompletions_Create Operation have exceeded."}}
    denied = {"statusCode": 401, "message": "Access denied due to invalid subscription key or wrong API endpoint."}
    vendors["azure"].plays(
        answer(400, filtered),
        answer(404, missing),
        answer(429, limited, headers={"retry-after-ms": "6400", "retry-after": "7"}),
        answer(401, denied),
    )
    got = running.chat(MODELS["azure"])
    assert (got.status, got.code) == (400, "invalid_request")
    assert "content management policy" in got.json["error"]["message"]
    got = running.chat(MODELS["azure"])
    assert (got.status, got.code) == (404, "model_not_found")
    assert "deployment" in got.json["error"]["message"]
    got = running.chat(MODELS["azure"])
    assert (got.status, got.code, got.headers["retry-after"]) == (429, "rate_limit_exceeded", "7")
    assert (running.chat(MODELS["azure"]).status, running.chat(MODELS["azure"]).status) == (502, 200)


def test_azure_filtered_completion_has_its_finish_reason(running: Gateway, vendors: dict[str, FakeProvider]) -> None:
    body = openai_wire.chat("", finish="content_filter", prompt_filter_results=[])
    vendors["azure"].plays(answer(200, body))
    got = running.chat(MODELS["azure"])
    assert got.json["choices"][0]["finish_reason"] == "content_filter"
    assert got.json["prompt_filter_results"] == []


# Gemini: https://ai.google.dev/gemini-api/docs/openai, https://ai.google.dev/gemini-api/docs/thought-signatures


def gemini_call(number: int, city: str) -> dict[str, Any]:
    return {
        "extra_content": {"google": {"thought_signature": f"EjQKMgEMOdbH{number}"}},
        "function": {"arguments": json.dumps({"city": city}), "name": "get_weather"},
        "id": f"jm4owj3{number}",
        "type": "function",
    }


def test_gemini_tool_calls_without_index_keep_their_thought_signatures(
    running: Gateway, vendors: dict[str, FakeProvider]
) -> None:
    gemini = vendors["gemini"]
    calls = [gemini_call(1, "Oslo"), gemini_call(2, "Rom")]
    events = [
        chunk_of("gemini", {"role": "assistant", "tool_calls": [calls[0]]}),
        chunk_of("gemini", {"role": "assistant", "tool_calls": [calls[1]]}, "stop"),
        DONE,
    ]
    gemini.plays(sse(events), sse(events))
    chunks = complete_chunks(running.chat(MODELS["gemini"], stream=True, tools=TOOLS).body)
    found = calls_of(chunks)
    assert [call["arguments"] for call in found] == ['{"city": "Oslo"}', '{"city": "Rom"}']
    assert [call["extra_content"] for call in found] == [call["extra_content"] for call in calls]
    events_of_message = message_events(running.message(MODELS["gemini"], stream=True))
    assert [one["delta"]["stop_reason"] for one in events_of_message if one["type"] == "message_delta"] == ["tool_use"]

    history = [
        *HI,
        {"role": "assistant", "tool_calls": calls},
        {"role": "tool", "tool_call_id": "jm4owj31", "content": ""},
    ]
    assert running.chat(MODELS["gemini"], messages=history).status == 200
    assert gemini.requests[-1].json["messages"][1]["tool_calls"] == calls


def test_gemini_calls_without_a_signature_get_the_one_that_turns_the_check_off(
    running: Gateway, vendors: dict[str, FakeProvider]
) -> None:
    signature = {"google": {"thought_signature": "skip_thought_signature_validator"}}
    plain = [{key: value for key, value in gemini_call(n, "Oslo").items() if key != "extra_content"} for n in (1, 2)]
    signed = [gemini_call(3, "Oslo"), {**plain[1], "id": "x"}]
    history = [
        *HI,
        {"role": "assistant", "tool_calls": plain},
        {"role": "assistant", "tool_calls": signed},
    ]
    assert running.chat(MODELS["gemini"], messages=history).status == 200
    sent = vendors["gemini"].requests[0].json["messages"]
    assert sent[1]["tool_calls"] == [{**plain[0], "extra_content": signature}, plain[1]]
    assert sent[2]["tool_calls"] == signed

    use = {"type": "tool_use", "id": "call_1", "name": "get_weather", "input": {}}
    result = {"type": "tool_result", "tool_use_id": "call_1", "content": "Sun"}
    turns = [*HI, {"role": "assistant", "content": [use]}, {"role": "user", "content": [result]}]
    assert running.message(MODELS["gemini"], messages=turns).status == 200
    (call,) = vendors["gemini"].requests[1].json["messages"][1]["tool_calls"]
    assert call["extra_content"] == signature


def test_gemini_unknown_fields_are_left_out_and_named(running: Gateway, vendors: dict[str, FakeProvider]) -> None:
    got = running.chat(MODELS["gemini"], seed=1, frequency_penalty=0.5, store=False, user="u", presence_penalty=0.5)
    assert got.status == 200
    assert set(got.headers["x-svc-dropped"].split(",")) == {"seed", "frequency_penalty", "store", "user"}
    sent = vendors["gemini"].requests[0].json
    assert sent.keys() == {"model", "messages", "presence_penalty"}


OPENAI_FIELDS: Any = {"refusal": None, "annotations": [], "audio": None}
"""Fields of OpenAI's messages, which clients send back."""


def test_gemini_message_of_other_provider_has_only_known_fields(
    running: Gateway, vendors: dict[str, FakeProvider]
) -> None:
    """Gemini rejects unknown names, and `refusal` that is null (github.com/github/copilot-sdk/issues/2061)."""
    thinking = {"index": 0, "type": "thinking", "thinking": "Greet.", "signature": "c2ln"}
    turn = {"role": "assistant", "content": "Hello", **OPENAI_FIELDS, "reasoning_content": "Greet."}
    got = running.chat(MODELS["gemini"], messages=[*HI, {**turn, "thinking_blocks": [thinking]}, *HI])
    assert got.status == 200
    assert vendors["gemini"].requests[0].json["messages"] == [*HI, {"role": "assistant", "content": "Hello"}, *HI]


def test_gemini_error_is_an_array(running: Gateway, vendors: dict[str, FakeProvider]) -> None:
    text = 'Invalid JSON payload received. Unknown name "reasoning": Cannot find field.'
    body = json.dumps([{"error": {"code": 400, "message": text, "status": "INVALID_ARGUMENT"}}]).encode()
    quota = [{"error": {"code": 429, "message": "You exceeded your current quota.", "status": "RESOURCE_EXHAUSTED"}}]
    vendors["gemini"].plays(answer(400, body), answer(429, json.dumps(quota).encode()))
    got = running.chat(MODELS["gemini"])
    assert (got.status, got.json["error"]["message"]) == (400, text)
    assert running.chat(MODELS["gemini"]).status == 429


def test_gemini_response_without_usage_or_id_is_counted(running: Gateway, vendors: dict[str, FakeProvider]) -> None:
    body = openai_wire.chat("Hi there", id=None, usage=None)
    events = [
        chunk_of("gemini", {"role": "assistant", "content": "Hi"}, id=None),
        chunk_of("gemini", {"role": "assistant", "content": " you"}, "stop", id=None),
        DONE,
    ]
    vendors["gemini"].plays(answer(200, body), sse(events))
    got = running.chat(MODELS["gemini"])
    assert got.json["id"].startswith("chatcmpl-")
    streamed = running.chat(MODELS["gemini"], stream=True)
    assert text_of(complete_chunks(streamed.body)) == "Hi you"
    request_ids = {got.headers["x-request-id"], streamed.headers["x-request-id"]}

    def entries() -> list[dict[str, Any]]:
        listed = running.request("GET", "/v1/usage?limit=1000").json["data"]
        return [entry for entry in listed if entry["request_id"] in request_ids]

    until(lambda: len(entries()) == 2, 20)
    for entry in entries():
        assert (entry["provider"], entry["estimated"]) == ("gemini", True)
        assert entry["prompt_tokens"] > 0
        assert entry["completion_tokens"] > 0


# Mistral: https://docs.mistral.ai/api


def test_mistral_request_has_only_known_fields(running: Gateway, vendors: dict[str, FakeProvider]) -> None:
    messages = [
        {"role": "user", "name": "ann", "content": "Hi"},
        {"role": "assistant", "content": "Hello", "reasoning_content": "Greet.", **OPENAI_FIELDS},
        {"role": "user", "content": "Bye"},
    ]
    fields = {"max_completion_tokens": 9, "seed": 7, "user": "u", "store": False, "frequency_penalty": 0.1}
    options = {"stream": True, "stream_options": {"include_usage": True}}
    usage = {"prompt_tokens": 5, "total_tokens": 7, "completion_tokens": 2}
    vendors["mistral"].plays(
        sse(
            [
                chunk_of("mistral", {"role": "assistant", "content": ""}),
                chunk_of("mistral", {"content": "Bye."}),
                chunk_of("mistral", {"content": ""}, "stop", usage=usage),
                DONE,
            ]
        )
    )
    got = running.chat(MODELS["mistral"], messages=messages, **fields, **options)
    chunks = complete_chunks(got.body, usage=True)
    assert chunks[-1]["usage"]["total_tokens"] == 7
    sent = vendors["mistral"].requests[0].json
    assert sent.keys() == {"model", "messages", "max_tokens", "random_seed", "frequency_penalty", "stream"}
    assert [sorted(message) for message in sent["messages"]] == [["content", "role"]] * 3
    assert "messages[].name" in got.headers["x-svc-dropped"]


def test_mistral_tool_call_of_gemini_has_only_known_fields(running: Gateway, vendors: dict[str, FakeProvider]) -> None:
    """Mistral rejects other fields of tool calls (github.com/zeroclaw-labs/zeroclaw/issues/2693)."""
    call = {"id": SHORT_ID, "type": "function", "function": {"name": "get_weather", "arguments": WEATHER}}
    signed = {**call, "extra_content": {"google": {"thought_signature": "c2ln"}}}
    result = {"role": "tool", "tool_call_id": SHORT_ID, "content": "Rain"}
    messages = [*HI, {"role": "assistant", "content": None, "tool_calls": [signed]}, result]
    assert running.chat(MODELS["mistral"], messages=messages, tools=TOOLS).status == 200
    assert vendors["mistral"].requests[0].json["messages"][1]["tool_calls"] == [call]


SHORT_ID = "a1B2c3D4e"


def ids_of(request: dict[str, Any]) -> list[tuple[str, str]]:
    """Return the id of each tool call of a request, with the id of its result."""
    calls = [call["id"] for message in request["messages"] for call in message.get("tool_calls", ())]
    results = [message["tool_call_id"] for message in request["messages"] if message["role"] == "tool"]
    return list(zip(calls, results, strict=True))


@pytest.mark.parametrize("call_id", ["call_PTLP8xhu3uwZk4l3nlnrrJha", "toolu_1", "tooluse_9", "functions.f:0"])
def test_mistral_ids_of_calls_of_other_providers_are_short(
    running: Gateway, vendors: dict[str, FakeProvider], call_id: str
) -> None:
    """Mistral accepts 9 letters or digits: "Tool call id was ... but must be a-z, A-Z, 0-9, with a length of 9."."""
    function = {"name": "get_weather", "arguments": WEATHER}
    calls = [{"id": one, "type": "function", "function": function} for one in (call_id, SHORT_ID)]
    results = [{"role": "tool", "tool_call_id": one, "content": "Rain"} for one in (call_id, SHORT_ID)]
    messages = [*HI, {"role": "assistant", "content": None, "tool_calls": calls}, *results]
    assert running.chat(MODELS["mistral"], messages=messages, tools=TOOLS).status == 200
    (first, second) = ids_of(vendors["mistral"].requests[0].json)
    assert re.fullmatch("[a-zA-Z0-9]{9}", first[0])
    assert first[0] == first[1] != SHORT_ID
    assert second == (SHORT_ID, SHORT_ID)


def test_mistral_ids_of_calls_of_an_anthropic_client_are_short(
    running: Gateway, vendors: dict[str, FakeProvider]
) -> None:
    used = {"type": "tool_use", "id": "toolu_01A09q90qw90lq917835lq9", "name": "get_weather", "input": {}}
    result = {"type": "tool_result", "tool_use_id": used["id"], "content": "Rain"}
    messages = [*HI, {"role": "assistant", "content": [used]}, {"role": "user", "content": [result]}]
    assert running.message(MODELS["mistral"], messages=messages).status == 200
    ((call, answered),) = ids_of(vendors["mistral"].requests[0].json)
    assert call == answered
    assert re.fullmatch("[a-zA-Z0-9]{9}", call)


@pytest.mark.parametrize("nested", [True, False])
def test_mistral_validation_error_is_a_400_with_its_text(
    running: Gateway, vendors: dict[str, FakeProvider], nested: bool
) -> None:
    detail = [{"type": "extra_forbidden", "loc": ["body", "foo"], "msg": "Extra inputs are not permitted", "input": 1}]
    body = {"object": "error", "message": {"detail": detail} if nested else detail, "type": "invalid_request_error"}
    vendors["mistral"].plays(answer(422, {**body, "param": None, "code": None}))
    got = running.chat(MODELS["mistral"], foo=1)
    assert (got.status, got.code) == (400, "invalid_request")
    assert "Extra inputs are not permitted" in got.json["error"]["message"]


def test_mistral_thinking_parts_and_calls_without_type(running: Gateway, vendors: dict[str, FakeProvider]) -> None:
    thinking = {"content": [{"type": "thinking", "thinking": [{"type": "text", "text": "Look up."}]}]}
    call = {"id": "D681PevKs", "function": {"name": "get_weather", "arguments": WEATHER}, "index": 0}
    events = [
        chunk_of("mistral", {"role": "assistant", "content": ""}),
        chunk_of("mistral", thinking),
        chunk_of("mistral", {"content": "", "tool_calls": [call]}, "tool_calls", usage=openai_wire.USAGE),
        DONE,
    ]
    vendors["mistral"].plays(sse(events))
    chunks = complete_chunks(running.chat(MODELS["mistral"], stream=True, tools=TOOLS).body)
    assert "".join(one["choices"][0]["delta"].get("reasoning_content", "") for one in chunks) == "Look up."
    assert calls_of(chunks) == [{"arguments": WEATHER, "id": "D681PevKs", "name": "get_weather"}]


def test_mistral_length_of_the_model_is_length(running: Gateway, vendors: dict[str, FakeProvider]) -> None:
    vendors["mistral"].plays(answer(200, openai_wire.chat("Hi", finish="model_length")))
    assert running.chat(MODELS["mistral"]).json["choices"][0]["finish_reason"] == "length"


# OpenRouter: https://openrouter.ai/docs/api-reference/streaming, https://openrouter.ai/docs/api/reference/errors-and-debugging


def test_openrouter_comments_and_reasoning(running: Gateway, vendors: dict[str, FakeProvider]) -> None:
    comment = b": OPENROUTER PROCESSING\n\n"
    own = {"provider": "DeepInfra", "choice": {"native_finish_reason": None, "logprobs": None}}
    events = [
        comment,
        comment,
        chunk_of("deepseek/deepseek-r1", {"role": "assistant", "content": "", "reasoning": "Hm."}, **own),
        comment,
        chunk_of("deepseek/deepseek-r1", {"role": "assistant", "content": "Hi"}, **own),
        chunk_of("deepseek/deepseek-r1", {"role": "assistant", "content": ""}, "stop", provider="DeepInfra"),
        event({**json.loads(chunk_of("deepseek/deepseek-r1", {})[6:]), "choices": [], "usage": openai_wire.USAGE}),
        DONE,
    ]
    vendors["openrouter"].plays(sse(events, split_at=13), sse(events))
    chunks = complete_chunks(running.chat(MODELS["openrouter"], stream=True).body)
    assert text_of(chunks) == "Hi"
    assert chunks[0]["choices"][0]["delta"]["reasoning"] == "Hm."
    blocks = [one for one in message_events(running.message(MODELS["openrouter"], stream=True)) if "delta" in one]
    assert blocks[0]["delta"]["thinking"] == "Hm."


def test_openrouter_error_in_the_middle_of_a_stream_is_an_error(
    running: Gateway, vendors: dict[str, FakeProvider]
) -> None:
    failed = {"code": "server_error", "message": "Provider disconnected unexpectedly"}
    events = [
        chunk_of("deepseek/deepseek-r1", {"role": "assistant", "content": "Hi"}),
        chunk_of("deepseek/deepseek-r1", {"content": ""}, "error", error=failed),
        DONE,
    ]
    vendors["openrouter"].plays(sse(events), sse(events))
    lines = data_lines(running.chat(MODELS["openrouter"], stream=True).body)
    assert "Provider disconnected unexpectedly" in json.loads(lines[-1])["error"]["message"]
    assert message_events(running.message(MODELS["openrouter"], stream=True))[-1]["type"] == "error"


def test_openrouter_status_200_with_an_error_is_an_error(running: Gateway, vendors: dict[str, FakeProvider]) -> None:
    metadata = {"provider_name": "DeepInfra", "raw": "…"}
    vendors["openrouter"].plays(
        answer(200, {"error": {"code": 502, "message": "Provider returned error", "metadata": metadata}}),
        answer(402, {"error": {"code": 402, "message": "Insufficient credits."}}),
        answer(404, {"error": {"code": 404, "message": "No endpoints found that support image input"}}),
    )
    assert running.chat(MODELS["openrouter"]).status == 502
    assert running.chat(MODELS["openrouter"]).status == 502
    assert running.chat(MODELS["openrouter"]).status == 400


# Ollama: https://docs.ollama.com/api/openai-compatibility, https://github.com/ollama/ollama/issues/15457


def test_ollama_tool_calls_with_the_same_index_are_separate(running: Gateway, vendors: dict[str, FakeProvider]) -> None:
    events = [
        chunk_of(
            "qwen3:8b",
            {
                "role": "assistant",
                "content": "",
                "tool_calls": [
                    {
                        "id": f"call_{number}",
                        "index": 0,
                        "type": "function",
                        "function": {"name": "get_weather", "arguments": json.dumps({"city": city})},
                    }
                ],
            },
            system_fingerprint="fp_ollama",
        )
        for number, city in enumerate(("Oslo", "Rom"))
    ]
    events += [chunk_of("qwen3:8b", {"role": "assistant", "content": ""}, "tool_calls"), DONE]
    vendors["ollama"].plays(sse(events))
    calls = calls_of(complete_chunks(running.chat(MODELS["ollama"], stream=True, tools=TOOLS).body))
    assert [(call["id"], call["arguments"]) for call in calls] == [
        ("call_0", '{"city": "Oslo"}'),
        ("call_1", '{"city": "Rom"}'),
    ]


@pytest.mark.parametrize(("reason", "expected"), [("load", "stop"), ("unload", "stop"), ("length", "length")])
def test_ollama_done_reasons_become_finish_reasons(
    running: Gateway, vendors: dict[str, FakeProvider], reason: str, expected: str
) -> None:
    events = [chunk_of("qwen3:8b", {"role": "assistant", "content": "", "reasoning": ""}, reason), DONE]
    vendors["ollama"].plays(sse(events), answer(200, openai_wire.chat("", finish=reason)))
    chunks = complete_chunks(running.chat(MODELS["ollama"], stream=True).body)
    assert chunks[-1]["choices"][0]["finish_reason"] == expected
    assert running.chat(MODELS["ollama"]).json["choices"][0]["finish_reason"] == expected


def test_ollama_unknown_model_is_404(running: Gateway, vendors: dict[str, FakeProvider]) -> None:
    body = {"error": {"message": 'model "qwen3:8b" not found', "type": "not_found_error", "param": None, "code": None}}
    vendors["ollama"].plays(answer(404, body))
    got = running.chat(MODELS["ollama"])
    assert (got.status, got.code) == (404, "model_not_found")
    assert 'model "qwen3:8b" not found' in got.json["error"]["message"]


# vLLM: https://docs.vllm.ai/en/stable/serving/openai_compatible_server.html, features/reasoning_outputs


@pytest.mark.parametrize("field", ["reasoning_content", "reasoning"])
def test_vllm_reasoning_reaches_clients_of_both_dialects(
    running: Gateway, vendors: dict[str, FakeProvider], field: str
) -> None:
    own = {"prompt_token_ids": None, "choice": {"stop_reason": None, "token_ids": None, "logprobs": None}}
    events = [
        chunk_of("qwen", {"role": "assistant", "content": ""}, **own),
        chunk_of("qwen", {field: "Think"}, choice={"token_ids": None}),
        chunk_of("qwen", {field: " hard."}, choice={"token_ids": None}),
        chunk_of("qwen", {"content": "Hi"}, choice={"token_ids": None}),
        chunk_of("qwen", {"content": ""}, "stop", choice={"stop_reason": None}),
        DONE,
    ]
    vendors["vllm"].plays(sse(events), sse(events))
    chunks = complete_chunks(running.chat(MODELS["vllm"], stream=True).body)
    assert "".join(one["choices"][0]["delta"].get(field, "") for one in chunks) == "Think hard."
    deltas = [one["delta"] for one in message_events(running.message(MODELS["vllm"], stream=True)) if "delta" in one]
    assert "".join(delta.get("thinking", "") for delta in deltas) == "Think hard."


def test_vllm_extra_fields_and_errors_pass(running: Gateway, vendors: dict[str, FakeProvider]) -> None:
    text = "This model's maximum context length is 1024 tokens. However, you requested 1029 tokens."
    error = {"object": "error", "message": text, "type": "BadRequestError", "param": None, "code": 400}
    vendors["vllm"].plays(
        answer(200, openai_wire.chat("Hi")),
        answer(400, error),
        answer(400, {"error": {"message": text, "type": "BadRequestError", "param": None, "code": 400}}),
        sse([openai_wire.role(), event(error), DONE]),
    )
    extra = {"min_tokens": 5, "top_k": 20, "chat_template_kwargs": {"enable_thinking": False}}
    assert running.chat(MODELS["vllm"], **extra).status == 200
    assert vendors["vllm"].requests[0].json.items() >= extra.items()
    for _ in range(2):
        got = running.chat(MODELS["vllm"])
        assert (got.status, got.json["error"]["message"]) == (400, text)
    lines = data_lines(running.chat(MODELS["vllm"], stream=True).body)
    assert text in json.loads(lines[-1])["error"]["message"]


def test_doctor_lists_the_models_of_each_preset_with_its_key(
    running: Gateway, vendors: dict[str, FakeProvider], tmp_path: Path
) -> None:
    done = run("doctor", "--json", "--config", str(running.home / "given.toml"), home=tmp_path, env=KEYS)
    states = {one["what"]: (one["state"], one["says"]) for one in json.loads(done.stdout)}
    counts = {"gemini": "4 models", "mistral": "5 models"}
    for name in WIRES:
        assert states[f"provider {name}"] == ("ok", f"{counts.get(name, '1 model')}, reachable")
    paths = {name: [seen.path for seen in fake.requests] for name, fake in vendors.items()}
    assert paths == {
        "azure": ["/openai/v1/models"],
        "azure-east": ["/openai/models?api-version=2024-10-21"],
        "gemini": ["/v1beta/openai/models"],
        "mistral": ["/v1/models"],
        "openrouter": ["/api/v1/models"],
        "ollama": ["/v1/models"],
        "vllm": ["/v1/models"],
    }


def test_doctor_names_the_missing_variables_of_presets(running: Gateway, tmp_path: Path) -> None:
    done = run("doctor", "--config", str(running.home / "given.toml"), home=tmp_path)
    for variable in KEYS:
        assert f"set {variable}" in done.stdout
