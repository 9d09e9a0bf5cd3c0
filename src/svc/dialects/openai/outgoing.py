"""The hub form -> a request to an OpenAI upstream, with the upstream's quirks."""

from __future__ import annotations

from typing import Any, Final

from svc.dialects.base import Built, Target
from svc.dialects.hints import drop_extra, lowered_max_tokens
from svc.dialects.openai.files import write_file
from svc.dialects.openai.series import refuses_effort
from svc.dialects.passing import apply_quirks
from svc.dialects.reading import encode_request
from svc.wire.chat import (
    ChatRequest,
    Document,
    Image,
    Message,
    Part,
    RedactedThinking,
    Refusal,
    ResponseFormat,
    Text,
    Thinking,
    Tool,
    ToolCall,
    ToolChoice,
    ToolResult,
)

MAX_USER: Final = 64
"""Characters of `user`: more is 400 ("string too long. Expected a string with maximum length 64")."""


def write_request(request: ChatRequest, target: Target) -> Built:
    """Raises InvalidRequest for a field whose loss would change the answer's form."""
    body: dict[str, Any] = {"model": target.model, "messages": _messages(request)}
    dropped = _dropped(request)
    max_tokens, effort, user = request.max_tokens, request.effort, request.user
    if request.source == "openai":
        body |= request.extra
    else:
        max_tokens = lowered_max_tokens(request, target, dropped)
        effort = _effort(request, target, dropped)
        user = user[:MAX_USER] if user else None
    fields = {
        "max_tokens": max_tokens,
        "temperature": request.temperature,
        "top_p": request.top_p,
        "stop": request.stop or None,
        "tools": [_tool(tool) for tool in request.tools] or None,
        "tool_choice": _choice(request.tool_choice),
        "parallel_tool_calls": request.parallel_tool_calls,
        "response_format": _format(request.response_format),
        "reasoning_effort": effort,
        "user": user,
        "stream": request.stream or None,
    }
    body |= {name: value for name, value in fields.items() if value is not None}
    dropped += apply_quirks(body, target.quirks, ask_usage=request.stream and target.quirks.stream_usage)
    return Built(encode_request(body), tuple(dropped))


def _effort(request: ChatRequest, target: Target, dropped: list[str]) -> str | None:
    """None for a series of models that refuses the field."""
    if request.effort is None or not refuses_effort(target.model):
        return request.effort
    alone = request.response_format is None and not request.omitted
    dropped.append("output_config" if alone else "output_config.effort")
    return None


def _dropped(request: ChatRequest) -> list[str]:
    dropped = [] if request.source == "openai" else [*drop_extra(request.extra), *request.omitted, *_marks(request)]
    if request.top_k is not None:
        dropped.append("top_k")
    if request.thinking is not None:
        dropped.append("thinking")
    return dropped


def _marks(request: ChatRequest) -> list[str]:
    """Names of what parts of messages and tools have, and this dialect has no place for."""
    parts = [part for message in request.messages for part in message.parts]
    names = []
    if any(getattr(one, "cache", None) for one in (*parts, *request.tools)):
        names.append("cache_control")
    if any(isinstance(part, Thinking | RedactedThinking) for part in parts):
        names.append("messages[].thinking")
    if any(isinstance(part, ToolResult) and part.is_error for part in parts):
        names.append("messages[].is_error")
    return names


def _messages(request: ChatRequest) -> list[dict[str, Any]]:
    made: list[dict[str, Any]] = []
    for message in request.messages:
        if message.role == "assistant":
            made.append(_assistant(message))
        else:
            made += _turn(message)
    return made


def _assistant(message: Message) -> dict[str, Any]:
    text = "".join(part.text for part in message.parts if isinstance(part, Text))
    calls = [_call(part) for part in message.parts if isinstance(part, ToolCall)]
    made: dict[str, Any] = {"role": "assistant", "content": text or (None if calls else "")}
    refusals = "".join(part.text for part in message.parts if isinstance(part, Refusal))
    if refusals:
        made["refusal"] = refusals
        made["content"] = text or None
    if calls:
        made["tool_calls"] = calls
    return _with_name(made, message)


def _turn(message: Message) -> list[dict[str, Any]]:
    """Tool results are messages of their own, and come first: they belong to the call before."""
    results = [part for part in message.parts if isinstance(part, ToolResult)]
    made = [_result(part) for part in results]
    rest: list[Part] = [one for part in results for one in part.content if _text_of(one) is None]
    rest += [part for part in message.parts if not isinstance(part, ToolResult | Thinking | RedactedThinking)]
    if rest or not made:
        role = "user" if message.role == "tool" else message.role
        made.append(_with_name({"role": role, "content": _content(rest)}, message))
    return made


def _with_name(made: dict[str, Any], message: Message) -> dict[str, Any]:
    return {**made, "name": message.name} if message.name is not None else made


def _content(parts: list[Part]) -> str | list[dict[str, Any]]:
    if len(parts) == 1 and isinstance(parts[0], Text):
        return parts[0].text
    made: list[dict[str, Any]] = []
    for part in parts:
        if isinstance(part, Text):
            made.append({"type": "text", "text": part.text})
        elif isinstance(part, Image):
            made.append(_image(part))
        elif isinstance(part, Document):
            made.append(write_file(part))
    return made or ""


def _image(image: Image) -> dict[str, Any]:
    url = image.url or f"data:{image.media_type};base64,{image.data}"
    detail = {"detail": image.detail} if image.detail else {}
    return {"type": "image_url", "image_url": {"url": url, **detail}}


def _result(result: ToolResult) -> dict[str, Any]:
    texts = [_text_of(part) for part in result.content]
    text = "\n".join([one for one in texts if one is not None])
    return {"role": "tool", "tool_call_id": result.call_id, "content": text}


def _text_of(part: Text | Image | Document) -> str | None:
    """The text of a part of a tool result, which takes nothing else; None for a part that has to follow it."""
    return None if isinstance(part, Image) else part.text


def _call(call: ToolCall) -> dict[str, Any]:
    return {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}


def _tool(tool: Tool) -> dict[str, Any]:
    function: dict[str, Any] = {"name": tool.name, "description": tool.description}
    function |= {"parameters": tool.parameters, "strict": tool.strict}
    return {"type": "function", "function": {name: value for name, value in function.items() if value is not None}}


def _choice(choice: ToolChoice | None) -> str | dict[str, Any] | None:
    if choice is None:
        return None
    if choice.mode == "tool":
        return {"type": "function", "function": {"name": choice.name}}
    return choice.mode


def _format(form: ResponseFormat | None) -> dict[str, Any] | None:
    if form is None:
        return None
    if form.kind != "json_schema":
        return {"type": form.kind}
    schema = {"name": form.name or "answer", "schema": form.schema}
    return {"type": form.kind, "json_schema": schema if form.strict is None else {**schema, "strict": form.strict}}
