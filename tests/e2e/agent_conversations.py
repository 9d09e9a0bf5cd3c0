"""What a request says, independent of its dialect, so that both sides of a translation can be compared."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any


@dataclass
class Said:
    """Texts by author, tools by name, and calls and results by the id of the call."""

    system: str = ""
    user: str = ""
    assistant: str = ""
    tools: dict[str, Any] = field(default_factory=dict)
    calls: dict[str, tuple[str, Any]] = field(default_factory=dict)
    results: dict[str, str] = field(default_factory=dict)
    images: int = 0


def read(dialect: str, request: dict[str, Any]) -> Said:
    """Return what the request says."""
    said = {"chat": _chat, "messages": _messages, "responses": _responses}[dialect](request)
    said.system, said.user, said.assistant = (
        "".join(text.split()) for text in (said.system, said.user, said.assistant)
    )  # dialects join texts with different whitespace
    return said


def _chat(request: dict[str, Any]) -> Said:
    said = Said()
    for tool in request.get("tools") or []:
        said.tools[tool["function"]["name"]] = tool["function"].get("parameters")
    for message in request["messages"]:
        text = _text(message.get("content"))
        said.images += sum(part["type"] == "image_url" for part in _parts(message.get("content")))
        if message["role"] == "tool":
            said.results[message["tool_call_id"]] = text
        elif message["role"] in ("system", "developer"):
            said.system += text
        elif message["role"] == "user":
            said.user += text
        else:
            said.assistant += text
        for call in message.get("tool_calls") or []:
            function = call["function"]
            said.calls[call["id"]] = (function["name"], json.loads(function["arguments"]))
    return said


def _messages(request: dict[str, Any]) -> Said:
    said = Said(system=_text(request.get("system")))
    for tool in request.get("tools") or []:
        said.tools[tool["name"]] = tool.get("input_schema")
    for message in request["messages"]:
        said.images += sum(part["type"] == "image" for part in _parts(message["content"]))
        setattr(said, message["role"], getattr(said, message["role"]) + _text(message["content"]))
        for part in _parts(message["content"]):
            if part["type"] == "tool_use":
                said.calls[part["id"]] = (part["name"], part["input"])
            elif part["type"] == "tool_result":
                said.results[part["tool_use_id"]] = _text(part.get("content"))
    return said


def _responses(request: dict[str, Any]) -> Said:
    said = Said(system=request.get("instructions") or "")
    for tool in request.get("tools") or []:
        if tool["type"] == "function":
            said.tools[tool["name"]] = tool.get("parameters")
        elif tool["type"] == "custom":
            said.tools[tool["name"]] = None
    for item in request["input"]:
        kind = item.get("type", "message")
        if kind == "message":
            author = "system" if item["role"] == "developer" else item["role"]
            setattr(said, author, getattr(said, author) + _text(item["content"]))
        elif kind == "function_call":
            said.calls[item["call_id"]] = (item["name"], json.loads(item["arguments"]))
        elif kind == "custom_tool_call":
            said.calls[item["call_id"]] = (item["name"], {"input": item["input"]})
        elif kind.endswith("_call_output"):
            said.results[item["call_id"]] = _text(item["output"])
    return said


def _parts(content: Any) -> list[dict[str, Any]]:
    return content if isinstance(content, list) else []


def _text(content: Any) -> str:
    if isinstance(content, str):
        return content
    return "".join(
        part.get("text", "") for part in _parts(content) if part["type"] in ("text", "input_text", "output_text")
    )
