"""Errors of llama.cpp's server reach clients only in the gateway's words."""

from __future__ import annotations

import json
from typing import Any

import pytest
from tests.codecs import codec_between

from svc.dialects.openai import dialect as openai
from svc.errors import InvalidRequest, ProviderFailed
from svc.gateway.routing.failures import RetryDecision, classify_error_response

TOO_LONG = "exceed_context_size_error"
MARKER = "json.exception"


def body(message: str, **fields: Any) -> bytes:
    return json.dumps({"error": {"message": message, "code": 400, **fields}}).encode()


@pytest.mark.parametrize(
    ("status", "raw", "message", "param"),
    [
        (
            400,
            body("input (514 tokens) is larger than the max context size (512 tokens). skipping", param="input[7]"),
            "`input[7]` is longer than the context window of this model, 512 tokens: it has 514 tokens.",
            "input[7]",
        ),
        (
            500,
            body("input (600 tokens) is too large to process. increase the physical batch size", param="input"),
            "`input` is longer than the context window of this model: it has 600 tokens.",
            "input",
        ),
        (
            400,
            body("MARKER", type=TOO_LONG, n_prompt_tokens=9000, n_ctx=8192),
            "The request is longer than the context window of this model, 8192 tokens: it has 9000 tokens.",
            None,
        ),
        (400, body("Failed to parse grammar MARKER"), "JSON schema", "response_format"),
        (400, body("Jinja MARKER: roles must alternate"), "chat template", "messages"),
        (400, body(f"[{MARKER}.type_error.302] type must be string, but is null"), "cannot process", None),
        (400, b"MARKER", "cannot process", None),
    ],
)
def test_local_error_is_described_by_the_gateway(status: int, raw: bytes, message: str, param: str | None) -> None:
    failure = classify_error_response(codec_between(openai, openai), status, {}, raw, is_local=True)
    assert isinstance(failure.error, InvalidRequest)
    assert failure.retry_decision is RetryDecision.GIVE_UP
    assert message in failure.error.message
    assert failure.error.param == param
    assert MARKER not in failure.error.message
    assert "MARKER" not in failure.error.message


def test_local_error_reason_is_kept_for_the_log() -> None:
    raw = body(f"[{MARKER}.type_error.302] type must be string")
    failure = classify_error_response(codec_between(openai, openai), 400, {}, raw, is_local=True)
    assert MARKER in failure.error.reason


@pytest.mark.parametrize("status", [404, 500, 503])
def test_local_failure_does_not_show_its_message(status: int) -> None:
    codec = codec_between(openai, openai)
    failure = classify_error_response(codec, status, {}, body("MARKER"), is_local=True)
    assert "MARKER" not in failure.error.message
    assert isinstance(failure.error, ProviderFailed) == (status != 404)


def test_local_error_of_unsupported_image_names_messages() -> None:
    codec = codec_between(openai, openai)
    raw = body("image input is not supported - hint: provide the mmproj")
    failure = classify_error_response(codec, 500, {}, raw, is_local=True)
    assert (failure.error.code, failure.error.param) == ("invalid_request", "messages")
    assert "mmproj" not in failure.error.message
