"""Requests for speech: every field with a wrong value, also in a body that is long enough for a skeleton."""

from __future__ import annotations

import json
from typing import Any

import pytest

from svc.dialects.base import RequestBody
from svc.dialects.json_skeleton import MIN_SKELETON_BODY_BYTES
from svc.dialects.openai.speech_request import decode_routing_info
from svc.errors import InvalidRequest

HUGE = "x" * 300_000
WRONG_VALUES: dict[str, list[Any]] = {
    "model": [None, 5, "", "m" * 513, HUGE],
    "input": [None, 5, "", " ", "x" * 4097, HUGE, ["Hi"]],
    "voice": [5, ["alloy"], "v" * 513, HUGE],
    "response_format": [5, "", "midi", HUGE],
    "speed": ["1", 0.2, 4.1, 1e400],
    "instructions": [5, {}],
    "stream_format": [5, "", "json", HUGE],
}


@pytest.mark.parametrize(
    ("name", "value"),
    [(name, value) for name, values in WRONG_VALUES.items() for value in values],
    ids=lambda value: json.dumps(value)[:30],
)
@pytest.mark.parametrize("padding", [0, MIN_SKELETON_BODY_BYTES], ids=["short", "long"])
def test_speech_wrong_value_names_field_in_short_message(name: str, value: Any, padding: int) -> None:
    body = {"model": "tts-1", "input": "Hi", "voice": "alloy", "unknown": "x" * padding, name: value}
    with pytest.raises(InvalidRequest) as caught:
        decode_routing_info(RequestBody(json.dumps(body).encode()))
    if value != float("inf"):  # JSON has no such number
        assert caught.value.param == name
    assert len(caught.value.message) < 500
