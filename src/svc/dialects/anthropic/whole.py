"""Whole answers: an Anthropic upstream's -> the hub form -> an Anthropic client's."""

from __future__ import annotations

import time
from typing import Any

import msgspec

from svc.dialects.anthropic.shapes import ANSWER, AnswerShape, Block, finish_reason, stop_reason, usage_object
from svc.dialects.base import Passed
from svc.dialects.failures import failure_of
from svc.dialects.reading import decode_upstream, upstream_object
from svc.dialects.truncated import complete_members
from svc.dialects.values import arguments_text, text_or
from svc.errors import ProviderFailed
from svc.wire.chat import Answer, Part, RedactedThinking, Refusal, Text, Thinking, ToolCall


def read_shape(raw: bytes) -> AnswerShape:
    """Raises ProviderFailed when it is not understandable, or what an error object in it means."""
    try:
        return decode_upstream(ANSWER, raw)
    except ProviderFailed:
        body = upstream_object(raw)
        if body.get("error"):
            raise failure_of(body["error"]) from None
        raise


def pass_answer(raw: bytes) -> Passed:
    """Raises ProviderFailed when it is not understandable."""
    shape = read_shape(raw)
    return Passed(raw, shape.usage.usage(), finish_reason(shape.stop_reason), shape.model)


def read_answer(raw: bytes) -> Answer:
    """Raises ProviderFailed when it is not understandable."""
    shape = read_shape(raw)
    return Answer(
        id=shape.id,
        model=shape.model,
        created=int(time.time()),
        parts=[part for block in shape.content if (part := _part(block)) is not None],
        finish=finish_reason(shape.stop_reason),
        usage=shape.usage.usage(),
    )


def _part(block: Block) -> Part | None:
    """None for what the hub has no place for: the provider's own tools at work."""
    match block.type:
        case "text":
            return Text(block.text) if text_or(block.text, "") else None
        case "thinking":
            return Thinking(text_or(block.thinking, ""), text_or(block.signature, "") or None)
        case "redacted_thinking":
            return RedactedThinking(text_or(block.data, ""))
        case "tool_use":
            if not text_or(block.id, "") or not text_or(block.name, ""):
                raise ProviderFailed("The provider's answer has a tool call without a name.")
            return ToolCall(block.id, block.name, arguments_text({} if block.input is None else block.input))
    return None


def write_answer(answer: Answer) -> bytes:
    """A `message`; raises ProviderFailed for the arguments of a finished tool call that are no JSON object.

    A call that the answer's limit, or a filter, has cut off keeps the arguments that are complete.
    """
    cut = answer.finish in ("length", "content_filter")
    tools = any(isinstance(part, ToolCall) for part in answer.parts)
    refused = any(isinstance(part, Refusal) for part in answer.parts)
    body = {
        "id": answer.id,
        "type": "message",
        "role": "assistant",
        "model": answer.model,
        "content": [_block(part, cut=cut) for part in answer.parts if not isinstance(part, Text) or part.text],
        "stop_reason": stop_reason(answer.finish, tools=tools, refused=refused),
        "stop_sequence": None,
        "usage": usage_object(answer.usage),
    }
    return msgspec.json.encode(body)


def _block(part: Part, *, cut: bool) -> dict[str, Any]:
    match part:
        case Text(text) | Refusal(text):
            return {"type": "text", "text": text}
        case Thinking(text, signature):
            return {"type": "thinking", "thinking": text, "signature": signature or ""}
        case RedactedThinking(data):
            return {"type": "redacted_thinking", "data": data}
        case ToolCall(call_id, name, arguments):
            return {"type": "tool_use", "id": call_id, "name": name, "input": _input(arguments, cut=cut)}
    raise ProviderFailed("The provider's answer was not understandable.")


def _input(arguments: str, *, cut: bool) -> dict[str, Any]:
    if cut:
        return complete_members(arguments)
    try:
        return msgspec.json.decode(arguments, type=dict[str, Any]) if arguments.strip() else {}
    except (msgspec.DecodeError, RecursionError):
        raise ProviderFailed("The model called a tool with arguments that are no JSON object.") from None
