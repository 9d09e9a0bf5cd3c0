"""Objects and events of OpenAI's Responses API (https://platform.openai.com/docs/api-reference/responses)."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

ID = "resp_fake1"
USAGE = {
    "input_tokens": 11,
    "input_tokens_details": {"cached_tokens": 4},
    "output_tokens": 7,
    "output_tokens_details": {"reasoning_tokens": 2},
    "total_tokens": 18,
}


def message(text: str) -> dict[str, Any]:
    part = {"type": "output_text", "text": text, "annotations": []}
    return {"type": "message", "id": "msg_1", "status": "completed", "role": "assistant", "content": [part]}


def reasoning(text: str) -> dict[str, Any]:
    return {"type": "reasoning", "id": "rs_1", "summary": [{"type": "summary_text", "text": text}]}


def function_call(call_id: str, name: str, arguments: str) -> dict[str, Any]:
    return {
        "type": "function_call",
        "id": f"fc_{call_id}",
        "call_id": call_id,
        "name": name,
        "arguments": arguments,
        "status": "completed",
    }


def custom_call(call_id: str, name: str, text: str) -> dict[str, Any]:
    return {"type": "custom_tool_call", "id": f"ct_{call_id}", "call_id": call_id, "name": name, "input": text}


def response(items: Sequence[dict[str, Any]], *, status: str = "completed", **fields: Any) -> dict[str, Any]:
    base = {"id": ID, "object": "response", "created_at": 1, "model": "gpt-4o", "error": None}
    return {**base, "status": status, "incomplete_details": None, "output": list(items), "usage": USAGE, **fields}


def stream(items: Sequence[dict[str, Any]], *, end: str | None = "response.completed", **fields: Any) -> list[bytes]:
    """Return all events of a response. With `end=None`, the last one is missing."""
    status = (end or "response.in_progress").removeprefix("response.")
    empty = response([], status="in_progress", usage=None)
    events = [("response.created", {"response": empty}), ("response.in_progress", {"response": empty})]
    for index, item in enumerate(items):
        events += _item_events(index, item)
    if end:
        events.append((end, {"response": response(items, status=status, **fields)}))
    return [event(name, number, **data) for number, (name, data) in enumerate(events)]


def event(name: str, number: int, **data: Any) -> bytes:
    return f"event: {name}\ndata: {json.dumps({'type': name, 'sequence_number': number, **data})}\n\n".encode()


def _item_events(index: int, item: dict[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    at = {"output_index": index, "item_id": item["id"]}
    kind, field, text = {
        "message": lambda: ("response.output_text.delta", "content", item["content"][0]["text"]),
        "reasoning": lambda: ("response.reasoning_summary_text.delta", "summary", item["summary"][0]["text"]),
        "function_call": lambda: ("response.function_call_arguments.delta", "arguments", item["arguments"]),
        "custom_tool_call": lambda: ("response.custom_tool_call_input.delta", "input", item["input"]),
    }[item["type"]]()
    begun = {**item, field: [] if isinstance(item[field], list) else ""}
    deltas = [(kind, {**at, "delta": text[place : place + 4]}) for place in range(0, len(text), 4)]
    return [
        ("response.output_item.added", {"output_index": index, "item": begun}),
        *deltas,
        ("response.output_item.done", {"output_index": index, "item": item}),
    ]
