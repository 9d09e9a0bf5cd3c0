"""The openai SDK as the client with every kind of upstream: responses, streams, tools, structured output, usage."""

from __future__ import annotations

import json
from typing import Any

import openai
import pydantic
import pytest

from tests.e2e.harness import CLAUDE, GPT, HI, LLAMA, Gateway
from tests.e2e.reading import complete_chunks, finish_of, text_of, tools_of
from tests.fakes import anthropic_wire, openai_wire
from tests.fakes.provider import FakeProvider
from tests.fakes.script import Script, answer, sse

EVERY = [("A", GPT), ("B", CLAUDE), ("C", LLAMA)]
TWO_CALLS = [("call_1", "weather", '{"city": "Graz", "days": 3}'), ("call_2", "time", "{}")]
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": name,
            "description": f"The {name}",
            "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
        },
    }
    for name in ("weather", "time")
]


def scripted_response(
    letter: str, text: str | None, *, tools: list[openai_wire.Tool] | None = None, stream: bool = False
) -> Script:
    """Return the script of a provider's response in its own dialect."""
    calls = tools or []
    if letter == "B":
        blocks = [anthropic_wire.text(text)] if text else []
        blocks += [anthropic_wire.tool_use(*call) for call in calls]
        stop = "tool_use" if calls else "end_turn"
        if stream:
            return sse(anthropic_wire.stream(blocks, stop=stop))
        return answer(200, anthropic_wire.message(blocks, stop=stop))
    if stream:
        return sse(openai_wire.tool_stream(calls) if calls else openai_wire.stream(text or ""))
    return answer(200, openai_wire.chat(text, tools=calls, finish="tool_calls" if calls else "stop"))


@pytest.mark.parametrize(("letter", "model"), EVERY)
def test_chat_json_response_reaches_sdk(
    openai_client: openai.OpenAI, fakes: dict[str, FakeProvider], letter: str, model: str
) -> None:
    fakes[letter].plays(scripted_response(letter, "Servus, Österreich 🦙"))
    got = openai_client.chat.completions.with_raw_response.create(model=model, messages=HI)
    completion = got.parse()
    assert completion.choices[0].message.content == "Servus, Österreich 🦙"
    assert (completion.choices[0].index, completion.choices[0].message.role) == (0, "assistant")
    assert (completion.object, completion.choices[0].finish_reason) == ("chat.completion", "stop")
    assert (completion.usage.prompt_tokens, completion.usage.completion_tokens, completion.usage.total_tokens) == (
        11,
        7,
        18,
    )
    assert got.headers["x-svc-provider"] == {"A": "openai", "B": "anthropic", "C": "groq"}[letter]
    assert got.headers["x-svc-attempts"] == "1"
    assert fakes[letter].wait().json["model"] == model
    assert sum(len(fake.requests) for fake in fakes.values()) == 1


@pytest.mark.parametrize(("letter", "model"), EVERY)
def test_chat_stream_reaches_sdk(
    openai_client: openai.OpenAI, fakes: dict[str, FakeProvider], letter: str, model: str
) -> None:
    fakes[letter].plays(scripted_response(letter, "eins zwei drei", stream=True))
    chunks = list(openai_client.chat.completions.create(model=model, messages=HI, stream=True))
    assert "".join(one.choices[0].delta.content or "" for one in chunks) == "eins zwei drei"
    assert len(chunks) >= 3
    assert chunks[-1].choices[0].finish_reason == "stop"


@pytest.mark.parametrize(("letter", "model"), EVERY)
@pytest.mark.parametrize("usage", [True, False])
def test_chat_stream_usage_is_requested_upstream_and_returned_on_request(
    gateway: Gateway, fakes: dict[str, FakeProvider], letter: str, model: str, usage: bool
) -> None:
    options: dict[str, Any] = {"stream_options": {"include_usage": True}} if usage else {}
    got = gateway.chat(model, stream=True, **options)
    assert got.headers["content-type"].startswith("text/event-stream")
    chunks = complete_chunks(got.body, usage=usage)
    if usage:
        assert chunks[-1]["usage"]["prompt_tokens"] == 11
        assert chunks[-1]["usage"]["completion_tokens"] == 7
    sent = fakes[letter].wait().json
    if letter == "B":
        assert "stream_options" not in sent
    else:
        assert sent["stream_options"] == {"include_usage": True}


@pytest.mark.parametrize(("letter", "model"), EVERY)
def test_chat_two_tool_calls_reach_sdk(
    openai_client: openai.OpenAI, fakes: dict[str, FakeProvider], letter: str, model: str
) -> None:
    fakes[letter].plays(scripted_response(letter, None, tools=TWO_CALLS))
    completion = openai_client.chat.completions.create(model=model, messages=HI, tools=TOOLS)
    assert completion.choices[0].finish_reason == "tool_calls"
    assert [
        (one.id, one.type, one.function.name, json.loads(one.function.arguments))
        for one in completion.choices[0].message.tool_calls
    ] == [
        ("call_1", "function", "weather", {"city": "Graz", "days": 3}),
        ("call_2", "function", "time", {}),
    ]
    sent = fakes[letter].wait().json["tools"]
    assert [(one.get("function") or one)["name"] for one in sent] == ["weather", "time"]


@pytest.mark.parametrize(("letter", "model"), EVERY)
def test_chat_two_tool_calls_in_stream_reach_sdk(
    gateway: Gateway, openai_client: openai.OpenAI, fakes: dict[str, FakeProvider], letter: str, model: str
) -> None:
    fakes[letter].plays(*[scripted_response(letter, None, tools=TWO_CALLS, stream=True)] * 2)
    chunks = complete_chunks(gateway.chat(model, stream=True, tools=TOOLS).body)
    expected = [(one, name, json.loads(arguments)) for one, name, arguments in TWO_CALLS]
    assert [(one, name, json.loads(arguments)) for one, name, arguments in tools_of(chunks)] == expected
    assert finish_of(chunks) == "tool_calls"
    with openai_client.chat.completions.stream(model=model, messages=HI, tools=TOOLS) as stream:
        calls = stream.get_final_completion().choices[0].message.tool_calls
    assert [(one.id, one.function.name, json.loads(one.function.arguments)) for one in calls] == expected


def test_chat_stream_text_before_tool_call_keeps_tool_index(gateway: Gateway, provider_b: FakeProvider) -> None:
    provider_b.plays(scripted_response("B", "Let me see.", tools=TWO_CALLS, stream=True))
    chunks = complete_chunks(gateway.chat(CLAUDE, stream=True, tools=TOOLS).body)
    assert text_of(chunks) == "Let me see."
    assert [name for _, name, _ in tools_of(chunks)] == ["weather", "time"]


@pytest.mark.parametrize(("letter", "model"), EVERY)
def test_chat_tool_results_are_translated(
    gateway: Gateway, fakes: dict[str, FakeProvider], letter: str, model: str
) -> None:
    calls = [
        {"id": one, "type": "function", "function": {"name": name, "arguments": arguments}}
        for one, name, arguments in TWO_CALLS
    ]
    turns = [
        {"role": "system", "content": "Be brief."},
        *HI,
        {"role": "assistant", "content": None, "tool_calls": calls},
        {"role": "tool", "tool_call_id": "call_1", "content": "sunny"},
        {"role": "tool", "tool_call_id": "call_2", "content": "noon"},
    ]
    assert gateway.chat(model, messages=turns, tools=TOOLS).status == 200
    sent = fakes[letter].wait().json
    if letter != "B":
        assert sent["messages"] == turns
        return
    assert "Be brief." in json.dumps(sent["system"])
    assert [turn["role"] for turn in sent["messages"]] == ["user", "assistant", "user"]
    uses = [block for block in sent["messages"][1]["content"] if block["type"] == "tool_use"]
    assert [(one["id"], one["name"], one["input"]) for one in uses] == [
        ("call_1", "weather", {"city": "Graz", "days": 3}),
        ("call_2", "time", {}),
    ]
    assert [one["tool_use_id"] for one in sent["messages"][2]["content"]] == ["call_1", "call_2"]


class City(pydantic.BaseModel):
    name: str
    people: int


@pytest.mark.parametrize(("letter", "model"), EVERY)
def test_chat_structured_output_is_translated(
    openai_client: openai.OpenAI, fakes: dict[str, FakeProvider], letter: str, model: str
) -> None:
    fakes[letter].plays(scripted_response(letter, '{"name": "Graz", "people": 300000}'))
    got = openai_client.chat.completions.parse(model=model, messages=HI, response_format=City)
    assert got.choices[0].message.parsed == City(name="Graz", people=300_000)
    sent = fakes[letter].wait().json
    if letter == "B":
        assert sent["output_config"]["format"]["type"] == "json_schema"
        assert sent["output_config"]["format"]["schema"]["required"] == ["name", "people"]
    else:
        assert sent["response_format"]["json_schema"]["schema"]["required"] == ["name", "people"]


def test_chat_thinking_is_returned_as_reasoning_content(gateway: Gateway, provider_b: FakeProvider) -> None:
    blocks = [anthropic_wire.thinking("Let me think."), anthropic_wire.redacted(), anthropic_wire.text("42")]
    provider_b.plays(answer(200, anthropic_wire.message(blocks)), sse(anthropic_wire.stream(blocks)))
    message = gateway.chat(CLAUDE).json["choices"][0]["message"]
    assert (message["reasoning_content"], message["content"]) == ("Let me think.", "42")
    chunks = complete_chunks(gateway.chat(CLAUDE, stream=True).body)
    thought = "".join(one["choices"][0]["delta"].get("reasoning_content") or "" for one in chunks)
    assert (thought, text_of(chunks)) == ("Let me think.", "42")


@pytest.mark.parametrize(
    ("stop", "finish"),
    [
        ("end_turn", "stop"),
        ("stop_sequence", "stop"),
        ("pause_turn", "stop"),
        ("max_tokens", "length"),
        ("model_context_window_exceeded", "length"),
        ("refusal", "content_filter"),
        ("something_new", "stop"),
    ],
)
def test_chat_stop_reason_of_anthropic_is_mapped_to_finish_reason(
    gateway: Gateway, provider_b: FakeProvider, stop: str, finish: str
) -> None:
    provider_b.plays(answer(200, anthropic_wire.message(stop=stop)), sse(anthropic_wire.stream(stop=stop)))
    assert gateway.chat(CLAUDE).json["choices"][0]["finish_reason"] == finish
    assert finish_of(complete_chunks(gateway.chat(CLAUDE, stream=True).body)) == finish


@pytest.mark.parametrize(
    ("upstream_reason", "finish"), [("model_length", "length"), ("eos", "stop"), ("length", "length")]
)
def test_chat_finish_reason_of_compatible_vendor_is_normalized(
    gateway: Gateway, provider_c: FakeProvider, upstream_reason: str, finish: str
) -> None:
    provider_c.plays(
        answer(200, openai_wire.chat(finish=upstream_reason)), sse(openai_wire.stream(finish=upstream_reason))
    )
    assert gateway.chat(LLAMA).json["choices"][0]["finish_reason"] == finish
    assert finish_of(complete_chunks(gateway.chat(LLAMA, stream=True).body)) == finish


def test_chat_request_to_anthropic_has_required_fields(gateway: Gateway, provider_b: FakeProvider) -> None:
    turns = [
        {"role": "system", "content": "One."},
        {"role": "developer", "content": "Two."},
        {
            "role": "user",
            "content": [
                {"type": "text", "text": "What is it?"},
                {"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBORw0KGgo="}},
                {"type": "image_url", "image_url": {"url": "https://example.com/a.jpg"}},
            ],
        },
    ]
    got = gateway.chat(CLAUDE, messages=turns, temperature=1.7, stop="END", parallel_tool_calls=False, tools=TOOLS)
    assert got.status == 200
    seen = provider_b.wait()
    sent = seen.json
    assert sent["max_tokens"] == 8192
    assert sent["temperature"] == 1
    assert sent["stop_sequences"] == ["END"]
    assert sent["tool_choice"] == {"type": "auto", "disable_parallel_tool_use": True}
    system = sent["system"] if isinstance(sent["system"], str) else "\n".join(one["text"] for one in sent["system"])
    assert system == "One.\nTwo."
    assert [one["source"] for one in sent["messages"][0]["content"] if one["type"] == "image"] == [
        {"type": "base64", "media_type": "image/png", "data": "iVBORw0KGgo="},
        {"type": "url", "url": "https://example.com/a.jpg"},
    ]
    assert seen.headers["x-api-key"] == provider_b.key
    assert seen.headers["anthropic-version"] == "2023-06-01"


@pytest.mark.parametrize("name", ["max_tokens", "max_completion_tokens"])
@pytest.mark.parametrize(("letter", "model"), EVERY)
def test_chat_max_tokens_and_max_completion_tokens_are_forwarded(
    gateway: Gateway, fakes: dict[str, FakeProvider], letter: str, model: str, name: str
) -> None:
    assert gateway.chat(model, **{name: 33}).status == 200
    sent = fakes[letter].wait().json
    assert 33 in (sent.get("max_tokens"), sent.get("max_completion_tokens"))


@pytest.mark.parametrize(
    ("choice", "expected"),
    [
        ("auto", {"type": "auto"}),
        ("required", {"type": "any"}),
        ("none", {"type": "none"}),
        ({"type": "function", "function": {"name": "time"}}, {"type": "tool", "name": "time"}),
    ],
)
def test_chat_tool_choice_is_translated_for_anthropic(
    gateway: Gateway, provider_b: FakeProvider, choice: Any, expected: dict[str, str]
) -> None:
    assert gateway.chat(CLAUDE, tools=TOOLS, tool_choice=choice).status == 200
    assert provider_b.wait().json["tool_choice"] == expected


def test_chat_unknown_fields_are_forwarded_to_same_dialect(gateway: Gateway, provider_a: FakeProvider) -> None:
    assert gateway.chat(GPT, something_new={"a": [1]}, seed=7, logprobs=True, n=2).status == 200
    sent = provider_a.wait().json
    assert (sent["something_new"], sent["seed"], sent["logprobs"], sent["n"]) == ({"a": [1]}, 7, True, 2)


def test_chat_hints_unsupported_by_anthropic_are_dropped_and_named(gateway: Gateway, provider_b: FakeProvider) -> None:
    got = gateway.chat(CLAUDE, seed=7, presence_penalty=0.5, user="u", store=True)
    assert got.status == 200
    dropped = {name.strip() for name in got.headers["x-svc-dropped"].split(",")}
    assert {"seed", "presence_penalty", "store"} <= dropped
    assert "x-svc-dropped" not in gateway.chat(CLAUDE).headers


@pytest.mark.parametrize(("name", "value"), [("logprobs", True), ("logit_bias", {"50256": -100}), ("n", 2)])
def test_chat_field_that_anthropic_cannot_express_returns_400(
    gateway: Gateway, provider_b: FakeProvider, name: str, value: Any
) -> None:
    got = gateway.chat(CLAUDE, **{name: value})
    assert (got.status, got.code) == (400, "invalid_request")
    assert name in (got.json["error"]["param"] or "") or name in got.json["error"]["message"]
    assert provider_b.requests == []


@pytest.mark.parametrize(("name", "value"), [("logprobs", False), ("logit_bias", None), ("n", 1)])
def test_chat_field_at_default_is_omitted_for_anthropic(
    gateway: Gateway, provider_b: FakeProvider, name: str, value: Any
) -> None:
    assert gateway.chat(CLAUDE, **{name: value}).status == 200
    assert name not in provider_b.wait().json


def test_chat_fields_rejected_by_groq_are_not_sent(gateway: Gateway, provider_c: FakeProvider) -> None:
    turns = [{"role": "user", "name": "bob", "content": "Hi"}]
    got = gateway.chat(LLAMA, messages=turns, n=1, temperature=0, seed=3)
    assert got.status == 200
    sent = provider_c.wait().json
    assert "name" not in sent["messages"][0]
    assert sent["seed"] == 3
    assert sent["temperature"] == pytest.approx(1e-8)


def test_chat_cached_tokens_are_part_of_prompt_tokens(gateway: Gateway, provider_b: FakeProvider) -> None:
    usage = {"input_tokens": 5, "cache_creation_input_tokens": 20, "cache_read_input_tokens": 100, "output_tokens": 3}
    provider_b.plays(answer(200, anthropic_wire.message(usage=usage)))
    counted = gateway.chat(CLAUDE).json["usage"]
    assert (counted["prompt_tokens"], counted["completion_tokens"], counted["total_tokens"]) == (125, 3, 128)
    assert counted["prompt_tokens_details"]["cached_tokens"] == 100


def test_chat_stream_usage_of_anthropic_is_cumulative(gateway: Gateway, provider_b: FakeProvider) -> None:
    counts = [{**anthropic_wire.USAGE, "output_tokens": count} for count in (3, 7)]
    middle = anthropic_wire.event("message_delta", delta={"stop_reason": None, "stop_sequence": None}, usage=counts[0])
    events = [
        anthropic_wire.start(),
        *anthropic_wire.block(0, anthropic_wire.text("Hi")),
        middle,
        *anthropic_wire.closing(usage=counts[1]),
    ]
    provider_b.plays(sse(events))
    got = gateway.chat(CLAUDE, stream=True, stream_options={"include_usage": True})
    usage = complete_chunks(got.body, usage=True)[-1]["usage"]
    assert (usage["prompt_tokens"], usage["completion_tokens"]) == (11, 7)


@pytest.mark.parametrize("location", ["x_groq", "last chunk"])
def test_chat_stream_usage_in_nonstandard_place_is_returned(
    gateway: Gateway, provider_c: FakeProvider, location: str
) -> None:
    extra = {"x_groq": {"usage": openai_wire.USAGE}} if location == "x_groq" else {"usage": openai_wire.USAGE}
    events = [
        openai_wire.role(),
        *openai_wire.words("Hi you"),
        openai_wire.chunk({}, "stop", **extra),
        openai_wire.DONE,
    ]
    provider_c.plays(sse(events), sse(events))
    got = gateway.chat(LLAMA, stream=True, stream_options={"include_usage": True})
    assert complete_chunks(got.body, usage=True)[-1]["usage"]["total_tokens"] == 18
    complete_chunks(gateway.chat(LLAMA, stream=True).body, usage=False)
