"""The Anthropic wire format: messages, events and errors as published, and request validation. No I/O.

Streams are lists of whole events, so that a test can leave out, repeat, reorder or cut them.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any

from tests.fakes.provider import Recorded
from tests.fakes.script import Script, answer, sse

ID = "msg_fake1"
MODEL = "claude-3-5-sonnet-20241022"
TEXT = "Hello from the fake, with ünïcode and 🦙."
USAGE = {"input_tokens": 9, "cache_creation_input_tokens": 0, "cache_read_input_tokens": 2, "output_tokens": 7}

Tool = tuple[str, str, str]
"""Id, name, arguments (JSON text)."""

VERSIONS = ("2023-06-01", "2026-10-21")
"""Values of the header `anthropic-version`. The newer one rejects temperature, top_p and top_k."""

FIELDS = {
    *("model", "messages", "max_tokens", "system", "stop_sequences", "stream", "temperature", "top_p", "top_k"),
    *("tools", "tool_choice", "thinking", "metadata", "output_config", "service_tier", "cache_control"),
    *("container", "context_management", "mcp_servers", "inference_geo"),
}

COUNT_PATH = "/v1/messages/count_tokens"
COUNT_FIELDS = FIELDS - {"max_tokens", "stream", "temperature", "top_p", "top_k", "stop_sequences", "metadata"}


def event(name: str, **fields: Any) -> bytes:
    return f"event: {name}\ndata: {json.dumps({'type': name, **fields})}\n\n".encode()


def message(
    content: str | Sequence[dict[str, Any]] = TEXT, *, stop: str = "end_turn", usage: dict[str, int] | None = None
) -> dict[str, Any]:
    """Return a complete message. `content` is text or a list of blocks."""
    blocks = [text(content)] if isinstance(content, str) else list(content)
    base = {"id": ID, "type": "message", "role": "assistant", "model": MODEL, "content": blocks}
    return {**base, "stop_reason": stop, "stop_sequence": None, "usage": usage or USAGE}


def text(words: str) -> dict[str, Any]:
    return {"type": "text", "text": words}


def thinking(words: str, signature: str = "c2ln") -> dict[str, Any]:
    return {"type": "thinking", "thinking": words, "signature": signature}


def redacted(data: str = "aGlkZGVu") -> dict[str, Any]:
    return {"type": "redacted_thinking", "data": data}


def tool_use(one: str, name: str, arguments: str) -> dict[str, Any]:
    return {"type": "tool_use", "id": one, "name": name, "input": json.loads(arguments)}


def start() -> bytes:
    whole = {**message([]), "stop_reason": None, "usage": {**USAGE, "output_tokens": 1}}
    return event("message_start", message=whole)


def ping() -> bytes:
    return event("ping")


def block(index: int, content: dict[str, Any], *, every: int = 6) -> list[bytes]:
    """Return the events of one content block. Text or arguments are split every `every` characters."""
    kind = content["type"]
    opening = dict(content)
    deltas: list[dict[str, Any]] = []
    if kind == "text":
        opening["text"] = ""
        deltas = [{"type": "text_delta", "text": part} for part in parts(content["text"], every)]
    elif kind == "thinking":
        opening |= {"thinking": "", "signature": ""}
        deltas = [{"type": "thinking_delta", "thinking": part} for part in parts(content["thinking"], every)]
        deltas.append({"type": "signature_delta", "signature": content["signature"]})
    elif kind == "tool_use":
        opening["input"] = {}
        whole = json.dumps(content["input"])
        deltas = [{"type": "input_json_delta", "partial_json": part} for part in ["", *parts(whole, every)]]
    middle = [event("content_block_delta", index=index, delta=delta) for delta in deltas]
    opened = event("content_block_start", index=index, content_block=opening)
    return [opened, *middle, event("content_block_stop", index=index)]


def parts(words: str, every: int) -> Iterable[str]:
    return (words[at : at + every] for at in range(0, len(words), every))


def closing(stop: str = "end_turn", usage: dict[str, int] | None = None) -> list[bytes]:
    """Return `message_delta` with the cumulative usage, and `message_stop`."""
    delta = {"stop_reason": stop, "stop_sequence": None}
    return [event("message_delta", delta=delta, usage=usage or {"output_tokens": 7}), event("message_stop")]


def stream(content: str | Sequence[dict[str, Any]] = TEXT, *, stop: str = "end_turn") -> list[bytes]:
    """Return all events of a message."""
    blocks = [text(content)] if isinstance(content, str) else list(content)
    middle = [one for index, content in enumerate(blocks) for one in block(index, content)]
    return [start(), ping(), *middle, *closing(stop)]


def error(kind: str = "invalid_request_error", message: str = "The fake rejects the request.") -> dict[str, Any]:
    return {"type": "error", "error": {"type": kind, "message": message}, "request_id": "req_fake1"}


def error_event(kind: str = "overloaded_error", message: str = "Overloaded") -> bytes:
    return event("error", error={"type": kind, "message": message}, request_id="req_fake1")


class AnthropicWire:
    """A provider with Anthropic's wire format. `models` is its model list."""

    def __init__(self, *, models: Sequence[str] = (MODEL,)) -> None:
        self.models = tuple(models)

    def refusal(self, seen: Recorded, key: str) -> tuple[str, Script] | None:
        if key not in (seen.headers.get("x-api-key"), seen.headers.get("authorization", "").removeprefix("Bearer ")):
            return "wrong key", answer(401, error("authentication_error", "invalid x-api-key"))
        if seen.headers.get("anthropic-version") not in VERSIONS:
            return "no anthropic-version", answer(400, error(message="anthropic-version: header is required"))
        if seen.method == "GET" and seen.path.split("?")[0] == "/v1/models":
            return None
        complaint = self._complaint(seen)
        return (complaint, answer(400, error(message=complaint))) if complaint else None

    def _complaint(self, seen: Recorded) -> str | None:
        path = seen.path.split("?")[0]
        if (seen.method, path) not in (("POST", "/v1/messages"), ("POST", COUNT_PATH)):
            return f"no such address: {seen.method} {seen.path}"
        if seen.headers.get("content-type", "").split(";")[0] != "application/json":
            return f"wrong content-type {seen.headers.get('content-type')!r}"
        request = seen.json
        if extra := sorted(set(request) - (COUNT_FIELDS if path == COUNT_PATH else FIELDS)):
            return f"{extra[0]}: Extra inputs are not permitted"
        if path != COUNT_PATH and type(request.get("max_tokens")) is not int:
            return "max_tokens: Field required"
        newest = seen.headers["anthropic-version"] == VERSIONS[-1]
        if newest and not request.keys().isdisjoint({"temperature", "top_p", "top_k"}):
            return "temperature, top_p and top_k: Extra inputs are not permitted"
        if not 0 <= request.get("temperature", 0) <= 1:
            return "temperature: range: 0..1"
        return turns_complaint(request["messages"]) or tools_complaint(request)

    def usual(self, seen: Recorded) -> Script:
        if seen.method == "GET":
            rows = [{"type": "model", "id": name, "display_name": name} for name in self.models]
            return answer(200, {"data": rows, "has_more": False, "first_id": None, "last_id": None})
        if seen.path.split("?")[0] == COUNT_PATH:
            return answer(200, {"input_tokens": 14})
        if seen.json.get("stream"):
            return sse(stream())
        return answer(200, message())


def turns_complaint(messages: list[dict[str, Any]]) -> str | None:
    """Check roles, empty text, and that the next message has the results of all tool calls of a message.

    A system message is allowed between a user message and an assistant message, or as the last one:
    https://platform.claude.com/docs/en/build-with-claude/mid-conversation-system-messages
    """
    expected: set[str] = set()
    before = ""
    for turn in messages:
        if turn["role"] not in ("user", "assistant", "system"):
            return f"messages: unexpected role {turn['role']!r}"
        if (turn["role"] == "system" and before != "user") or (before == "system" and turn["role"] != "assistant"):
            return f"messages: unexpected role {turn['role']!r} after {before or 'nothing'}"
        before = turn["role"]
        content = turn["content"]
        blocks = [text(content)] if isinstance(content, str) else content
        if not blocks or any(one["type"] == "text" and not one["text"] for one in blocks):
            return "messages: text content blocks must be non-empty"
        results = {one["tool_use_id"] for one in blocks if one["type"] == "tool_result"}
        if results != expected:
            return "messages: tool_use ids and tool_result blocks do not match"
        expected = {one["id"] for one in blocks if one["type"] == "tool_use"}
    return None


def tools_complaint(request: dict[str, Any]) -> str | None:
    """Check the tools and the tool choice."""
    for tool in request.get("tools", []):
        if tool.get("type", "custom") == "custom" and not {"name", "input_schema"} <= tool.keys():
            return "tools: input_schema: Field required"
    choice = request.get("tool_choice")
    if choice is not None and choice.get("type") not in ("auto", "any", "tool", "none"):
        return "tool_choice: unexpected type"
    return None
