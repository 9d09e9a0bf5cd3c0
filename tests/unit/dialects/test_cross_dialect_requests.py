"""Requests to an upstream of another dialect: fields that are dropped, lowered, truncated or renamed, and reported."""

from __future__ import annotations

import json
from typing import Any

import pytest
from tests.codecs import pass_through_request

from svc.dialects import anthropic, openai
from svc.dialects.base import EncodedRequest, ModelProfile
from svc.dialects.openai.model_series import rejects_reasoning_effort, requires_max_completion_tokens
from svc.errors import InvalidRequest
from svc.gateway.routing.backends import build_backends
from svc.gateway.routing.providers import build_provider
from svc.settings import ModelSettings, ProviderSettings
from svc.wire.chat import UpstreamOverrides

HI = [{"role": "user", "content": "Hi"}]
SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}}


def to_openai(model: str = "any", *, limit: int | None = None, **fields: Any) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Return the body for an OpenAI upstream and the dropped fields, for an Anthropic client's request."""
    raw = json.dumps({"model": "m", "max_tokens": 100, "messages": HI, **fields}).encode()
    settings = ProviderSettings(name="p", models=(ModelSettings(id=model, max_output_tokens=limit),))
    (backend,) = build_backends(build_provider(settings, "http://127.0.0.1:1/v1", ""))
    return read(openai.dialect.encode_request(anthropic.dialect.decode_request(raw), backend.profile))


def to_anthropic(*, limit: int | None = None, **fields: Any) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Return the body for an Anthropic upstream and the dropped fields, for an OpenAI client's request."""
    request = openai.dialect.decode_request(json.dumps({"model": "m", "messages": HI, **fields}).encode())
    return read(anthropic.dialect.encode_request(request, ModelProfile("claude", max_output_tokens=limit)))


def read(built: EncodedRequest) -> tuple[dict[str, Any], tuple[str, ...]]:
    return json.loads(built.body), built.dropped_fields


def test_to_openai_anthropic_only_fields_are_dropped_and_listed() -> None:
    body, dropped = to_openai(
        context_management={"edits": [{"type": "a"}]}, thinking={"type": "adaptive"}, speed="fast"
    )
    assert set(dropped) == {"context_management", "thinking", "speed"}
    assert body.keys() == {"model", "messages", "max_tokens"}


def test_to_openai_output_config_maps_to_effort_and_response_format() -> None:
    config = {"effort": "high", "format": {"type": "json_schema", "schema": SCHEMA}, "task_budget": {"total": 9}}
    body, dropped = to_openai(output_config=config)
    assert body["reasoning_effort"] == "high"
    assert body["response_format"]["json_schema"]["schema"] == SCHEMA
    assert dropped == ("output_config.task_budget",)


@pytest.mark.parametrize(
    ("model", "rejected"),
    [
        *[(name, True) for name in ("gpt-4o", "gpt-4o-mini-2024-07-18", "openai/gpt-4.1", "ft:gpt-3.5-turbo:x::y")],
        *[(name, True) for name in ("chatgpt-4o-latest", "gpt-5-chat-latest", "o1-mini")],
        *[(name, False) for name in ("o3", "gpt-5.2", "qwen3-32b", "gpt-oss-120b", "my-gpt-4o")],
    ],
)
def test_to_openai_effort_unsupported_by_model_series_is_dropped(model: str, rejected: bool) -> None:
    assert rejects_reasoning_effort(model) is rejected
    body, dropped = to_openai(model, output_config={"effort": "low"})
    assert (body.get("reasoning_effort"), dropped) == ((None, ("output_config",)) if rejected else ("low", ()))


@pytest.mark.parametrize(
    ("model", "newer"),
    [
        *[(name, True) for name in ("o1", "o3-mini", "o4-mini-2025-04-16", "gpt-5", "gpt-5-mini", "gpt-5.1")],
        *[(name, True) for name in ("gpt-6", "gpt-10-nano", "openai/gpt-5", "ft:gpt-5-nano:x::y")],
        *[(name, False) for name in ("gpt-4o", "gpt-4.1", "gpt-oss-20b", "olmo-2", "o1js", "my-gpt-5", "llama-3.1-8b")],
        ("gpt-35-turbo", False),
    ],
)
def test_to_openai_newer_model_series_gets_max_completion_tokens(model: str, newer: bool) -> None:
    assert requires_max_completion_tokens(model) is newer
    body, dropped = to_openai(model)
    assert dropped == ()
    assert (body.get("max_tokens"), body.get("max_completion_tokens")) == ((None, 100) if newer else (100, None))
    overrides = openai.dialect.model_overrides(model, UpstreamOverrides())
    raw = json.dumps({"model": model, "messages": HI, "max_tokens": 7}).encode()
    passed = pass_through_request(openai.dialect, raw, ModelProfile(model, overrides=overrides))
    assert json.loads(passed.body).get("max_completion_tokens") == (7 if newer else None)


def test_translation_max_tokens_above_model_limit_is_lowered_and_listed() -> None:
    assert to_openai(limit=4096, max_tokens=32000) == (
        {"model": "any", "messages": HI, "max_tokens": 4096},
        ("max_tokens",),
    )
    assert to_openai(limit=4096, max_tokens=4096)[1] == ()
    assert to_openai(max_tokens=32000)[0]["max_tokens"] == 32000
    body, dropped = to_anthropic(limit=4096, max_completion_tokens=16384)
    assert (body["max_tokens"], dropped) == (4096, ("max_tokens",))


def test_to_anthropic_lowered_max_tokens_reduces_thinking_budget() -> None:
    thinking = {"type": "enabled", "budget_tokens": 9000}
    body, dropped = to_anthropic(limit=4096, max_tokens=16384, thinking=thinking)
    assert (body["thinking"], dropped) == (
        {"type": "enabled", "budget_tokens": 2048},
        ("max_tokens", "thinking.budget_tokens"),
    )
    assert "thinking" not in to_anthropic(limit=1000, max_tokens=16384, thinking=thinking)[0]
    assert to_anthropic(limit=16384, max_tokens=16384, thinking=thinking)[0]["thinking"] == thinking


def test_translation_long_user_is_truncated_to_upstream_limit() -> None:
    user = "user_" + "0123456789abcdef" * 20
    assert to_openai(metadata={"user_id": user})[0]["user"] == user[:64]
    assert to_anthropic(user=user)[0]["metadata"] == {"user_id": user[:256]}


def test_to_openai_unsupported_content_part_fields_are_listed_as_dropped() -> None:
    turns = [
        {"role": "user", "content": [{"type": "text", "text": "Hi", "cache_control": {"type": "ephemeral"}}]},
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "Hm", "signature": "c2ln"},
                {"type": "tool_use", "id": "t", "name": "f", "input": {}},
            ],
        },
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t", "content": "no", "is_error": True}]},
    ]
    _, dropped = to_openai(messages=turns)
    assert dropped == ("cache_control", "messages[].thinking", "messages[].is_error")


def test_to_openai_mcp_servers_raises_invalid_request() -> None:
    with pytest.raises(InvalidRequest) as caught:
        to_openai(mcp_servers=[{"type": "url", "url": "https://example.com", "name": "x"}])
    assert caught.value.param == "mcp_servers"
