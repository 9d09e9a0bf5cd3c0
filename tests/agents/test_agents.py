"""The scripted provider and the lines of the how-to guides, without the agents."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.agents.agents import AGENTS, CHAT, MESSAGES, Agent, Place
from tests.agents.recording import FOLDER
from tests.agents.task import ANSWER, missing, prepare
from tests.agents.upstream import Conversation, Play, read_chat, read_messages, read_responses

READERS: dict[str, Callable[[dict[str, Any]], Conversation]] = {
    "chat": read_chat,
    "messages": read_messages,
    "responses": read_responses,
}
RECORDED = [path for path in sorted(FOLDER.glob("*.*.json")) if json.loads(path.read_text())["body"].get("tools")]


@pytest.mark.parametrize("path", RECORDED, ids=lambda path: path.stem)
def test_scripted_provider_calls_tools_of_recorded_agents(path: Path, tmp_path: Path) -> None:
    """A recorded request has all results. Without them, the provider calls the agent's tools for each step."""
    conversation = READERS[path.stem.split(".")[1]](json.loads(path.read_text(encoding="utf-8"))["body"])
    assert conversation.reply(Play(tmp_path)) == ("answer", [], ANSWER)
    answered = set(conversation.answered)
    conversation.answered.clear()
    for step, result in (("read", "call_read_0"), ("edit", "call_edit_0"), ("run", "call_run_0")):
        found, calls, _ = conversation.reply(Play(tmp_path))
        assert found == step
        assert result in {call.id for call in calls} <= answered
        conversation.answered.add(result)


@pytest.mark.parametrize("agent", [one for one in AGENTS if one.page], ids=lambda agent: agent.name)
def test_how_to_guide_lines_name_gateway_key_and_model(agent: Agent, tmp_path: Path) -> None:
    place = Place("http://127.0.0.1:4711", "svc_key", "some-model", agent.pairs[0][0], tmp_path, tmp_path)
    (tmp_path / ".svc").mkdir()
    (tmp_path / ".svc" / "api_key").write_text(place.key)
    lines = place.setup(agent.page, {}).replace("cline auth", "echo")
    run = subprocess.run(
        ["sh", "-ec", f"{lines}\nenv"],
        env={"HOME": str(tmp_path), "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        timeout=10,
        check=True,
    )
    files = [path.read_text() for path in tmp_path.rglob("*") if path.is_file() and path.name != "api_key"]
    told = "\n".join([run.stdout, *files])
    assert place.url in told
    assert place.key in told
    assert place.model in told or agent.name == "aider"  # its model is an argument
    assert "127.0.0.1:3000" not in told


def test_swaps_of_agents_change_the_lines_of_their_pages(tmp_path: Path) -> None:
    for agent in AGENTS:
        for dialect, swaps in agent.swaps.items():
            place = Place("http://127.0.0.1:4711", "k", "m", dialect, tmp_path, tmp_path)
            assert place.setup(agent.page, swaps) != place.setup(agent.page, {}), (agent.name, dialect)


def test_task_is_done_only_after_edit_and_command(tmp_path: Path) -> None:
    prepare(tmp_path)
    assert missing(tmp_path) == "the file is not changed"
    subprocess.run(["sh", "check.sh"], cwd=tmp_path, timeout=10, check=False)
    (tmp_path / "greeting.txt").write_text("Hello, world!\n")
    assert missing(tmp_path) == "the command has not run"
    subprocess.run(["sh", "check.sh"], cwd=tmp_path, timeout=10, check=True)
    assert missing(tmp_path) == ""


def test_model_of_messages_is_an_alias_of_another_provider() -> None:
    assert {agent.model(MESSAGES, CHAT) for agent in AGENTS} == {"claude-sonnet-4-6", "claude-opus-5-5"}
