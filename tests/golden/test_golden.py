"""Recorded requests, responses and streams of each dialect, translated to each target dialect."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

import pytest

from svc.dialects import anthropic, openai
from svc.dialects.base import Dialect, ModelProfile
from svc.errors import InvalidRequest
from svc.wire.chat import UpstreamOverrides
from tests.codecs import (
    create_responses_stream,
    create_stream_transform,
    encode_responses_request,
    pass_through_request,
    pass_through_response,
    responses_codec,
)
from tests.openresponses import read_events, validate_events, validate_response

HERE = Path(__file__).parent
DIALECTS: dict[str, Dialect] = {"openai": openai.dialect, "anthropic": anthropic.dialect}
OVERRIDES = UpstreamOverrides(rejects=("logprobs", "n", "messages[].name"), min_temperature=1e-8)
PROFILE = ModelProfile("taken", max_output_tokens=8192, overrides=OVERRIDES)
REWRITE = os.environ.get("SVC_REWRITE_GOLDEN") == "1"


RESPONSES = "responses"
"""The Responses API: an upstream has it beside chat completions, a client needs its request for each response."""
RESPONSES_REQUEST = b'{"model": "asked", "input": "Hi", "include": ["reasoning.encrypted_content"]}'
MADE_HERE = re.compile(r"(call|resp|msg|rs|fc|ctc)_[0-9a-f]{32}")


def inputs(kind: str, suffix: str) -> list[Path]:
    return sorted(path for path in (HERE / kind).glob(f"*.{suffix}") if ".to-" not in path.name)


def cases(kind: str, suffix: str) -> list[tuple[Path, str]]:
    return [(path, name) for path in inputs(kind, suffix) if is_chat(path) for name in DIALECTS]


def responses_request(path: Path) -> bytes:
    """Return the client's request for a recorded response or stream."""
    is_custom = path.stem.startswith("custom-tools")
    return (HERE / "requests" / "tools.responses.json").read_bytes() if is_custom else RESPONSES_REQUEST


def is_chat(path: Path) -> bool:
    return path.stem.rpartition(".")[2] in DIALECTS


def upstream_of(path: Path) -> Dialect | None:
    """Return the dialect of an upstream. None for one with the Responses API."""
    return DIALECTS.get(path.stem.rpartition(".")[2])


def case_id(value: object) -> str:
    return value.stem if isinstance(value, Path) else f"to-{value}"


def source(path: Path) -> Dialect:
    return DIALECTS[path.stem.rpartition(".")[2]]


def check_golden(path: Path, target: str, actual: str) -> None:
    """Compare the result with its golden file. With SVC_REWRITE_GOLDEN=1, write the file first."""
    actual = MADE_HERE.sub(r"\1_made-here", actual)
    expected = path.with_name(f"{path.stem}.to-{target}{path.suffix}")
    if REWRITE:
        expected.write_text(actual)
    assert actual == expected.read_text()


def format_json(raw: bytes, **more: object) -> str:
    body = json.loads(raw)
    if "created" in body and more.get("reset_created"):
        body["created"] = 0
    output = {"dropped": more["dropped"], "body": body} if "dropped" in more else body
    return json.dumps(output, indent=2, ensure_ascii=False) + "\n"


@pytest.mark.parametrize(("path", "target"), cases("requests", "json"), ids=case_id)
def test_request_recorded_matches_golden_file(path: Path, target: str) -> None:
    client, raw = source(path), path.read_bytes()
    if client.name == target:
        built = pass_through_request(client, raw, PROFILE)
    else:
        built = DIALECTS[target].encode_request(client.decode_request(raw), PROFILE)
    check_golden(path, target, format_json(built.body, dropped=list(built.dropped_fields)))


@pytest.mark.parametrize(("path", "target"), cases("responses", "json"), ids=case_id)
def test_response_recorded_matches_golden_file(path: Path, target: str) -> None:
    upstream, raw = source(path), path.read_bytes()
    passed = pass_through_response(upstream, raw)
    if upstream.name == target:
        actual = format_json(passed.body)
    else:
        response = upstream.decode_response(raw)
        assert (response.usage, response.finish, response.model) == (passed.usage, passed.finish_reason, passed.model)
        actual = format_json(DIALECTS[target].encode_response(response), reset_created=upstream.name == "anthropic")
    check_golden(path, target, actual)


@pytest.mark.parametrize(("path", "target"), cases("streams", "sse"), ids=case_id)
def test_stream_recorded_matches_golden_file(path: Path, target: str) -> None:
    upstream, raw = source(path), path.read_bytes()
    transform = create_stream_transform(upstream, DIALECTS[target], include_usage=True)
    actual = (transform.feed(raw) + transform.end()).decode()
    assert transform.has_started
    assert transform.has_ended
    assert (transform.finish_reason is None) == (transform.error is not None)
    if upstream.name == "anthropic" and target == "openai":
        actual = re.sub(r'"created":\d+', '"created":0', actual)
    check_golden(path, target, actual)


def without_times(text: str) -> str:
    return re.sub(r'"(created_at|completed_at)":\s*\d+', r'"\1":0', text)


@pytest.mark.parametrize("target", [RESPONSES, *DIALECTS])
@pytest.mark.parametrize("path", [path for path in inputs("requests", "json") if not is_chat(path)], ids=case_id)
def test_responses_request_recorded_matches_golden_file(path: Path, target: str) -> None:
    try:
        built = encode_responses_request(DIALECTS.get(target), path.read_bytes(), PROFILE)
    except InvalidRequest as error:
        check_golden(path, target, json.dumps({"param": error.param, "error": error.message}, indent=2) + "\n")
    else:
        check_golden(path, target, format_json(built.body, dropped=list(built.dropped_fields)))


@pytest.mark.parametrize("path", inputs("responses", "json"), ids=case_id)
def test_response_recorded_matches_golden_file_of_responses(path: Path) -> None:
    raw = path.read_bytes()
    encoded = responses_codec(upstream_of(path), responses_request(path), PROFILE).decode_response(raw)
    if not is_chat(path):
        assert encoded.body == raw
    if b"custom_tool_call" not in encoded.body:
        validate_response(json.loads(encoded.body))
    check_golden(path, RESPONSES, without_times(format_json(encoded.body)))


@pytest.mark.parametrize("path", inputs("streams", "sse"), ids=case_id)
def test_stream_recorded_matches_golden_file_of_responses(path: Path) -> None:
    transform = create_responses_stream(upstream_of(path), responses_request(path), PROFILE)
    actual = transform.feed(path.read_bytes()) + transform.end()
    assert transform.has_ended
    assert (transform.finish_reason is None) == (transform.error is not None)
    check = read_events if b"custom_tool_call" in actual or b"vendor_thing" in actual else validate_events
    assert check(actual)[-1]["type"].removeprefix("response.") in ("completed", "incomplete", "failed")
    check_golden(path, RESPONSES, without_times(actual.decode()))
