"""Errors of llama.cpp: the cause for the log, without a part of the request, and the client's name of the field."""

from __future__ import annotations

import json

import pytest
from tests.codecs import codec_between

from svc.dialects.anthropic import dialect as anthropic
from svc.dialects.openai import dialect as openai
from svc.dialects.upstream_errors import map_upstream_error, truncated_response_error
from svc.errors import ProviderFailed
from svc.gateway.endpoints import embeddings, responses_api
from svc.gateway.routing.failures import RetryDecision, classify_error_response
from svc.gateway.routing.local_errors import describe_local_error, describe_local_stream_error


@pytest.mark.parametrize(
    ("message", "reason"),
    [
        ('Missing tool type: {"name":"secret"}', "Missing tool type:"),
        ("Unsupported content part type: 'secret'", "Unsupported content part type:"),
        ("Failed to tokenize", "Failed to tokenize"),
    ],
)
def test_local_error_reason_has_no_part_of_the_request(message: str, reason: str) -> None:
    error = describe_local_error(400, json.dumps({"error": {"code": 400, "message": message}}).encode(), b"{}", str)
    assert error is not None
    assert error.reason == reason
    assert "secret" not in error.message


TOO_LONG = {"type": "exceed_context_size_error", "message": "too long", "n_prompt_tokens": 9000, "n_ctx": 8192}
IMAGE = {"type": "server_error", "message": "image input is not supported"}
SCHEMA = {"type": "invalid_request_error", "message": "failed to parse grammar"}
FORMAT = {"type": "json_schema"}
SCHEMA_REQUEST = json.dumps(
    {"response_format": FORMAT, "output_config": {"format": FORMAT}, "text": {"format": FORMAT}, "tools": []}
).encode()
CODECS = {
    "chat": codec_between(openai, openai),
    "messages": codec_between(anthropic, openai),
    "responses": responses_api.ResponsesCodec(openai),
    "embeddings": embeddings.endpoint.codecs[openai],
}


@pytest.mark.parametrize(
    ("client", "error", "param"),
    [
        ("chat", TOO_LONG, "messages"),
        ("messages", TOO_LONG, "messages"),
        ("responses", TOO_LONG, "input"),
        ("embeddings", TOO_LONG, "input"),
        ("messages", IMAGE, "messages"),
        ("responses", IMAGE, "input"),
        ("chat", SCHEMA, "response_format"),
        ("messages", SCHEMA, "output_config.format"),
        ("responses", SCHEMA, "text.format"),
    ],
)
def test_local_error_names_the_field_of_the_client(client: str, error: dict[str, object], param: str) -> None:
    raw = json.dumps({"error": {"code": 400, **error}}).encode()
    failure = classify_error_response(CODECS[client], 500 if error is IMAGE else 400, {}, raw, SCHEMA_REQUEST)
    assert failure.error.param == param


ALLOWED_IN_CHAT = {"type": "allowed_tools", "allowed_tools": {"mode": "required", "tools": []}}


@pytest.mark.parametrize(
    ("client", "fields"),
    [
        ("chat", {}),
        ("chat", {"response_format": None}),
        ("chat", {"response_format": {"type": "text"}}),
        ("chat", {"response_format": FORMAT, "tool_choice": "required"}),
        ("chat", {"response_format": FORMAT, "tool_choice": ALLOWED_IN_CHAT}),
        ("responses", {"text": {"format": FORMAT}, "tool_choice": {"type": "allowed_tools", "mode": "required"}}),
        ("chat", {"tool_choice": {"type": "function", "function": {"name": "f"}}, "grammar": "x"}),
        ("messages", {"output_config": {"effort": "low"}}),
        ("messages", {"output_config": {"format": FORMAT}, "tool_choice": {"type": "any"}}),
        ("responses", {"text": {"format": {"type": "text"}}}),
        ("responses", {"text": None}),
    ],
)
def test_local_error_tool_schema_names_the_tools(client: str, fields: dict[str, object]) -> None:
    """The text of the message does not matter, although it has the name of the other field."""
    raw = json.dumps({"error": {"code": 400, **SCHEMA}}).encode()
    messages = [{"role": "user", "content": '"response_format": {}'}]
    request = json.dumps({"messages": messages, "tools": [{"type": "function"}], **fields}).encode()
    failure = classify_error_response(CODECS[client], 400, {}, raw, request)
    assert failure.error.param == "tools"


@pytest.mark.parametrize(
    ("request_body", "param"),
    [
        (b'{"grammar": "root ::="}', "grammar"),
        (b'{"json_schema": {"type": "x"}, "tools": [], "tool_choice": "auto"}', "json_schema"),
        (b'{"response_format": {"type": "json_object"}, "tools": [{}], "tool_choice": "auto"}', "response_format"),
        (b'{"response_format": {"type": "x"}, "tools": [{}], "tool_choice": {"mode": "auto"}}', "response_format"),
        (b"{}", None),
        (b'{"x": 1e999}', None),
    ],
)
def test_local_error_schema_names_only_a_field_of_the_request(request_body: bytes, param: str | None) -> None:
    raw = json.dumps({"error": {"code": 400, **SCHEMA}}).encode()
    error = classify_error_response(CODECS["chat"], 400, {}, raw, request_body).error
    assert error.param == param
    assert ("JSON schema" in error.message) == (param != "grammar")


def test_local_error_grammar_that_fails_at_a_token_is_invalid() -> None:
    message = "Unexpected empty grammar stack after accepting piece: . (30)"
    raw = json.dumps({"error": {"code": 500, "message": message, "type": "server_error"}}).encode()
    failure = classify_error_response(CODECS["chat"], 500, {}, raw, SCHEMA_REQUEST)
    assert (failure.error.status, failure.error.param) == (400, "response_format")


def test_local_error_repeated_request_does_not_change_the_reason() -> None:
    what = "[json.exception.type_error.302] type must be string, but is null"
    message = f'Failed to parse tools: {what}; tools = [{{"$schema": "grammar bad_alloc'
    raw = json.dumps({"error": {"code": 500, "message": message}}).encode()
    failure = classify_error_response(CODECS["chat"], 500, {}, raw, b"{}")
    assert (failure.error.status, failure.error.param) == (400, "tools")
    assert failure.error.message == "The model of this machine cannot read these tools."
    raw = json.dumps({"error": {"code": 500, "message": 'Invalid diff: "grammar schema"'}}).encode()
    assert classify_error_response(CODECS["chat"], 500, {}, raw, b"{}").error.status == 502


@pytest.mark.parametrize(
    ("message", "words", "reason"),
    [
        ("Context size has been exceeded.", "The context window of this model is full", "Context size has been"),
        ("Compute error.", "The gateway's log has the reason", "Compute error."),
        ("Unexpected empty grammar stack after accepting piece: secret (30)", "log", "Unexpected empty grammar stack"),
        ("Invalid diff: 'secret: a' not found at start of 'secret: b'", "log", "Invalid diff:"),
    ],
)
def test_local_stream_error_has_no_part_of_the_response(message: str, words: str, reason: str) -> None:
    for code in (500, 400):
        found = describe_local_stream_error(map_upstream_error({"code": code, "message": message}))
        assert words in found.message
        assert isinstance(found, ProviderFailed)
        assert found.reason.startswith(reason)
        assert "secret" not in found.message + found.reason


def test_local_stream_error_of_the_gateway_is_unchanged() -> None:
    for error in (truncated_response_error(), ProviderFailed("The provider is silent.")):
        assert describe_local_stream_error(error) is error


@pytest.mark.parametrize("status", [400, 500])
def test_local_error_out_of_memory_is_no_outage(status: int) -> None:
    raw = b'{"error": {"code": 500, "message": "std::bad_alloc", "type": "server_error"}}'
    failure = classify_error_response(CODECS["chat"], status, {}, raw, b"{}")
    assert (failure.retry_decision, failure.counts_as_outage) == (RetryDecision.NEXT_BACKEND, False)
    assert "no memory left" in failure.error.message
