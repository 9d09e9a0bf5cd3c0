"""Complete responses of OpenAI upstreams."""

from __future__ import annotations

import contextlib
import json
from typing import Any

import pytest
from tests.codecs import pass_through_response
from tests.nesting import depths_near_limit

from svc.dialects.openai import dialect
from svc.errors import ProviderFailed, SvcError
from svc.gateway.endpoints import chat_completions
from svc.wire.usage import MAX_USAGE_TOKENS, TokenUsage

MESSAGE = {"role": "assistant", "content": "hi"}
USAGE = {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5, "prompt_tokens_details": {"cached_tokens": 1}}


def response(**fields: Any) -> bytes:
    choice = {"index": 0, "message": MESSAGE, "finish_reason": "stop"}
    whole = {"id": "a", "object": "chat.completion", "created": 1, "model": "m", "choices": [choice], "usage": USAGE}
    return json.dumps({**whole, **fields}).encode()


def test_passthrough_valid_response_returns_same_object() -> None:
    raw = response(system_fingerprint="x", new_field=[1])
    passed = pass_through_response(dialect, raw)
    assert passed.body is raw
    assert (passed.model, passed.finish_reason) == ("m", "stop")
    assert passed.usage is not None
    assert (passed.usage.prompt_tokens, passed.usage.cached_tokens) == (3, 1)


def test_passthrough_incomplete_response_is_repaired() -> None:
    raw = json.dumps(
        {"choices": [{"message": {"content": "x"}}], "usage": {"prompt_tokens": 3, "completion_tokens": 1}}
    )
    made = json.loads(pass_through_response(dialect, raw.encode()).body)
    assert made["usage"]["total_tokens"] == 4
    assert made["choices"][0] == {"index": 0, "message": {"role": "assistant", "content": "x"}, "finish_reason": "stop"}
    assert made["object"] == "chat.completion"
    assert made["id"].startswith("chatcmpl-")


def test_passthrough_usage_without_valid_count_is_missing() -> None:
    """Larger numbers overflow the database column and the price. A usage of 0 would cost nothing."""
    much = {"prompt_tokens": 10**400, "completion_tokens": 2**63, "total_tokens": 10**400 + 2**63}
    negative = {"prompt_tokens": -1, "completion_tokens": -1, "total_tokens": -2}
    flags = {"prompt_tokens": True, "completion_tokens": False}
    for usage in (much, {**much, "prompt_tokens_details": {"cached_tokens": 2**63}}, negative, flags):
        passed = pass_through_response(dialect, response(usage=usage))
        assert passed.usage is None
        assert json.loads(passed.body)["usage"] is None


def test_passthrough_usage_at_maximum_is_kept() -> None:
    most = {
        "prompt_tokens": MAX_USAGE_TOKENS,
        "completion_tokens": MAX_USAGE_TOKENS,
        "total_tokens": 2 * MAX_USAGE_TOKENS,
    }
    assert pass_through_response(dialect, response(usage=most)).usage == TokenUsage(MAX_USAGE_TOKENS, MAX_USAGE_TOKENS)


@pytest.mark.parametrize(
    ("reason", "shown"), [("eos", "stop"), ("model_length", "length"), ("MAX_TOKENS", "length"), (None, "stop")]
)
def test_passthrough_finish_reason_is_normalized(reason: str | None, shown: str) -> None:
    passed = pass_through_response(
        dialect, response(choices=[{"index": 0, "message": MESSAGE, "finish_reason": reason}])
    )
    assert passed.finish_reason == shown
    assert json.loads(passed.body)["choices"][0]["finish_reason"] == shown


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"<html>502</html>",
        b"[]",
        b"{}",
        b"\xff",
        b"[" * 100_000,
        response(choices=[]),
        response(choices=[1]),
        response(choices=[{"index": 0, "message": None, "finish_reason": "stop"}]),
        response(choices=[{"index": 0, "message": {"content": 5}, "finish_reason": "stop"}]),
        response(choices=[{"index": 0, "message": MESSAGE, "finish_reason": "error"}]),
        b'{"error":{"message":"boom"}}',
        b'{"object":"error","message":"boom"}',
    ],
)
def test_passthrough_malformed_response_raises_provider_failed(raw: bytes) -> None:
    with pytest.raises(ProviderFailed):
        pass_through_response(dialect, raw)


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        (b'{"error":{"message":"a"}}', "a"),
        (b'{"error":"b"}', "b"),
        (b'{"object":"error","message":{"detail":[{"loc":["x"],"msg":"c"}]}}', "`x`: c"),
        (b'{"detail":"key sk-abcdefghij is wrong"}', "key […] is wrong"),
        (b"<html>", None),
        (b"\xff", None),
        (b"{}", None),
    ],
)
def test_decode_error_message_returns_sanitized_upstream_message(raw: bytes, message: str | None) -> None:
    assert dialect.decode_error_message(raw) == message


def test_encode_error_has_openai_error_fields() -> None:
    assert json.loads(chat_completions.endpoint.encode_error(SvcError("m", param="p"), "r1"))["error"] == {
        "message": "m",
        "type": "api_error",
        "code": "internal_error",
        "param": "p",
    }


@pytest.mark.parametrize("name", ["content", "thinking"])
def test_passthrough_deeply_nested_content_is_repaired_or_provider_failed(name: str) -> None:
    for depth in (1, 100, 400, 900, *depths_near_limit()):
        nested = "[" * depth + '{"type":"text","text":"x"}' + "]" * depth
        content = nested if name == "content" else f'[{{"type":"thinking","thinking":{nested}}}]'
        with contextlib.suppress(ProviderFailed):
            pass_through_response(dialect, f'{{"choices":[{{"message":{{"content":{content}}}}}]}}'.encode())
