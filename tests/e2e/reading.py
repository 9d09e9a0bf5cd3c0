"""Parses streams as strictly as the strictest client."""

from __future__ import annotations

import json
from typing import Any


def data_lines(body: bytes) -> list[str]:
    """Return the data of every event. Lines other than `data:` and comments are an error."""
    found = []
    for event in body.decode("utf-8").split("\n\n"):
        lines = [line for line in event.split("\n") if line and not line.startswith(":")]
        assert len(lines) <= 1, event
        for line in lines:
            assert line.startswith("data: "), line
            found.append(line.removeprefix("data: "))
    return found


def complete_chunks(body: bytes, *, usage: bool = False) -> list[dict[str, Any]]:
    """Return the chunks of a complete stream, checked against OpenAI's documented format and order."""
    lines = data_lines(body)
    assert lines[-1] == "[DONE]"
    assert lines.count("[DONE]") == 1
    chunks = [json.loads(line) for line in lines[:-1]]
    assert {chunk["object"] for chunk in chunks} == {"chat.completion.chunk"}
    assert len({(chunk["id"], chunk["created"], chunk["model"]) for chunk in chunks}) == 1
    assert type(chunks[0]["created"]) is int
    content = chunks[:-1] if usage else chunks
    if usage:
        assert chunks[-1]["choices"] == []
        counts = chunks[-1]["usage"]
        assert counts["total_tokens"] == counts["prompt_tokens"] + counts["completion_tokens"]
        assert all(chunk.get("usage", "missing") is None for chunk in content)
    else:
        assert not [chunk for chunk in chunks if chunk.get("usage")]
    _check_choices([chunk["choices"] for chunk in content])
    return chunks


def _check_choices(all_choices: list[list[dict[str, Any]]]) -> None:
    assert all(len(choices) == 1 for choices in all_choices)
    choices = [one[0] for one in all_choices]
    assert {choice["index"] for choice in choices} == {0}
    roles = [choice["delta"]["role"] for choice in choices if "role" in choice["delta"]]
    assert roles == ["assistant"]
    assert "role" in choices[0]["delta"]
    reasons = [choice["finish_reason"] for choice in choices]
    assert reasons[:-1] == [None] * (len(reasons) - 1)
    assert reasons[-1] in ("stop", "length", "tool_calls", "content_filter")
    _check_tools([call for choice in choices for call in choice["delta"].get("tool_calls") or []])


def _check_tools(calls: list[dict[str, Any]]) -> None:
    """Check that each index has one id and name, and that indices are consecutive integers from 0."""
    opened = [call["index"] for call in calls if "id" in call]
    assert opened == list(range(len(opened)))
    for call in calls:
        assert type(call["index"]) is int
        assert call["index"] in opened
        assert ("id" in call) == ("name" in call["function"])


def text_of(chunks: list[dict[str, Any]]) -> str:
    return "".join(choice["delta"].get("content") or "" for chunk in chunks for choice in chunk["choices"])


def finish_of(chunks: list[dict[str, Any]]) -> str:
    return next(choice["finish_reason"] for chunk in chunks for choice in chunk["choices"] if choice["finish_reason"])


def tools_of(chunks: list[dict[str, Any]]) -> list[tuple[str, str, str]]:
    """Return id, name and concatenated arguments of every tool call."""
    found: list[list[str]] = []
    for call in (
        call for chunk in chunks for choice in chunk["choices"] for call in choice["delta"].get("tool_calls") or []
    ):
        if "id" in call:
            found.append([call["id"], call["function"]["name"], ""])
        found[call["index"]][2] += call["function"].get("arguments", "")
    return [(one, name, arguments) for one, name, arguments in found]


def broken_stream(body: bytes) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Return the chunks and the error of an interrupted stream, which must not look complete."""
    lines = data_lines(body)
    assert "[DONE]" not in lines
    *chunks, last = [json.loads(line) for line in lines]
    assert not [chunk for chunk in chunks if "error" in chunk]
    error = last["error"]
    assert {"message", "type", "code", "param"} <= error.keys()
    return chunks, error
