"""Converts the bodies of a request and its response to the messages of OpenTelemetry's GenAI conventions.

https://opentelemetry.io/docs/specs/semconv/gen-ai/gen-ai-spans/ describes `gen_ai.input.messages`,
`gen_ai.output.messages` and `gen_ai.system_instructions`. Runs on the exporter's thread. No I/O.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from typing import Any, Final

import msgspec

from svc.gateway.observability.request_content import RequestContent
from svc.tracing.span import AttributeValue

MAX_MESSAGES_BYTES: Final = 64 * 1024
"""Maximum bytes of JSON in one attribute. The last parts are kept."""
MAX_CONTENT_PART_CHARS: Final = 8 * 1024
"""Maximum characters of the text of one part."""
_MAX_NAME_CHARS: Final = 256
_MAX_WORD_CHARS: Final = 32
"""Maximum characters of a role or a finish reason."""
_MESSAGE_BYTES: Final = 128
"""The JSON of a message without its parts."""
_CONVENTION_FINISH_REASONS: Final = {
    "tool_calls": "tool_call",
    "function_call": "tool_call",
    "tool_use": "tool_call",
    "end_turn": "stop",
    "stop_sequence": "stop",
    "completed": "stop",
    "max_tokens": "length",
    "incomplete": "length",
    "refusal": "content_filter",
    "failed": "error",
}
"""Names of the conventions that differ from those of the APIs."""
Part = dict[str, Any]
Message = dict[str, Any]
Attribute = tuple[str, AttributeValue]


def describe_content(content: RequestContent) -> list[Attribute]:
    """Return the attributes of a span with the prompts and answers of a request."""
    attributes: list[Attribute] = []
    is_shortened = content.has_omissions
    request = _decode(content.request_body)
    for name, messages in (
        ("gen_ai.system_instructions", list(_read_instructions(request))),
        ("gen_ai.input.messages", list(_read_input(request))),
        ("gen_ai.output.messages", _read_output(b"".join(content.chunks))),
    ):
        if messages:
            kept, was_shortened = _shorten(messages)
            is_shortened = is_shortened or was_shortened
            shown = kept[0]["parts"] if name == "gen_ai.system_instructions" and kept else kept
            attributes.append((name, msgspec.json.encode(shown).decode()))
    if is_shortened:
        attributes.append(("svc.content_shortened", True))
    return attributes


def _decode(body: bytes) -> dict[str, Any]:
    """Return a JSON object, or an empty one for anything else."""
    try:
        value = msgspec.json.decode(body) if body else None
    except (msgspec.DecodeError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


def _encode(value: Any) -> bytes:
    try:
        return msgspec.json.encode(value)
    except RecursionError:  # nested too deeply
        return b"\xe2\x80\xa6" * MAX_CONTENT_PART_CHARS


def _read_instructions(request: dict[str, Any]) -> Iterator[Message]:
    """Return the instructions that an Anthropic request or a Responses request has beside its messages."""
    parts = list(_read_parts(request.get("system") or request.get("instructions")))
    if parts:
        yield {"role": "system", "parts": parts}


def _read_input(request: dict[str, Any]) -> Iterator[Message]:
    messages = request.get("messages", request.get("input"))
    if isinstance(messages, str):
        yield {"role": "user", "parts": [_text(messages)]}
    for message in _dicts(messages):
        yield _read_message(message)


def _read_message(message: dict[str, Any]) -> Message:
    """Return a message of one of the three APIs, or an item of the Responses API."""
    if "role" not in message:
        role = "tool" if str(message.get("type", "")).endswith("_output") else "assistant"
        return {"role": role, "parts": list(_read_part(message))}
    role = str(message["role"])
    content = message.get("content")
    if role == "tool":
        response: Part = {"type": "tool_call_response", "response": _join_texts(content)}
        return {"role": role, "parts": [_with_id(response, message.get("tool_call_id"))]}
    parts = [*_reasoning(message.get("reasoning_content")), *_read_parts(content)]
    parts += [part for call in _dicts(message.get("tool_calls")) for part in _read_part(call)]
    if isinstance(call := message.get("function_call"), dict):
        parts += _read_part({"type": "function", "function": call})
    return {"role": role, "parts": parts}


def _read_parts(content: Any) -> Iterator[Part]:
    if isinstance(content, str):
        if content:
            yield _text(content)
        return
    for block in _dicts(content):
        yield from _read_part(block)


def _read_part(block: dict[str, Any]) -> Iterator[Part]:
    kind = str(block.get("type", ""))
    match kind:
        case "text" | "input_text" | "output_text":
            yield _text(block.get("text"))
        case "refusal":
            yield _text(block.get("refusal"))
        case "thinking":
            yield from _reasoning(block.get("thinking"))
        case "reasoning":
            yield from _reasoning(_join_texts(block.get("summary")))
        case "function" | "custom":
            call = block.get(kind)
            if isinstance(call, dict):
                yield _tool_call(block.get("id"), call.get("name"), call.get("arguments", call.get("input")))
        case "tool_use" | "server_tool_use":
            yield _tool_call(block.get("id"), block.get("name"), block.get("input"))
        case "function_call" | "custom_tool_call":
            yield _tool_call(block.get("call_id"), block.get("name"), block.get("arguments", block.get("input")))
        case "tool_result":
            response: Part = {"type": "tool_call_response", "response": _join_texts(block.get("content"))}
            yield _with_id(response, block.get("tool_use_id"))
        case "function_call_output" | "custom_tool_call_output":
            output: Part = {"type": "tool_call_response", "response": _join_texts(block.get("output"))}
            yield _with_id(output, block.get("call_id"))
        case "message":
            yield from _read_parts(block.get("content"))
        case _:  # images, audio and documents are named only
            yield {"type": kind or "unknown"}


def _text(value: Any) -> Part:
    return {"type": "text", "content": value if isinstance(value, str) else ""}


def _reasoning(value: Any) -> Iterator[Part]:
    if isinstance(value, str) and value:
        yield {"type": "reasoning", "content": value}


def _tool_call(call_id: Any, name: Any, arguments: Any) -> Part:
    """Return a part. Arguments that are not JSON stay text."""
    if isinstance(arguments, str) and len(arguments) <= MAX_CONTENT_PART_CHARS:
        with contextlib.suppress(msgspec.DecodeError, RecursionError):
            arguments = msgspec.json.decode(arguments)
    return _with_id({"type": "tool_call", "name": str(name or ""), "arguments": arguments}, call_id)


def _with_id(part: Part, call_id: Any) -> Part:
    if isinstance(call_id, str):
        part["id"] = call_id
    return part


def _join_texts(content: Any) -> str:
    if isinstance(content, str):
        return content
    return "\n".join([text for block in _dicts(content) if isinstance(text := block.get("text"), str)])


def _dicts(value: Any) -> Iterator[dict[str, Any]]:
    for item in value if isinstance(value, list) else ():
        if isinstance(item, dict):
            yield item


def _read_output(body: bytes) -> list[Message]:
    """Return the messages of a response: a JSON object, or a stream of server-sent events."""
    if body.lstrip()[:1] == b"{":
        return list(_read_response(_decode(body)))
    lines = body.split(b"\n")
    return _StreamMessages(_decode(line[5:].strip()) for line in lines if line.startswith(b"data:")).read()


def _read_response(response: dict[str, Any]) -> Iterator[Message]:
    if "choices" in response:
        for choice in _dicts(response["choices"]):
            message = choice.get("message")
            parts = _read_message({"role": "assistant", **message})["parts"] if isinstance(message, dict) else []
            yield _output(parts, choice.get("finish_reason"))
    elif "output" in response:
        yield _output(list(_read_parts(response["output"])), response.get("status"))
    elif "content" in response:
        yield _output(list(_read_parts(response["content"])), response.get("stop_reason"))


def _output(parts: list[Part], reason: Any) -> Message:
    if not isinstance(reason, str) or not reason:
        reason = "error"  # the response is not complete
    elif reason == "completed" and any(part["type"] == "tool_call" for part in parts):
        reason = "tool_call"
    return {"role": "assistant", "parts": parts, "finish_reason": _CONVENTION_FINISH_REASONS.get(reason, reason)}


class _StreamMessages:
    """Joins the events of a stream to the response that it stands for."""

    def __init__(self, events: Iterable[dict[str, Any]]) -> None:
        self._events = events
        self._choices: dict[int, dict[str, Any]] = {}
        """The choices of chat completion chunks, by index."""
        self._blocks: dict[Any, dict[str, Any]] = {}
        """The content blocks of an Anthropic stream, or the text deltas of a Responses stream, by index."""
        self._stop_reason: Any = None
        self._final: dict[str, Any] = {}

    def read(self) -> list[Message]:
        for event in self._events:
            kind = event.get("type")
            if "choices" in event:
                for choice in _dicts(event["choices"]):
                    self._add_choice(choice)
            elif kind in ("response.completed", "response.incomplete", "response.failed"):
                response = event.get("response")
                self._final = response if isinstance(response, dict) else {}
            elif isinstance(kind, str):
                self._add_block_event(kind, event)
        if self._final:
            return list(_read_response(self._final))
        if self._choices:
            choices = [{"message": choice, "finish_reason": choice["reason"]} for choice in self._choices.values()]
            return list(_read_response({"choices": choices}))
        if self._blocks:
            return list(_read_response({"content": list(self._blocks.values()), "stop_reason": self._stop_reason}))
        return []

    def _add_choice(self, choice: dict[str, Any]) -> None:
        message = self._choices.setdefault(
            _index(choice), {"content": "", "reasoning_content": "", "tool_calls": [], "reason": None}
        )
        message["reason"] = choice.get("finish_reason") or message["reason"]
        delta = choice.get("delta")
        if not isinstance(delta, dict):
            return
        for name in ("content", "reasoning_content"):
            if isinstance(text := delta.get(name), str):
                message[name] += text
        calls = message["tool_calls"]
        for call in _dicts(delta.get("tool_calls")):
            index = _index(call)
            known = next((each for each in calls if each["index"] == index), None)
            if known is None:
                known = {"type": "function", "index": index, "function": {"name": "", "arguments": ""}}
                calls.append(known)
            known["id"] = call.get("id") or known.get("id")
            function = call.get("function")
            for name in ("name", "arguments"):
                if isinstance(function, dict) and isinstance(text := function.get(name), str):
                    known["function"][name] += text

    def _add_block_event(self, kind: str, event: dict[str, Any]) -> None:
        delta = event.get("delta")
        if kind == "content_block_start" and isinstance(block := event.get("content_block"), dict):
            self._blocks[_index(event)] = dict(block)
        elif kind == "content_block_delta" and isinstance(delta, dict):
            block = self._blocks.setdefault(_index(event), {"type": "text"})
            for source, target in (("text", "text"), ("thinking", "thinking"), ("partial_json", "input")):
                if isinstance(text := delta.get(source), str):
                    earlier = block.get(target)
                    block[target] = (earlier if isinstance(earlier, str) else "") + text
        elif kind == "message_delta" and isinstance(delta, dict):
            self._stop_reason = delta.get("stop_reason")
        elif kind == "response.output_text.delta" and isinstance(delta, str):
            block = self._blocks.setdefault(_index(event, "output_index"), {"type": "text", "text": ""})
            block["text"] += delta


def _index(value: dict[str, Any], name: str = "index") -> int:
    index = value.get(name)
    return index if isinstance(index, int) else 0


def _shorten(messages: list[Message]) -> tuple[list[Message], bool]:
    """Return the last parts, up to MAX_MESSAGES_BYTES of JSON, and whether anything is missing."""
    remaining, is_shortened = MAX_MESSAGES_BYTES, False
    kept: list[Message] = []
    for message in reversed(messages):
        parts: list[Part] = []
        remaining -= _MESSAGE_BYTES
        for part in reversed(message["parts"]):
            short_part, was_shortened = _shorten_part(part)
            remaining -= len(msgspec.json.encode(short_part)) + 1
            if remaining < 0:
                break
            parts.append(short_part)
            is_shortened = is_shortened or was_shortened
        if parts or (not message["parts"] and remaining >= 0):
            names = {name: value[:_MAX_WORD_CHARS] for name, value in message.items() if isinstance(value, str)}
            kept.append({**names, "parts": parts[::-1]})
        if remaining < 0:
            return kept[::-1], True
    return kept[::-1], is_shortened


def _shorten_part(part: Part) -> tuple[Part, bool]:
    short_part: Part = {}
    is_shortened = False
    for name, value in part.items():
        limit = MAX_CONTENT_PART_CHARS if name in ("content", "response", "arguments") else _MAX_NAME_CHARS
        if not isinstance(value, str) and len(encoded := _encode(value)) > limit:
            value = encoded.decode()
        if isinstance(value, str) and len(value) > limit:
            value, is_shortened = value[:limit] + "…", True
        short_part[name] = value
    return short_part, is_shortened
