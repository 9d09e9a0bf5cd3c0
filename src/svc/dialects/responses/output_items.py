"""Output items of a response, complete or in progress.

Shapes: platform.openai.com/docs/api-reference/responses/object, and openresponses.org/specification.
"""

from __future__ import annotations

from typing import Any, Literal

from svc.dialects.coerce import new_id
from svc.dialects.responses.tools import ToolName

ItemStatus = Literal["in_progress", "completed", "incomplete"]


def text_part(text: str) -> dict[str, Any]:
    """Return an `output_text` part."""
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}


def refusal_part(text: str) -> dict[str, Any]:
    """Return a `refusal` part."""
    return {"type": "refusal", "refusal": text}


def summary_part(text: str) -> dict[str, Any]:
    """Return a part of a reasoning item's summary."""
    return {"type": "summary_text", "text": text}


def message_item(item_id: str, status: ItemStatus, parts: list[dict[str, Any]]) -> dict[str, Any]:
    """Return a `message` item."""
    return {"id": item_id, "type": "message", "status": status, "role": "assistant", "content": parts}


def reasoning_item(item_id: str, status: ItemStatus, text: str, encrypted: str | None) -> dict[str, Any]:
    """Return a `reasoning` item. `encrypted` is the opaque content, if the client requested it."""
    summary = [summary_part(text)] if text else []
    item: dict[str, Any] = {"id": item_id, "type": "reasoning", "status": status, "summary": summary}
    return item if encrypted is None else {**item, "encrypted_content": encrypted}


def call_item(item_id: str, status: ItemStatus, call_id: str, name: ToolName, text: str) -> dict[str, Any]:
    """Return a `function_call` item with arguments, or a `custom_tool_call` item with the input of a custom tool."""
    item: dict[str, Any] = {"id": item_id, "type": "function_call", "status": status, "call_id": call_id}
    item["name"] = name.name
    if name.namespace is not None:
        item["namespace"] = name.namespace
    if name.is_custom:
        return {**item, "type": "custom_tool_call", "input": text}
    return {**item, "arguments": text}


def new_call_id(name: ToolName) -> str:
    """Generate the id of the item of a call."""
    return new_id("ctc_" if name.is_custom else "fc_")
