"""Requests of coding agents, recorded by `make agents`: each kind of provider gets all that they say.

After an intended change of the dropped fields, run this with SVC_REWRITE_GOLDEN=1 and read the diff.
"""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.agent_conversations import read
from tests.e2e.harness import CLAUDE, GPT, KEY, LLAMA, Gateway
from tests.fakes.provider import FakeProvider

FOLDER = Path(__file__).parent / "agent_requests"
FILES = sorted(FOLDER.glob("*.*.json"))
DROPPED = FOLDER / "dropped.json"
UPSTREAMS = {"chat": ("C", LLAMA), "messages": ("B", CLAUDE), "responses": ("A", GPT)}
SAFE_UUID = "00000000-0000-4000-8000-000000000000"
PRIVATE = re.compile(
    r"/(?:tmp|root|work|opt)/|127\.0\.0\.1:(?!3000)|Bearer |sk-|svc_|[0-9a-f]{8}-[0-9a-f]{4}-|[1-9a-f][0-9a-f]{31}"
    r"|20(?!26-01-01)\d\d-\d\d-\d\d"
)


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_agent_request_recorded_has_nothing_private(path: Path) -> None:
    body = json.dumps(json.loads(path.read_text(encoding="utf-8"))["body"])
    assert not PRIVATE.findall(body.replace(SAFE_UUID, ""))


def dialect_of(path: Path) -> str:
    return path.stem.split(".")[1]


@pytest.mark.parametrize(
    ("path", "upstream"),
    [(path, name) for path in FILES for name in UPSTREAMS if name != "responses" or dialect_of(path) == name],
    ids=lambda value: value if isinstance(value, str) else value.stem,
)
def test_agent_request_recorded_reaches_provider(
    path: Path, upstream: str, gateway: Gateway, fakes: dict[str, FakeProvider]
) -> None:
    dialect = dialect_of(path)
    letter, model = UPSTREAMS[upstream]
    recorded = json.loads(path.read_text(encoding="utf-8"))
    body = {**recorded["body"], "model": model}
    raw = json.dumps(body, ensure_ascii=False).encode()
    got = gateway.request("POST", recorded["path"], raw, key=KEY, headers=recorded["headers"])
    assert got.status == 200, got.body
    sent = fakes[letter].wait()
    if dialect == upstream:
        check_unchanged(raw, sent.body, upstream)
        return
    check_translated(read(dialect, body), read(upstream, sent.json))
    check_dropped(path.stem, upstream, got.headers.get("x-svc-dropped", ""))


def check_unchanged(raw: bytes, sent: bytes, upstream: str) -> None:
    """The gateway forwards bytes, but asks for the usage of a stream of chat completions."""
    if upstream != "chat":
        assert sent == raw
    else:
        assert {**json.loads(sent), "stream_options": 0} == {**json.loads(raw), "stream_options": 0}


def check_translated(client: Any, provider: Any) -> None:
    for name in ("system", "user", "assistant", "calls", "results", "images"):
        assert getattr(provider, name) == getattr(client, name), name
    assert list(provider.tools) == list(client.tools)
    for name, schema in client.tools.items():
        assert schema is None or provider.tools[name] == schema, name


def check_dropped(name: str, upstream: str, dropped: str) -> None:
    """Compare the header x-svc-dropped with the recorded one."""
    expected = json.loads(DROPPED.read_text(encoding="utf-8")) if DROPPED.exists() else {}
    if os.environ.get("SVC_REWRITE_GOLDEN") == "1":
        expected.setdefault(name, {})[upstream] = dropped
        DROPPED.write_text(json.dumps(expected, indent=1, sort_keys=True) + "\n", encoding="utf-8")
    assert dropped == expected[name][upstream]
