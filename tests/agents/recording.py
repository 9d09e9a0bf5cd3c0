"""Writes the requests of agents to tests/e2e/agent_requests/, without anything of this machine.

Of each agent and endpoint, the last request of each form is written: it has the whole conversation. Long texts are cut.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from tests.agents.running import Outcome

FOLDER = Path(__file__).resolve().parents[1] / "e2e" / "agent_requests"
MAX_TEXT, KEPT_TEXT = 160, 100
HEADERS = ("accept", "anthropic-beta", "anthropic-version", "content-type", "openai-beta")
NO_UUID = "00000000-0000-4000-8000-000000000000"
MASKS = (
    (re.compile(r"/tmp/svc-agents-\w+/task"), "/home/user/task"),
    (re.compile(r"/tmp/svc-agents-\w+/home"), "/home/user"),
    (re.compile(r"-tmp-svc-agents-\w+-task"), "-home-user-task"),
    (re.compile(r"http://127\.0\.0\.1:\d+"), "http://127.0.0.1:3000"),
    (re.compile(r"(?<![0-9a-f])[0-9a-f]{8}-(?:[0-9a-f]{4}-){3}[0-9a-f]{12}\b"), NO_UUID),
    (re.compile(r"(?<![0-9a-f])[0-9a-f]{32,64}\b"), "0" * 32),
    (re.compile(r"\b1[78]\d{8}(\d{3})?\b"), "1767225600"),
    (re.compile(r"Chunk ID: [0-9a-f]{6}"), "Chunk ID: 000000"),
    (re.compile(r"\b(ses|msg|prt)_[0-9A-Za-z]{20,}\b"), r"\1_1"),
    (re.compile(r"\b20\d\d-\d\d-\d\d(T[\d:.]+Z?)?\b(?![\w-])"), "2026-01-01"),
    (re.compile(r"\b\w{3,9},? (\w{3,9} \d\d?|\d\d? \w{3,9}),? 20\d\d\b"), "Thursday, January 1, 2026"),
    (re.compile(r"\b\d?\d/\d?\d/20\d\d(, \d?\d:\d\d:\d\d( [AP]M)?)?\b"), "1/1/2026"),
    (re.compile(r"\bLinux \d+\.\d+[\w.+-]*"), "Linux 6.1.0"),
    (re.compile(r"(?<![\w/])/(?:root|work|opt|usr/local)/[\w./-]+"), "/home/user/program"),
)


def record(outcome: Outcome) -> list[Path]:
    """Write the requests of one run, and return the files."""
    last: dict[tuple[Any, ...], dict[str, Any]] = {}
    for request in outcome.requests:
        if request.method == "POST" and request.path.split("?")[0] == outcome.dialect:
            body = json.loads(request.body)
            headers = {name: value for name, value in request.headers if name in HEADERS}
            last[(bool(body.get("tools")), *sorted(body))] = {
                "path": request.path,
                "headers": headers,
                "body": clean(body),
            }
    name = re.sub(r"\W+", "-", outcome.agent.lower())
    kind = outcome.dialect.removeprefix("/v1/").split("/")[0]
    files = []
    for number, entry in enumerate(last.values(), 1):
        files.append(FOLDER / f"{name}.{kind}.{number}.json")
        FOLDER.mkdir(exist_ok=True)
        files[-1].write_text(json.dumps(entry, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    return files


def clean(value: Any) -> Any:
    """Return the value with masked and shortened texts."""
    if isinstance(value, dict):
        return {clean(name): clean(part) for name, part in value.items()}
    if isinstance(value, list):
        return [clean(part) for part in value]
    if not isinstance(value, str):
        return value
    for pattern, mask in MASKS:
        value = pattern.sub(mask, value)
    return value if len(value) <= MAX_TEXT or value.startswith("{") else f"{value[:KEPT_TEXT]}…"
