"""The wire format of upstreams with the Responses API: responses, events and errors. No I/O."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

CREATED = 1_700_000_000
TEXT = "Hello from the fake, with ünïcode and 🦙."
Tool = tuple[str, str, str]
"""Id, name, arguments (JSON text)."""
ID = "resp_fake1"
MODEL = "gpt-4o-2024-08-06"
USAGE = {
    "input_tokens": 11,
    "input_tokens_details": {"cached_tokens": 4, "cache_write_tokens": 0},
    "output_tokens": 7,
    "output_tokens_details": {"reasoning_tokens": 2},
    "total_tokens": 18,
}


def frame(**fields: Any) -> dict[str, Any]:
    """Return a response object in progress."""
    base = {"id": ID, "object": "response", "created_at": CREATED, "completed_at": None, "status": "in_progress"}
    base |= {"background": False, "error": None, "incomplete_details": None, "instructions": None, "model": MODEL}
    base |= {"max_output_tokens": None, "max_tool_calls": None, "output": [], "parallel_tool_calls": True}
    base |= {"previous_response_id": None, "prompt_cache_key": None, "safety_identifier": None, "store": True}
    base |= {"reasoning": {"effort": None, "summary": None}, "service_tier": "default", "temperature": 1.0}
    base |= {"text": {"format": {"type": "text"}}, "tool_choice": "auto", "tools": [], "top_logprobs": 0, "top_p": 1.0}
    base |= {"presence_penalty": 0.0, "frequency_penalty": 0.0, "truncation": "disabled", "usage": None, "metadata": {}}
    return {**base, **fields}


def message(text: str = TEXT, status: str = "completed") -> dict[str, Any]:
    part = {"type": "output_text", "text": text, "annotations": [], "logprobs": []}
    return {"id": "msg_fake1", "type": "message", "status": status, "role": "assistant", "content": [part]}


def call(tool: Tool, number: int = 0) -> dict[str, Any]:
    call_id, name, arguments = tool
    item = {"id": f"fc_fake{number}", "type": "function_call", "status": "completed", "call_id": call_id}
    return {**item, "name": name, "arguments": arguments}


def response(text: str | None = TEXT, *, tools: Sequence[Tool] = (), **fields: Any) -> dict[str, Any]:
    """Return a complete response."""
    output = [message(text)] if text else []
    output += [call(tool, number) for number, tool in enumerate(tools)]
    done = {"status": "completed", "completed_at": CREATED + 1, "output": output, "usage": USAGE}
    return frame(**{**done, **fields})


def error(message: str = "The fake failed.", code: str = "server_error") -> dict[str, Any]:
    return {"type": "error", "code": code, "message": message, "param": None}


def event(number: int, kind: str, **fields: Any) -> bytes:
    data = {"type": kind, "sequence_number": number, **fields}
    return b"event: " + kind.encode() + b"\ndata: " + json.dumps(data).encode() + b"\n\n"


def stream(text: str = TEXT, *, end: bool = True, **fields: Any) -> list[bytes]:
    """Return all events of a response with one text, one delta per word."""
    place = {"item_id": "msg_fake1", "output_index": 0}
    part = {**place, "content_index": 0}
    pieces = [word if at == 0 else " " + word for at, word in enumerate(text.split(" "))]
    opened = {**message("", "in_progress"), "content": []}
    kinds: list[tuple[str, dict[str, Any]]] = [
        ("response.created", {"response": frame()}),
        ("response.in_progress", {"response": frame()}),
        ("response.output_item.added", {"output_index": 0, "item": opened}),
        ("response.content_part.added", {**part, "part": message("")["content"][0]}),
        *(("response.output_text.delta", {**part, "delta": piece, "logprobs": []}) for piece in pieces),
        ("response.output_text.done", {**part, "text": text, "logprobs": []}),
        ("response.content_part.done", {**part, "part": message(text)["content"][0]}),
        ("response.output_item.done", {"output_index": 0, "item": message(text)}),
    ]
    if end:
        done = response(text, **fields)
        kinds.append((f"response.{done['status']}", {"response": done}))
    return [event(number, kind, **more) for number, (kind, more) in enumerate(kinds)]


def tool_stream(tools: Sequence[Tool], *, every: int = 5) -> list[bytes]:
    """Return all events of a response with calls. Arguments are split every `every` characters."""
    kinds: list[tuple[str, dict[str, Any]]] = [("response.created", {"response": frame()})]
    for index, tool in enumerate(tools):
        done = call(tool, index)
        place = {"item_id": done["id"], "output_index": index}
        opened = {**done, "status": "in_progress", "arguments": ""}
        kinds.append(("response.output_item.added", {"output_index": index, "item": opened}))
        for at in range(0, len(tool[2]), every):
            kinds.append(("response.function_call_arguments.delta", {**place, "delta": tool[2][at : at + every]}))
        kinds.append(("response.function_call_arguments.done", {**place, "name": tool[1], "arguments": tool[2]}))
        kinds.append(("response.output_item.done", {"output_index": index, "item": done}))
    kinds.append(("response.completed", {"response": response(None, tools=tools)}))
    return [event(number, kind, **more) for number, (kind, more) in enumerate(kinds)]
