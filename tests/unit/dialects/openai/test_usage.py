"""Usage of OpenAI upstreams: the client gets what the provider reports, the ledger gets what the provider bills."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from tests.codecs import create_stream_transform, pass_through_response

from svc.dialects import anthropic, openai
from svc.dialects.base import ModelProfile
from svc.dialects.openai.schema import UsagePayload
from svc.dialects.openai.usage import to_usage
from svc.wire.usage import MAX_USAGE_TOKENS, TokenUsage

THINKING = {"prompt_tokens": 7, "completion_tokens": 12, "total_tokens": 402}
"""Only the total includes the 383 thinking tokens."""
BILLED = TokenUsage(7, 395)
REPORTS = [
    (THINKING, BILLED),
    ({**THINKING, "total_tokens": 19}, TokenUsage(7, 12)),
    ({**THINKING, "total_tokens": 3}, TokenUsage(7, 12)),
    ({**THINKING, "completion_tokens_details": {"reasoning_tokens": 383}, "cost": 0.1}, TokenUsage(7, 395, 0, 0, 383)),
    ({**THINKING, "prompt_tokens_details": {"cached_tokens": 5}}, TokenUsage(7, 395, 5)),
    ({"prompt_tokens": 0, "completion_tokens": 1, "total_tokens": 2 * MAX_USAGE_TOKENS}, TokenUsage(0, 1)),
]


def response(usage: object) -> bytes:
    choice = {"index": 0, "message": {"role": "assistant", "content": "hi"}, "finish_reason": "stop"}
    body = {"id": "a", "object": "chat.completion", "created": 1, "model": "m", "choices": [choice], "usage": usage}
    return json.dumps(body).encode()


def chunk(choices: list[Any], chunk_id: str = "c", **fields: Any) -> bytes:
    chunk_body = {"id": chunk_id, "object": "chat.completion.chunk", "created": 1, "model": "m", "choices": choices}
    return b"data: " + json.dumps({**chunk_body, "usage": None, **fields}, separators=(",", ":")).encode() + b"\n\n"


def choice(delta: dict[str, Any], finish: str | None = None) -> list[Any]:
    return [{"index": 0, "delta": delta, "finish_reason": finish}]


def stream(usage: object, chunk_id: str = "c") -> list[bytes]:
    return [
        chunk(choice({"role": "assistant", "content": ""}), chunk_id),
        chunk(choice({"content": "one"}), chunk_id),
        chunk(choice({"content": "two"}), chunk_id),
        chunk(choice({}, "stop"), chunk_id),
        chunk([], chunk_id, usage=usage),
        b"data: [DONE]\n\n",
    ]


@pytest.mark.parametrize(("reported", "billed"), REPORTS)
def test_response_total_above_sum_passes_report_and_bills_total(reported: dict[str, Any], billed: TokenUsage) -> None:
    raw = response(reported)
    passed = pass_through_response(openai.dialect, raw)
    assert passed.body is raw
    assert passed.usage == billed
    assert openai.dialect.decode_response(raw).usage == billed


@pytest.mark.parametrize(("reported", "billed"), REPORTS)
@pytest.mark.parametrize("include_usage", [True, False])
def test_stream_total_above_sum_passes_report_and_bills_total(
    reported: dict[str, Any], billed: TokenUsage, include_usage: bool
) -> None:
    target = ModelProfile("m")
    transform = create_stream_transform(openai.dialect, openai.dialect, include_usage=include_usage, profile=target)
    events = stream(reported)
    out = b"".join(transform.feed(event) for event in events)
    assert out == b"".join(events if include_usage else [*events[:4], events[5]])
    assert transform.usage == billed


@pytest.mark.parametrize("include_usage", [True, False])
@pytest.mark.parametrize("place", ["with the finish reason", "x_groq"])
def test_stream_usage_in_other_field_is_reported_and_billed(include_usage: bool, place: str) -> None:
    fields = {"x_groq": {"usage": THINKING}} if place == "x_groq" else {"usage": THINKING}
    transform = create_stream_transform(openai.dialect, openai.dialect, include_usage=include_usage)
    out = transform.feed(stream(THINKING)[0] + chunk(choice({}, "stop"), **fields) + b"data: [DONE]\n\n")
    assert transform.usage == BILLED
    shown = [json.loads(event[6:]).get("usage") for event in out.split(b"\n\n")[:-2]]
    assert [usage for usage in shown if usage] == ([THINKING] if include_usage else [])


def test_usage_to_anthropic_counts_billed_tokens() -> None:
    made = json.loads(anthropic.dialect.encode_response(openai.dialect.decode_response(response(THINKING))))
    assert (made["usage"]["input_tokens"], made["usage"]["output_tokens"]) == (7, 395)
    transform = create_stream_transform(openai.dialect, anthropic.dialect, include_usage=True)
    out = b"".join(transform.feed(event) for event in stream(THINKING)).decode()
    assert transform.usage == BILLED
    last = [json.loads(event.partition("data: ")[2]) for event in out.split("\n\n") if event][-2]
    assert (last["type"], last["usage"]["output_tokens"]) == ("message_delta", 395)


@pytest.mark.parametrize(
    ("reported", "shown"),
    [
        ({"prompt_tokens": 7, "completion_tokens": 12}, {**THINKING, "total_tokens": 19}),
        ({"completion_tokens": 12, "total_tokens": 19}, {**THINKING, "total_tokens": 19}),
        ({"prompt_tokens": 7, "total_tokens": 19}, {**THINKING, "total_tokens": 19}),
        ({**THINKING, "total_tokens": "402"}, {**THINKING, "total_tokens": 19}),
        ({**THINKING, "total_tokens": -1}, {**THINKING, "total_tokens": 19}),
        ({**THINKING, "prompt_tokens_details": 5}, THINKING),
        ({"prompt_tokens": 7.0, "completion_tokens": 12.0, "total_tokens": 19.0}, {**THINKING, "total_tokens": 19}),
    ],
)
def test_response_missing_or_invalid_counts_are_filled_in(reported: object, shown: object) -> None:
    assert json.loads(pass_through_response(openai.dialect, response(reported)).body)["usage"] == shown


WRONG_PARTS = [-1, 1.5, "3", True, None, [], {}, 10**30, 101]


@pytest.mark.parametrize("wrong", WRONG_PARTS)
@pytest.mark.parametrize("name", ["audio_tokens", "image_tokens", "cache_write_tokens"])
def test_to_usage_invalid_part_of_the_prompt_counts_as_none(name: str, wrong: object) -> None:
    counts = {"prompt_tokens": 100, "completion_tokens": 100, "total_tokens": 200}
    details = {"prompt_tokens_details": {"cached_tokens": 7, name: wrong}}
    assert to_usage(msgspec.convert({**counts, **details}, UsagePayload)) == TokenUsage(100, 100, 7)


@pytest.mark.parametrize("wrong", WRONG_PARTS)
@pytest.mark.parametrize("name", ["audio_tokens", "image_tokens"])
def test_to_usage_invalid_part_of_the_completion_counts_as_none(name: str, wrong: object) -> None:
    counts = {"prompt_tokens": 100, "completion_tokens": 100, "total_tokens": 200}
    details = {"completion_tokens_details": {"reasoning_tokens": 7, name: wrong}}
    assert to_usage(msgspec.convert({**counts, **details}, UsagePayload)) == TokenUsage(100, 100, reasoning_tokens=7)


@pytest.mark.parametrize("name", ["prompt_cache_hit_tokens", "cached_tokens"])
def test_to_usage_cached_tokens_of_vendors_outside_the_details(name: str) -> None:
    counts = {"prompt_tokens": 100, "completion_tokens": 1, "total_tokens": 101}
    assert to_usage(msgspec.convert({**counts, name: 40}, UsagePayload)) == TokenUsage(100, 1, 40)
    both = {**counts, name: 40, "prompt_tokens_details": {"cached_tokens": 30}}
    assert to_usage(msgspec.convert(both, UsagePayload)) == TokenUsage(100, 1, 30)
    for wrong in WRONG_PARTS:
        assert to_usage(msgspec.convert({**counts, name: wrong}, UsagePayload)) == TokenUsage(100, 1)


@pytest.mark.parametrize(
    ("prompt", "total", "details", "billed"),
    [
        (100, 110, {"cached_tokens": 500}, TokenUsage(600, 10, 500)),
        (100, 610, {"cached_tokens": 500}, TokenUsage(600, 10, 500)),
        (600, 1110, {"cached_tokens": 500}, TokenUsage(1100, 10, 500)),
        (100, 110, {"cached_tokens": 50, "cache_write_tokens": 80}, TokenUsage(230, 10, 50, 80)),
        (100, 110, {"cached_tokens": 100}, TokenUsage(100, 10, 100)),
        (100, 160, {"cached_tokens": 40}, TokenUsage(100, 60, 40)),
    ],
)
def test_to_usage_cached_tokens_beside_the_prompt_are_added_to_it(
    prompt: int, total: int, details: dict[str, int], billed: TokenUsage
) -> None:
    counts = {"prompt_tokens": prompt, "completion_tokens": 10, "total_tokens": total}
    assert to_usage(msgspec.convert({**counts, "prompt_tokens_details": details}, UsagePayload)) == billed


def test_to_usage_thinking_as_many_as_cached_tokens_is_output() -> None:
    counts = {"prompt_tokens": 100, "completion_tokens": 10, "total_tokens": 150}
    details = {"prompt_tokens_details": {"cached_tokens": 40}, "completion_tokens_details": {"reasoning_tokens": 40}}
    assert to_usage(msgspec.convert({**counts, **details}, UsagePayload)) == TokenUsage(
        100, 50, 40, reasoning_tokens=40
    )
