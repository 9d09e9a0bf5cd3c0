"""Recorded requests, answers and streams of each dialect, and what becomes of them for each target dialect."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

import pytest

from svc.dialects import anthropic, openai
from svc.dialects.base import Dialect, ModelProfile
from svc.wire.chat import UpstreamOverrides
from tests.codecs import create_stream_transform, pass_through_request, pass_through_response

HERE = Path(__file__).parent
DIALECTS: dict[str, Dialect] = {"openai": openai.dialect, "anthropic": anthropic.dialect}
QUIRKS = UpstreamOverrides(rejects=("logprobs", "n", "messages[].name"), min_temperature=1e-8)
TARGET = ModelProfile("taken", max_output_tokens=8192, overrides=QUIRKS)
REWRITE = os.environ.get("SVC_REWRITE_GOLDEN") == "1"


def cases(kind: str, suffix: str) -> list[tuple[Path, str]]:
    inputs = sorted(path for path in (HERE / kind).glob(f"*.{suffix}") if ".to-" not in path.name)
    return [(path, name) for path in inputs for name in DIALECTS]


def named(value: object) -> str:
    return value.stem if isinstance(value, Path) else f"to-{value}"


def source(path: Path) -> Dialect:
    return DIALECTS[path.stem.rpartition(".")[2]]


def check(path: Path, to: str, made: str) -> None:
    """The result equals its golden file; with the environment variable it becomes that file."""
    made = re.sub(r"call_[0-9a-f]{32}", "call_made-here", made)
    expected = path.with_name(f"{path.stem}.to-{to}{path.suffix}")
    if REWRITE:
        expected.write_text(made)
    assert made == expected.read_text()


def pretty(raw: bytes, **more: object) -> str:
    body = json.loads(raw)
    if "created" in body and more.get("timeless"):
        body["created"] = 0
    shown = {"dropped": more["dropped"], "body": body} if "dropped" in more else body
    return json.dumps(shown, indent=2, ensure_ascii=False) + "\n"


@pytest.mark.parametrize(("path", "to"), cases("requests", "json"), ids=named)
def test_requests(path: Path, to: str) -> None:
    client, raw = source(path), path.read_bytes()
    if client.name == to:
        built = pass_through_request(client, raw, TARGET)
    else:
        built = DIALECTS[to].encode_request(client.decode_request(raw), TARGET)
    check(path, to, pretty(built.body, dropped=list(built.dropped_fields)))


@pytest.mark.parametrize(("path", "to"), cases("answers", "json"), ids=named)
def test_answers(path: Path, to: str) -> None:
    upstream, raw = source(path), path.read_bytes()
    passed = pass_through_response(upstream, raw)
    if upstream.name == to:
        made = pretty(passed.body)
    else:
        answer = upstream.decode_response(raw)
        assert (answer.usage, answer.finish, answer.model) == (passed.usage, passed.finish_reason, passed.model)
        made = pretty(DIALECTS[to].encode_response(answer), timeless=upstream.name == "anthropic")
    check(path, to, made)


@pytest.mark.parametrize(("path", "to"), cases("streams", "sse"), ids=named)
def test_streams(path: Path, to: str) -> None:
    upstream, raw = source(path), path.read_bytes()
    pipe = create_stream_transform(upstream, DIALECTS[to], include_usage=True)
    made = (pipe.feed(raw) + pipe.end()).decode()
    assert pipe.has_started
    assert pipe.has_ended
    assert (pipe.finish_reason is None) == (pipe.error is not None)
    if upstream.name == "anthropic" and to == "openai":
        made = re.sub(r'"created":\d+', '"created":0', made)
    check(path, to, made)
