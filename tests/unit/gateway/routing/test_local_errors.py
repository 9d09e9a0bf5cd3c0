"""What the log gets of an error of llama.cpp: the cause, without a part of the request."""

from __future__ import annotations

import json

import pytest

from svc.gateway.routing.local_errors import describe_local_error


@pytest.mark.parametrize(
    ("message", "reason"),
    [
        ('Missing tool type: {"name":"secret"}', "Missing tool type:"),
        ("Unsupported content part type: 'secret'", "Unsupported content part type:"),
        ("Failed to tokenize", "Failed to tokenize"),
    ],
)
def test_local_error_reason_has_no_part_of_the_request(message: str, reason: str) -> None:
    error = describe_local_error(400, json.dumps({"error": {"code": 400, "message": message}}).encode())
    assert error is not None
    assert error.reason == reason
    assert "secret" not in error.message
