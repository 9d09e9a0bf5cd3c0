"""A coding agent with Anthropic's API: requests and responses match those of Anthropic's own endpoint."""

from __future__ import annotations

import json
from typing import Any

from tests.e2e.conftest import StartGateway
from tests.e2e.harness import CLAUDE, GPT, HI, KEY, Gateway
from tests.fakes import anthropic_wire
from tests.fakes.provider import FakeProvider
from tests.fakes.script import sse

BETAS = "claude-code-20250219,context-management-2025-06-27"
TASK = {
    "name": "Task",
    "description": "Starts an agent.",
    "input_schema": {"type": "object", "properties": {"model": {"type": "string"}, "stream": {"type": "boolean"}}},
}
THOUGHT = {"type": "thinking", "thinking": "Hm.", "signature": "c2ln"}
ALIAS = f"""
[[providers]]
name = "anthropic"
models = [{{ id = "agent", upstream_id = "{CLAUDE}" }}]
"""


def agent_request(**fields: Any) -> bytes:
    """A request with unusual whitespace and escapes, and with tool properties named like request fields."""
    body = {
        "model": CLAUDE,
        "max_tokens": 32000,
        "system": [
            {"type": "text", "text": "You are \u00fcber.", "cache_control": {"type": "ephemeral"}},
            {"type": "text", "text": "Second."},
        ],
        "messages": [
            *HI,
            {"role": "assistant", "content": [THOUGHT, {"type": "text", "text": "a"}]},
            {"role": "user", "content": [{"type": "text", "text": "b", "cache_control": {"type": "ephemeral"}}]},
        ],
        "tools": [TASK, {"type": "web_search_20250305", "name": "web_search", "max_uses": 8}],
        "context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
        "output_config": {"effort": "medium"},
        "metadata": {"user_id": "user_1"},
        "temperature": 1.0,
        **fields,
    }
    return json.dumps(body, separators=(", ", ":  ")).encode()


def send(gateway: Gateway, body: bytes, *, query: str = "?beta=true", **headers: str) -> Any:
    given = {"anthropic-version": "2023-06-01", "anthropic-beta": BETAS, "content-type": "application/json", **headers}
    return gateway.request("POST", f"/v1/messages{query}", body, key=KEY, headers=given)


def test_messages_same_dialect_forwards_beta_version_query_and_body(gateway: Gateway, provider_b: FakeProvider) -> None:
    body = agent_request()
    assert send(gateway, body, **{"anthropic-version": "2026-10-21"}).status == 400  # this version rejects temperature
    provider_b.complaints.clear()
    assert provider_b.wait().headers["anthropic-version"] == "2026-10-21"
    provider_b.forget()
    assert send(gateway, body).status == 200
    seen = provider_b.wait()
    assert seen.path == "/v1/messages?beta=true"
    assert seen.headers["anthropic-beta"] == BETAS
    assert [value for name, value in seen.header_list if name == "anthropic-version"] == ["2023-06-01"]
    assert seen.headers["x-api-key"] == provider_b.key
    assert KEY not in str(seen.header_list)
    assert seen.body == body


def test_messages_on_persistent_connection_forwards_head_of_each_request(
    gateway: Gateway, provider_b: FakeProvider
) -> None:
    seen = []
    with gateway.raw() as raw:
        for query, beta in (("?beta=true", "a-1"), ("?beta=true", "a-1"), ("", "b-2"), ("?beta=true&x=%20", "b-2")):
            headers = {"anthropic-version": "2023-06-01", "anthropic-beta": beta}
            assert raw.request("POST", f"/v1/messages{query}", agent_request(), key=KEY, headers=headers).status == 200
            last = provider_b.wait()
            seen.append((last.path.removeprefix("/v1/messages"), last.headers["anthropic-beta"]))
            provider_b.forget()
    assert seen == [("?beta=true", "a-1"), ("?beta=true", "a-1"), ("", "b-2"), ("?beta=true&x=%20", "b-2")]


def test_messages_mapped_model_changes_only_model_name(start_gateway: StartGateway, provider_b: FakeProvider) -> None:
    body = agent_request(model="agent")
    assert send(start_gateway(config=ALIAS), body).status == 200
    sent = provider_b.wait().body
    assert json.loads(sent) == {**json.loads(body), "model": CLAUDE}
    assert list(json.loads(sent)) == list(json.loads(body))
    for name in ("system", "messages", "tools", "context_management"):
        written = json.dumps(json.loads(body)[name], separators=(", ", ":  ")).encode()
        assert written in sent, name


def test_messages_to_openai_upstream_forwards_no_anthropic_header(gateway: Gateway, provider_a: FakeProvider) -> None:
    body = json.dumps({"model": GPT, "messages": HI, "max_tokens": 5}).encode()
    assert send(gateway, body).status == 200
    seen = provider_a.wait()
    assert seen.path == "/v1/chat/completions"
    assert not [name for name in seen.headers if name.startswith("anthropic")]


def test_messages_stream_forwards_every_event_unchanged(gateway: Gateway, provider_b: FakeProvider) -> None:
    event = anthropic_wire.event
    started, *rest = anthropic_wire.stream("Servus")
    unknown_events = [
        event("yet_unknown", index="a", delta="b", usage=[1], content_block=7, message=False),
        event("content_block_start", index=5, content_block={"type": "server_tool_use", "id": "s", "name": "w"}),
        event("content_block_delta", index=5, delta={"type": "invented_delta", "words": ["x"]}),
        event("content_block_stop", index=5),
    ]
    played = [event("ping"), started, *unknown_events, *rest]
    provider_b.plays(sse(played))
    got = send(gateway, agent_request(stream=True))
    assert got.status == 200
    assert got.body == b"".join(played)


def test_messages_agent_request_to_openai_model_returns_200(gateway: Gateway, provider_a: FakeProvider) -> None:
    fields = {"model": GPT, "tools": [TASK], "thinking": {"type": "adaptive"}, "metadata": {"user_id": "u" * 150}}
    got = send(gateway, agent_request(**fields))
    assert got.status == 200
    named = {"context_management", "output_config", "thinking", "max_tokens", "cache_control"}
    assert named <= set(got.headers["x-svc-dropped"].split(","))
    sent = provider_a.wait().json
    assert sent["max_tokens"] == 16384
    assert len(sent["user"]) == 64
