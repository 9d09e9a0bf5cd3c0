"""Writes docs/reference/coding-agents.md: a table of agents and faults, and why an agent did not finish."""

from __future__ import annotations

import json
import re
import tomllib

from tests.agents.agents import AGENTS, HERE
from tests.agents.running import Outcome
from tests.agents.upstream import FAULTS

PAGE = HERE.parents[1] / "docs" / "reference" / "coding-agents.md"
REASONS: dict[str, dict[str, str]] = tomllib.loads((HERE / "reasons.toml").read_text(encoding="utf-8"))
MARKS = {"finished": "✓", "reported": "reports", "hung": "✗ hangs", "silent": "✗ silent"}
REGISTRY = re.compile(r"^registry\.")
TOP = """# Tested coding agents

`make agents` generates this page. It runs coding agents of other projects, without their user interface, through a real
`svc gateway`. Each run has a gateway, a home folder and a task of its own. Behind the gateway is a scripted provider,
`tests/agents/upstream.py`. The task is to read two files, to edit one of them and to run a command. The provider calls
the agent's own tools for that. A proxy rejects connections to all other hosts.

A provider of Anthropic's API thinks before each tool call if the request asks for thinking or for an effort. If
thinking is enabled and a later request lacks the signatures, the provider returns 400.

* ✓: the file is changed, the command has run, and the exit status is 0.
* *reports*: the agent stops and says that it failed. The reasons are below.
* ✗: the agent hangs, or does not say that it failed.

The faults occur when the provider is to edit the file:

* *529 twice*: the provider returns 529 to two requests.
* *cut*: the provider resets the connection in the middle of a tool call.
* *429*: the provider returns 429 with `retry-after: 1` once.
* *silent before*, *silent after*: the provider is silent for 40 seconds, before or after the first event. The gateway
  ends a stream with an error after 30 seconds of silence (`idle_timeout`).

"""
NOT_TRIED = """
## Not tested

| Agent | Reason |
|---|---|
| Crush | Its package downloads the program during the installation |
| goose | It was found in no package index |
| Mistral Vibe | It needs Python 3.12. The tests run with Python 3.11 |
"""


def page(outcomes: list[Outcome]) -> str:
    """Return the whole page."""
    return TOP + _table(outcomes) + _reasons(outcomes) + _agents(outcomes) + NOT_TRIED


def reason(one: Outcome) -> str:
    """Return why a known failure occurs, or an empty string."""
    named = REASONS.get(one.agent, {})
    return named.get(f"{one.fault or 'task'} {one.dialect}", named.get(one.fault or "task", ""))


def _table(outcomes: list[Outcome]) -> str:
    heads = ("task", "529 twice", "cut", "429", "silent before", "silent after")
    text = f"| Agent | Endpoint | Provider | {' | '.join(heads)} |\n|---|---|---|{'---|' * len(heads)}\n"
    found = {(one.agent, one.dialect, one.upstream, one.fault): MARKS[one.verdict] for one in outcomes}
    for agent in AGENTS:
        for dialect, upstream in agent.pairs:
            cells = [found.get((agent.name, dialect, upstream, fault), "–") for fault in ("", *FAULTS)]
            text += f"| {agent.name} | `{dialect}` | `{upstream}` | {' | '.join(cells)} |\n"
    return text


def _reasons(outcomes: list[Outcome]) -> str:
    rows: dict[tuple[str, str, str], list[str]] = {}
    for one in outcomes:
        if one.verdict != "finished":
            rows.setdefault((one.agent, one.fault or "task", reason(one)), []).append(
                f"`{one.dialect}` → `{one.upstream}`"
            )
    if not rows:
        return ""
    lines = [f"| {agent} | {fault} | {', '.join(pairs)} | {text} |\n" for (agent, fault, text), pairs in rows.items()]
    head = "| Agent | Fault | Endpoint and provider | Reason |\n|---|---|---|---|\n"
    return f"\n## Runs that do not finish\n\n{head}{''.join(lines)}"


def _agents(outcomes: list[Outcome]) -> str:
    known = versions()
    lines = []
    for agent in AGENTS:
        own = [one for one in outcomes if one.agent == agent.name]
        modes = {mode for one in own for mode in one.streams}
        mode = (
            " and ".join(name for name, found in (("JSON", False in modes), ("stream", True in modes)) if found) or "–"
        )
        hosts = {"its package registry" if REGISTRY.match(host) else f"`{host}`" for one in own for host in one.hosts}
        lines.append(f"| {agent.name} | {known[agent.package]} | {mode} | {', '.join(sorted(hosts)) or '–'} |\n")
    head = "\n## Versions\n\nThe last column names hosts that the agent called in spite of its switches.\n\n"
    return head + "| Agent | Version | Asks for | Other hosts |\n|---|---|---|---|\n" + "".join(lines)


def versions() -> dict[str, str]:
    """Return the locked version of each package."""
    packages = json.loads((HERE / "locks" / "package.json").read_text(encoding="utf-8"))["dependencies"]
    found = {name: version.rpartition("@")[2] for name, version in packages.items()}
    lock = (HERE / "locks" / "python.lock").read_text(encoding="utf-8")
    return {**found, **dict(re.findall(r"^([a-z0-9-]+)==([\w.]+)", lock, flags=re.M))}


def needs_reason(one: Outcome) -> bool:
    """Whether this run fails `make agents`."""
    return one.verdict == "hung" or (one.verdict != "finished" and not reason(one))
