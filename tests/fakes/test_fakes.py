"""The fake provider: it sends what its scripts say and records the requests."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator

import anthropic
import openai
import pytest

from tests.fakes import anthropic_wire, openai_wire
from tests.fakes.anthropic_wire import AnthropicWire
from tests.fakes.http_client import RawClient, request_bytes
from tests.fakes.openai_wire import GROQ_REJECTS, OpenAIWire
from tests.fakes.ports import closed_port, silent_port
from tests.fakes.provider import FakeProvider
from tests.fakes.script import (
    Gate,
    answer,
    body,
    end,
    fin,
    head,
    hold,
    pause,
    raw,
    reset,
    split,
    sse,
    stall,
)

KEY = "sk-fake"
CHAT = {"model": "gpt-4o", "messages": [{"role": "user", "content": "Hi"}]}


@pytest.fixture
def fake() -> Iterator[FakeProvider]:
    with FakeProvider(OpenAIWire()) as one:
        yield one


@pytest.fixture
def client(fake: FakeProvider) -> Iterator[RawClient]:
    with RawClient(fake.port, timeout=5) as one:
        yield one


def send_chat(client: RawClient, **more: object) -> None:
    client.send(request_bytes("POST", "/v1/chat/completions", {**CHAT, **more}, key=KEY))


def test_fake_provider_request_is_recorded(fake: FakeProvider, client: RawClient) -> None:
    send_chat(client, seed=1)
    assert client.read().status == 200
    seen = fake.wait()
    assert (seen.method, seen.path, seen.json["seed"]) == ("POST", "/v1/chat/completions", 1)
    assert seen.headers["authorization"] == "Bearer sk-fake"
    assert seen.left is None


def test_fake_provider_scripts_play_in_order_then_default_response(fake: FakeProvider, client: RawClient) -> None:
    fake.plays(answer(503, b"a"), answer(429, b"b", headers={"retry-after": "7"}))
    response = []
    for _ in range(3):
        send_chat(client)
        response.append(client.read())
    assert [one.status for one in response] == [503, 429, 200]
    assert response[1].headers["retry-after"] == "7"
    assert {seen.connection for seen in fake.requests} == {1}


@pytest.mark.parametrize("framing", ["length", "chunked", "close"])
def test_fake_provider_any_framing_delivers_body(fake: FakeProvider, client: RawClient, framing: str) -> None:
    fake.plays(answer(200, b"hello", framing=framing))
    send_chat(client)
    response = client.read()
    assert (response.body, response.whole) == (b"hello", True)


@pytest.mark.parametrize(
    ("script", "body_seen"),
    [
        (answer(200, b"hello", length=9) + fin(), b"hello"),
        (head() + body(b"hel") + fin(), b"hel"),
        (head() + body(b"hel") + pause(0.05) + reset(), b"hel"),
        (fin(), b""),
        (reset(), b""),
    ],
)
def test_fake_provider_truncated_script_gives_partial_body(
    fake: FakeProvider, client: RawClient, script: object, body_seen: bytes
) -> None:
    fake.plays(script)
    send_chat(client)
    response = client.read()
    assert (response.body, response.whole) == (body_seen, False)


def test_fake_provider_reset_resets_connection(fake: FakeProvider, client: RawClient) -> None:
    fake.plays(reset())
    send_chat(client)
    with pytest.raises(ConnectionResetError):
        client.socket.recv(1)


def test_fake_provider_raw_bytes_are_sent_unchanged(fake: FakeProvider, client: RawClient) -> None:
    fake.plays(raw(b"SSH-2.0-nonsense\r\n") + fin())
    send_chat(client)
    assert client.socket.recv(100) == b"SSH-2.0-nonsense\r\n"


def test_fake_provider_split_stream_has_same_bytes(fake: FakeProvider, client: RawClient) -> None:
    events = openai_wire.stream()
    for split_at in (None, 1000, 7, [3, 50]):
        fake.plays(sse(events, split_at=split_at))
        send_chat(client, stream=True)
        assert client.read().body == b"".join(events)


def test_split_size_or_offsets_cut_bytes() -> None:
    assert split(b"abcdefg", 3) == [b"abc", b"def", b"g"]
    assert split(b"abcdefg", [5, 1]) == [b"a", b"bcde", b"fg"]


def test_gate_holds_script_until_opened(fake: FakeProvider, client: RawClient) -> None:
    gate = Gate()
    fake.plays(head() + body(b"one") + hold(gate) + body(b"two") + end())
    send_chat(client)
    assert client.read_until(b"one").body == b"one"
    gate.reached()
    gate.open()
    assert client.read().body == b"onetwo"


@pytest.mark.parametrize("script", [stall(), head() + stall(), head() + body(b"x") + pause(60)])
@pytest.mark.parametrize("leave", ["close", "reset"])
def test_fake_provider_client_disconnect_is_noticed(
    fake: FakeProvider, client: RawClient, script: object, leave: str
) -> None:
    fake.plays(script)
    send_chat(client)
    seen = fake.wait()
    left = time.monotonic()
    if leave == "reset":
        client.reset()
    else:
        client.socket.close()
    assert 0 <= seen.wait_left() - left < 5


def test_fake_provider_slow_reader_applies_backpressure(fake: FakeProvider, client: RawClient) -> None:
    size = 64 * 1024 * 1024
    fake.plays(head(framing="length", length=size) + body(bytes(size)))
    send_chat(client)
    seen = fake.wait()
    time.sleep(0.3)
    assert 0 < seen.sent < size


def test_forget_closes_running_requests_and_clears_records(fake: FakeProvider, client: RawClient) -> None:
    fake.plays(head() + stall())
    send_chat(client)
    fake.wait()
    fake.forget()
    assert client.read().whole is False
    assert fake.requests == []


def test_fake_provider_wrong_key_returns_401_and_complaint(fake: FakeProvider, client: RawClient) -> None:
    assert client.request("POST", "/v1/chat/completions", CHAT, key="sk-other").status == 401
    assert fake.complaints == ["wrong key"]


@pytest.mark.parametrize("more", [{"logprobs": True}, {"n": 2}, {"messages": [{"role": "user", "name": "x"}]}])
def test_openai_wire_rejected_parameter_returns_400(more: dict[str, object]) -> None:
    with FakeProvider(OpenAIWire(rejects=GROQ_REJECTS)) as fake, RawClient(fake.port) as client:
        send_chat(client, n=1)
        assert client.read().status == 200
        send_chat(client, **more)
        assert client.read().status == 400
        assert len(fake.complaints) == 1


@pytest.mark.parametrize(
    "wrong",
    [
        {"max_tokens": None},
        {"temperature": 1.5},
        {"seed": 1},
        {"messages": [{"role": "system", "content": "x"}]},
        {"messages": [{"role": "user", "content": [{"type": "tool_result", "tool_use_id": "a", "content": "x"}]}]},
    ],
)
def test_anthropic_wire_invalid_request_returns_400(wrong: dict[str, object]) -> None:
    request = {"model": "m", "max_tokens": 9, "messages": [{"role": "user", "content": "Hi"}]}
    headers = {"x-api-key": KEY, "anthropic-version": "2023-06-01"}
    with FakeProvider(AnthropicWire()) as fake, RawClient(fake.port) as client:
        assert client.request("POST", "/v1/messages", request, headers=headers).status == 200
        assert client.request("POST", "/v1/messages", {**request, **wrong}, headers=headers).status == 400
        assert client.request("POST", "/v1/messages", request, headers=headers | {"x-api-key": "no"}).status == 401


def test_openai_wire_is_accepted_by_openai_sdk(fake: FakeProvider) -> None:
    client = openai.OpenAI(base_url=f"{fake.address}/v1", api_key=KEY, max_retries=0)
    messages = [{"role": "user", "content": "Hi"}]
    whole = client.chat.completions.create(model="gpt-4o", messages=messages)
    assert whole.choices[0].message.content == openai_wire.TEXT
    fake.plays(sse(openai_wire.tool_stream([("call_1", "f", '{"a": 1}'), ("call_2", "g", "{}")])))
    with client.chat.completions.stream(model="gpt-4o", messages=messages) as stream:
        calls = stream.get_final_completion().choices[0].message.tool_calls
    assert calls is not None
    assert [(one.id, one.function.name, one.function.arguments) for one in calls] == [
        ("call_1", "f", '{"a": 1}'),
        ("call_2", "g", "{}"),
    ]
    assert [one.id for one in client.models.list()] == ["gpt-4o", "gpt-4o-mini"]
    assert fake.complaints == []


def test_anthropic_wire_is_accepted_by_anthropic_sdk() -> None:
    with FakeProvider(AnthropicWire()) as fake:
        client = anthropic.Anthropic(base_url=fake.address, api_key=KEY, max_retries=0)
        blocks = [
            anthropic_wire.thinking("Hm."),
            anthropic_wire.text("Two calls"),
            anthropic_wire.tool_use("toolu_1", "f", '{"a": 1}'),
        ]
        fake.plays(sse(anthropic_wire.stream(blocks, stop="tool_use")))
        message_request = {"model": "m", "max_tokens": 9, "messages": [{"role": "user", "content": "Hi"}]}
        with client.messages.stream(**message_request) as stream:
            final = stream.get_final_message()
        assert [block.type for block in final.content] == ["thinking", "text", "tool_use"]
        assert (final.stop_reason, final.usage.output_tokens) == ("tool_use", 7)
        assert client.messages.create(**message_request).content[0].text == anthropic_wire.TEXT
        assert fake.complaints == []


def test_ports_closed_port_refuses_and_silent_port_times_out() -> None:
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", closed_port()), timeout=1)
    with silent_port() as port, pytest.raises(TimeoutError):
        socket.create_connection(("127.0.0.1", port), timeout=0.2)
