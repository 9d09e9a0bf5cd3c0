"""Whole answers: an OpenAI upstream's -> the hub form -> an OpenAI client's."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from svc.dialects.openai.answer import TEXT_FIELDS, mend_answer, payload_name
from svc.dialects.openai.shapes import FINISH, UsageShape
from svc.dialects.openai.usage import usage_of
from svc.dialects.reading import upstream_object
from svc.dialects.values import arguments_text, new_id, text_or
from svc.errors import ProviderFailed
from svc.wire.chat import Answer, Part, RedactedThinking, Refusal, Text, Thinking, ToolCall
from svc.wire.usage import Usage

CUSTOM_BEGIN: Final = '{"input":"'
CUSTOM_END: Final = '"}'
"""Around the text of a custom tool's call, where a call has to have JSON arguments."""


def escaped(text: str) -> str:
    """As it stands inside a JSON string."""
    return msgspec.json.encode(text)[1:-1].decode()


def read_answer(raw: bytes) -> Answer:
    """The first choice; raises ProviderFailed when it is not understandable."""
    body = mend_answer(upstream_object(raw))
    choice = body["choices"][0]
    usage = body.get("usage")
    return Answer(
        id=body["id"],
        model=body["model"],
        created=body["created"],
        parts=list(_parts(choice["message"])),
        finish=FINISH[choice["finish_reason"]],
        usage=usage_of(msgspec.convert(usage, UsageShape)) if usage else None,
    )


def _parts(message: dict[str, Any]) -> list[Part]:
    parts = thoughts(message)
    for name, kind in (("content", Text), ("refusal", Refusal)):
        text = message.get(name)
        if isinstance(text, str) and text:
            parts.append(kind(text))
    for call in message.get("tool_calls") or []:
        parts.append(_call(call))
    legacy = message.get("function_call")
    if isinstance(legacy, dict) and not message.get("tool_calls"):
        parts.append(_legacy_call(legacy))
    return parts


def _call(call: dict[str, Any]) -> ToolCall:
    """Raises ProviderFailed for a call that is neither of a function nor of a custom tool."""
    name = payload_name(call)
    if not name:
        raise ProviderFailed(f"The provider called a tool of the type `{call['type'][:50]}`, which is unknown here.")
    payload = call[name]
    text = payload[TEXT_FIELDS[name]]
    arguments = CUSTOM_BEGIN + escaped(text) + CUSTOM_END if name == "custom" else text
    return ToolCall(call["id"], payload["name"], arguments)


def _legacy_call(function: dict[str, Any]) -> ToolCall:
    """Read a `function_call`, which has no id."""
    name = text_or(function.get("name"), "")
    if not name:
        raise ProviderFailed("The provider's answer has a function call without a name.")
    return ToolCall(new_id("call_"), name, arguments_text(function.get("arguments")))


def thoughts(message: dict[str, Any]) -> list[Part]:
    """Thinking, in one of the words that vendors have for it."""
    for name in ("reasoning_content", "reasoning"):
        text = message.get(name)
        if isinstance(text, str) and text:
            return [Thinking(text)]
    return []


def write_answer(answer: Answer) -> bytes:
    """A `chat.completion`."""
    choice = {"index": 0, "message": _message(answer.parts), "logprobs": None, "finish_reason": answer.finish}
    body = {
        "id": answer.id,
        "object": "chat.completion",
        "created": answer.created,
        "model": answer.model,
        "choices": [choice],
    }
    if answer.usage is not None:
        body["usage"] = usage_object(answer.usage)
    try:
        return msgspec.json.encode(body)
    except (UnicodeEncodeError, RecursionError):
        raise ProviderFailed("The provider's answer was not understandable.") from None


def _message(parts: list[Part]) -> dict[str, Any]:
    calls = [part for part in parts if isinstance(part, ToolCall)]
    text = "".join(part.text for part in parts if isinstance(part, Text))
    refusal = "".join(part.text for part in parts if isinstance(part, Refusal))
    message: dict[str, Any] = {"role": "assistant", "content": text or (None if calls or refusal else "")}
    message["refusal"] = refusal or None
    thinking = "".join(part.text for part in parts if isinstance(part, Thinking))
    if thinking:
        message["reasoning_content"] = thinking
    blocks = [thinking_block(part, place) for place, part in enumerate(_signed(parts))]
    if blocks:
        message["thinking_blocks"] = blocks
    if calls:
        message["tool_calls"] = [
            {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
            for call in calls
        ]
    return message


def _signed(parts: list[Part]) -> list[Thinking | RedactedThinking]:
    return [
        part for part in parts if isinstance(part, RedactedThinking) or (isinstance(part, Thinking) and part.signature)
    ]


def thinking_block(part: Thinking | RedactedThinking, index: int) -> dict[str, Any]:
    """What a client has to send back unchanged on a tool turn; the index is for clients that join deltas by it."""
    if isinstance(part, RedactedThinking):
        return {"index": index, "type": "redacted_thinking", "data": part.data}
    return {"index": index, "type": "thinking", "thinking": part.text, "signature": part.signature}


def usage_object(usage: Usage) -> dict[str, Any]:
    """`usage` as OpenAI publishes it."""
    return {
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
        "prompt_tokens_details": {"cached_tokens": usage.cached_tokens},
        "completion_tokens_details": {"reasoning_tokens": usage.reasoning_tokens},
    }
