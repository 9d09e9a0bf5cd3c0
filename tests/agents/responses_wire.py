"""The wire format of OpenAI's Responses API, as far as the scripted provider needs it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

ID = "resp_fake1"
USAGE = {
    "input_tokens": 11,
    "input_tokens_details": {"cached_tokens": 0},
    "output_tokens": 7,
    "output_tokens_details": {"reasoning_tokens": 0},
    "total_tokens": 18,
}


def message(text: str) -> dict[str, Any]:
    part = {"type": "output_text", "text": text, "annotations": [], "logprobs": []}
    return {"type": "message", "id": "msg_1", "status": "completed", "role": "assistant", "content": [part]}


def reasoning(sealed: str) -> dict[str, Any]:
    return {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": sealed}


def call(one: str, name: str, arguments: str, *, custom: bool, namespace: str = "") -> dict[str, Any]:
    """Return a call of a function, or of a custom tool with `arguments` as its input."""
    kind, field = ("custom_tool_call", "input") if custom else ("function_call", "arguments")
    item = {"type": kind, "id": f"item_{one}", "call_id": one, "name": name, field: arguments, "status": "completed"}
    return {**item, "namespace": namespace} if namespace else item


def response(output: Sequence[dict[str, Any]], status: str = "completed") -> dict[str, Any]:
    return {
        "id": ID,
        "object": "response",
        "created_at": 1_700_000_000,
        "status": status,
        "model": "gpt-5",
        "output": list(output),
        "parallel_tool_calls": True,
        "tool_choice": "auto",
        "tools": [],
        "usage": USAGE if status == "completed" else None,
    }


def stream(output: Sequence[dict[str, Any]], every: int = 12) -> list[bytes]:
    """Return all events of a response. Texts and arguments are split every `every` characters."""
    events: list[tuple[str, dict[str, Any]]] = [
        ("response.created", {"response": response([], "in_progress")}),
        ("response.in_progress", {"response": response([], "in_progress")}),
    ]
    for index, item in enumerate(output):
        events += _item(index, item, every)
    events.append(("response.completed", {"response": response(output)}))
    return [
        f"event: {name}\ndata: {json.dumps({'type': name, 'sequence_number': at, **fields})}\n\n".encode()
        for at, (name, fields) in enumerate(events)
    ]


def _item(index: int, item: dict[str, Any], every: int) -> list[tuple[str, dict[str, Any]]]:
    kind = item["type"]
    where = {"item_id": item["id"], "output_index": index}
    opened: dict[str, Any] = {**item, "status": "in_progress"}
    middle: list[tuple[str, dict[str, Any]]] = []
    if kind == "message":
        part = item["content"][0]
        opened["content"] = []
        where["content_index"] = 0
        middle.append(("response.content_part.added", {**where, "part": {**part, "text": ""}}))
        for delta in _split(part["text"], every):
            middle.append(("response.output_text.delta", {**where, "delta": delta, "logprobs": []}))
        middle.append(("response.output_text.done", {**where, "text": part["text"], "logprobs": []}))
        middle.append(("response.content_part.done", {**where, "part": part}))
    elif kind in ("function_call", "custom_tool_call"):
        field, name = (
            ("arguments", "function_call_arguments") if kind == "function_call" else ("input", "custom_tool_call_input")
        )
        opened[field] = ""
        middle = [(f"response.{name}.delta", {**where, "delta": delta}) for delta in _split(item[field], every)]
        middle.append((f"response.{name}.done", {**where, field: item[field]}))
    if kind == "reasoning":
        opened = {**item, "encrypted_content": ""}
    added = ("response.output_item.added", {"output_index": index, "item": opened})
    return [added, *middle, ("response.output_item.done", {"output_index": index, "item": item})]


def _split(text: str, every: int) -> list[str]:
    return [text[at : at + every] for at in range(0, len(text), every)]


def error(kind: str, text: str) -> dict[str, Any]:
    return {"error": {"message": text, "type": kind, "param": None, "code": None}}
