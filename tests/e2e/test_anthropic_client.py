"""`POST /v1/messages` with the anthropic SDK as the client and every kind of upstream."""

from __future__ import annotations

import json

import anthropic
import pytest

from svc.dialects.tool_names import shorten_tool_name
from tests.e2e.harness import CLAUDE, GPT, HI, LLAMA, Gateway
from tests.e2e.test_openai_client import EVERY, TWO_CALLS, scripted_response
from tests.fakes import anthropic_wire, openai_wire
from tests.fakes.provider import FakeProvider
from tests.fakes.script import answer, sse

TOOLS = [
    {"name": name, "description": f"The {name}", "input_schema": {"type": "object", "properties": {}}}
    for name in ("weather", "time")
]


@pytest.mark.parametrize(("letter", "model"), EVERY)
def test_messages_json_response_in_anthropic_format(
    anthropic_client: anthropic.Anthropic, fakes: dict[str, FakeProvider], letter: str, model: str
) -> None:
    fakes[letter].plays(scripted_response(letter, "Servus 🦙"))
    message = anthropic_client.messages.create(model=model, max_tokens=50, messages=HI, system="Be brief.")
    assert (message.type, message.role, message.stop_reason) == ("message", "assistant", "end_turn")
    assert [(one.type, one.text) for one in message.content] == [("text", "Servus 🦙")]
    assert message.usage.output_tokens == 7
    sent = fakes[letter].wait().json
    if letter == "B":
        assert sent["system"] == "Be brief."
        assert sent["max_tokens"] == 50
    else:
        assert [turn["role"] for turn in sent["messages"]] == ["system", "user"]
        assert 50 in (sent.get("max_tokens"), sent.get("max_completion_tokens"))


@pytest.mark.parametrize(("letter", "model"), EVERY)
def test_messages_stream_text_and_usage_reach_sdk(
    anthropic_client: anthropic.Anthropic, fakes: dict[str, FakeProvider], letter: str, model: str
) -> None:
    fakes[letter].plays(scripted_response(letter, "eins zwei drei", stream=True))
    with anthropic_client.messages.stream(model=model, max_tokens=50, messages=HI) as stream:
        chunks = list(stream.text_stream)
        final = stream.get_final_message()
    assert "".join(chunks) == "eins zwei drei"
    assert len(chunks) >= 3
    assert final.stop_reason == "end_turn"
    assert (final.usage.output_tokens, final.content[0].text) == (7, "eins zwei drei")


@pytest.mark.parametrize(("letter", "model"), EVERY)
def test_messages_stream_events_are_in_documented_order(
    gateway: Gateway, fakes: dict[str, FakeProvider], letter: str, model: str
) -> None:
    fakes[letter].plays(scripted_response(letter, "eins zwei", stream=True))
    got = gateway.message(model, stream=True)
    assert got.headers["content-type"].startswith("text/event-stream")
    names = []
    for event in filter(None, got.body.decode().split("\n\n")):
        lines = [line for line in event.split("\n") if not line.startswith(":")]
        if not lines:
            continue
        name, data = lines[0].removeprefix("event: "), json.loads(lines[1].removeprefix("data: "))
        assert data["type"] == name
        if name != "ping":
            names.append(name)
    assert names[:2] == ["message_start", "content_block_start"]
    assert names[-3:] == ["content_block_stop", "message_delta", "message_stop"]
    assert set(names[2:-3]) == {"content_block_delta"}


@pytest.mark.parametrize(("letter", "model"), EVERY)
@pytest.mark.parametrize("stream", [True, False])
def test_messages_two_tool_calls_reach_sdk(
    anthropic_client: anthropic.Anthropic, fakes: dict[str, FakeProvider], letter: str, model: str, stream: bool
) -> None:
    fakes[letter].plays(scripted_response(letter, None, tools=TWO_CALLS, stream=stream))
    request = {"model": model, "max_tokens": 50, "messages": HI, "tools": TOOLS}
    if stream:
        with anthropic_client.messages.stream(**request) as events:
            final = events.get_final_message()
    else:
        final = anthropic_client.messages.create(**request)
    assert final.stop_reason == "tool_use"
    assert [(one.type, one.id, one.name, one.input) for one in final.content] == [
        ("tool_use", "call_1", "weather", {"city": "Graz", "days": 3}),
        ("tool_use", "call_2", "time", {}),
    ]


@pytest.mark.parametrize("stream", [True, False])
def test_messages_long_tool_names_are_shortened_for_openai_upstream_and_restored(
    anthropic_client: anthropic.Anthropic, provider_a: FakeProvider, stream: bool
) -> None:
    names = [f"mcp__{'company_knowledge_' * 5}__{verb}_documents" for verb in ("search", "delete")]
    tools = [{**TOOLS[0], "name": name} for name in (*names, "time")]
    turns = [
        *HI,
        {"role": "assistant", "content": [{"type": "tool_use", "id": "toolu_1", "name": names[1], "input": {}}]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "toolu_1", "content": "done"}]},
    ]
    short = [shorten_tool_name(name) for name in names]
    assert len(set(short)) == 2
    assert all(len(name) == 64 for name in short)
    calls = [("call_1", short[0], "{}"), ("call_2", "time", "{}")]
    provider_a.plays(scripted_response("A", None, tools=calls, stream=stream))
    request = {"model": GPT, "max_tokens": 50, "messages": turns, "tools": tools}
    request["tool_choice"] = {"type": "tool", "name": names[0]}
    if stream:
        with anthropic_client.messages.stream(**request) as events:
            final = events.get_final_message()
    else:
        final = anthropic_client.messages.create(**request)
    assert [(one.type, one.name) for one in final.content] == [("tool_use", names[0]), ("tool_use", "time")]
    sent = provider_a.wait().json
    assert [one["function"]["name"] for one in sent["tools"]] == [*short, "time"]
    assert sent["tool_choice"]["function"]["name"] == short[0]
    assert sent["messages"][1]["tool_calls"][0]["function"]["name"] == short[1]


def test_messages_tool_results_are_translated_for_openai_upstream(gateway: Gateway, provider_a: FakeProvider) -> None:
    turns = [
        *HI,
        {
            "role": "assistant",
            "content": [
                {"type": "text", "text": "Let me see."},
                {"type": "tool_use", "id": "toolu_1", "name": "weather", "input": {"city": "Graz"}},
                {"type": "tool_use", "id": "toolu_2", "name": "time", "input": {}},
            ],
        },
        {
            "role": "user",
            "content": [
                {"type": "tool_result", "tool_use_id": "toolu_1", "content": "sunny"},
                {"type": "tool_result", "tool_use_id": "toolu_2", "content": [{"type": "text", "text": "noon"}]},
                {"type": "text", "text": "So?"},
            ],
        },
    ]
    assert gateway.message(GPT, messages=turns, tools=TOOLS, tool_choice={"type": "any"}).status == 200
    sent = provider_a.wait().json
    assert [turn["role"] for turn in sent["messages"]] == ["user", "assistant", "tool", "tool", "user"]
    calls = sent["messages"][1]["tool_calls"]
    assert [(one["id"], json.loads(one["function"]["arguments"])) for one in calls] == [
        ("toolu_1", {"city": "Graz"}),
        ("toolu_2", {}),
    ]
    assert [turn["tool_call_id"] for turn in sent["messages"][2:4]] == ["toolu_1", "toolu_2"]
    assert sent["tool_choice"] == "required"
    assert [one["function"]["name"] for one in sent["tools"]] == ["weather", "time"]


@pytest.mark.parametrize(
    ("finish", "stop"),
    [("stop", "end_turn"), ("length", "max_tokens"), ("tool_calls", "tool_use"), ("content_filter", "refusal")],
)
def test_messages_finish_reason_is_translated_to_stop_reason(
    gateway: Gateway, provider_a: FakeProvider, finish: str, stop: str
) -> None:
    tools = TWO_CALLS if finish == "tool_calls" else []
    provider_a.plays(answer(200, openai_wire.chat("Hi", tools=tools, finish=finish)))
    assert gateway.message(GPT).json["stop_reason"] == stop


def test_messages_thinking_signature_is_forwarded_to_anthropic_client(
    anthropic_client: anthropic.Anthropic, provider_b: FakeProvider
) -> None:
    blocks = [anthropic_wire.thinking("Hm.", "c2lnbmVk"), anthropic_wire.text("42")]
    provider_b.plays(sse(anthropic_wire.stream(blocks)))
    with anthropic_client.messages.stream(
        model=CLAUDE, max_tokens=4000, messages=HI, thinking={"type": "enabled", "budget_tokens": 2000}
    ) as stream:
        final = stream.get_final_message()
    assert [(one.type, getattr(one, "signature", None)) for one in final.content] == [
        ("thinking", "c2lnbmVk"),
        ("text", None),
    ]
    assert provider_b.wait().json["thinking"] == {"type": "enabled", "budget_tokens": 2000}


@pytest.mark.parametrize("header", ["x-api-key", "authorization"])
def test_messages_key_as_x_api_key_or_bearer_returns_200(gateway: Gateway, header: str) -> None:
    value = gateway.key if header == "x-api-key" else f"Bearer {gateway.key}"
    request = {"model": CLAUDE, "max_tokens": 9, "messages": HI}
    assert gateway.request("POST", "/v1/messages", request, key=None, headers={header: value}).status == 200


def test_client_key_is_never_sent_upstream(gateway: Gateway, fakes: dict[str, FakeProvider]) -> None:
    for model in (GPT, CLAUDE, LLAMA):
        assert gateway.message(model).status == 200
        assert gateway.chat(model).status == 200
    for fake in fakes.values():
        for seen in fake.requests:
            assert gateway.key not in str(seen.header_list)


def error_class(status: int) -> type[anthropic.APIStatusError]:
    return {
        400: anthropic.BadRequestError,
        401: anthropic.AuthenticationError,
        404: anthropic.NotFoundError,
        429: anthropic.RateLimitError,
        502: anthropic.InternalServerError,
    }[status]


@pytest.mark.parametrize(("letter", "model"), [("A", GPT), ("B", CLAUDE)])
@pytest.mark.parametrize(
    ("upstream", "status", "kind"),
    [
        (400, 400, "invalid_request_error"),
        (404, 404, "not_found_error"),
        (401, 502, "api_error"),
        (429, 429, "rate_limit_error"),
    ],
)
def test_messages_upstream_error_has_anthropic_format(
    anthropic_client: anthropic.Anthropic,
    fakes: dict[str, FakeProvider],
    letter: str,
    model: str,
    upstream: int,
    status: int,
    kind: str,
) -> None:
    body = anthropic_wire.error() if letter == "B" else openai_wire.error()
    fakes[letter].plays(answer(upstream, body, headers={"retry-after": "60"}))
    with pytest.raises(error_class(status)) as caught:
        anthropic_client.messages.create(model=model, max_tokens=9, messages=HI)
    assert caught.value.body["type"] == "error"
    assert caught.value.body["error"]["type"] == kind
    assert caught.value.response.headers["x-request-id"]


def test_messages_gateway_error_has_anthropic_format(gateway: Gateway) -> None:
    with gateway.anthropic(api_key="wrong") as client, pytest.raises(anthropic.AuthenticationError) as caught:
        client.messages.create(model=CLAUDE, max_tokens=9, messages=HI)
    assert caught.value.body["error"]["type"] == "authentication_error"
    with gateway.anthropic() as client, pytest.raises(anthropic.NotFoundError) as missing:
        client.messages.create(model="claude-99", max_tokens=9, messages=HI)
    assert missing.value.body["error"]["type"] == "not_found_error"
    got = gateway.request("POST", "/v1/messages", b"{nope")
    assert (got.status, got.json["type"], got.json["error"]["type"]) == (400, "error", "invalid_request_error")


@pytest.mark.parametrize(("letter", "model"), [("A", GPT), ("B", CLAUDE)])
def test_messages_interrupted_stream_ends_with_error_event(
    anthropic_client: anthropic.Anthropic, fakes: dict[str, FakeProvider], letter: str, model: str
) -> None:
    events = anthropic_wire.stream()[:5] if letter == "B" else openai_wire.stream()[:3]
    fakes[letter].plays(sse(events))

    def consume() -> None:
        with anthropic_client.messages.stream(model=model, max_tokens=9, messages=HI) as stream:
            stream.until_done()

    with pytest.raises(anthropic.APIError) as caught:
        consume()
    assert "api_error" in str(caught.value.body)
