"""The hub form -> a request to an Anthropic upstream.

System and developer messages go to the top, turns of one side are merged into one message, tool results are turns of
the user; what is required there and not said here is filled in.
"""

from __future__ import annotations

import re
from typing import Any, Final

import msgspec

from svc.dialects.anthropic.documents import FILES_BETA, write_document
from svc.dialects.base import Built, Target
from svc.dialects.hints import drop_extra, lowered_max_tokens
from svc.dialects.passing import apply_quirks
from svc.dialects.reading import encode_request
from svc.errors import InvalidRequest
from svc.wire.chat import (
    ChatRequest,
    Document,
    Image,
    Message,
    Part,
    RedactedThinking,
    Refusal,
    Text,
    Thinking,
    Tool,
    ToolCall,
    ToolResult,
)

DEFAULT_MAX_TOKENS: Final = 4096
"""The API requires `max_tokens`: this is sent when neither the client nor the model's settings name a limit."""
MAX_USER: Final = 256
"""Characters of `metadata.user_id`: more is 400 (docs.anthropic.com, Messages, "maxLength 256")."""
MIN_BUDGET: Final = 1024
"""Tokens of `thinking.budget_tokens`; it has to be less than `max_tokens`."""
_MEDIA: Final = ("image/jpeg", "image/png", "image/gif", "image/webp")
_EFFORTS: Final = {"none": None, "minimal": "low"}
_CHOICES: Final = {"auto": "auto", "none": "none", "required": "any", "tool": "tool"}
_NOT_IN_ID: Final = re.compile(r"[^a-zA-Z0-9_-]")


def write_request(request: ChatRequest, target: Target) -> Built:
    """Raises InvalidRequest for a field whose loss would change the answer's form."""
    dropped = _dropped(request)
    asked, user = request.max_tokens, request.user
    if request.source != "anthropic":
        asked = lowered_max_tokens(request, target, dropped)
        user = user[:MAX_USER] if user else None
    max_tokens = asked or target.max_output_tokens or DEFAULT_MAX_TOKENS
    stop = [text for text in request.stop if text.strip()]  # blank ones are refused there
    if len(stop) < len(request.stop):
        dropped.append("stop")
    fields = {
        "system": _system(request),
        "temperature": None if request.temperature is None else min(request.temperature, 1.0),
        "top_p": request.top_p,
        "top_k": request.top_k,
        "stop_sequences": stop or None,
        "tools": [_tool(tool) for tool in request.tools] or None,
        "tool_choice": _choice(request),
        "thinking": _thinking(request, max_tokens, dropped),
        "output_config": _output_config(request),
        "metadata": {"user_id": user} if user else None,
        "stream": request.stream or None,
    }
    body: dict[str, Any] = {"model": target.model, "max_tokens": max_tokens}
    body["messages"] = _messages(request)
    body |= {name: value for name, value in fields.items() if value is not None}
    if request.source == "anthropic":
        body |= request.extra
    dropped += apply_quirks(body, target.quirks, ask_usage=False)
    return Built(encode_request(body), tuple(dropped), (FILES_BETA,) if _needs_files_beta(request) else ())


def _needs_files_beta(request: ChatRequest) -> bool:
    """A client of the same dialect sends the header itself, among others that would be lost."""
    if request.source == "anthropic":
        return False
    parts = [part for message in request.messages for part in message.parts]
    inner = [part for result in parts if isinstance(result, ToolResult) for part in result.content]
    return any(isinstance(part, Document) and part.file_id is not None for part in (*parts, *inner))


def _dropped(request: ChatRequest) -> list[str]:
    dropped = [] if request.source == "anthropic" else [*drop_extra(request.extra), *request.omitted]
    if any(message.name is not None for message in request.messages):
        dropped.append("messages[].name")
    return dropped


def _system(request: ChatRequest) -> str | list[dict[str, Any]] | None:
    parts = [part for message in request.messages if _is_system(message) for part in message.parts]
    for part in parts:
        if not isinstance(part, Text):
            raise InvalidRequest("The provider of this model takes system messages of text alone.", param="messages")
    texts = [part for part in parts if isinstance(part, Text) and part.text]
    if not texts or not _turns(request):
        return None
    if any(part.cache for part in texts):
        return [_cached({"type": "text", "text": part.text}, part.cache) for part in texts]
    return "\n".join(part.text for part in texts)


def _is_system(message: Message) -> bool:
    return message.role in ("system", "developer")


def _turns(request: ChatRequest) -> bool:
    """Somebody but the system says something."""
    return any(not _is_system(message) for message in request.messages)


def _messages(request: ChatRequest) -> list[dict[str, Any]]:
    """Turns, those of one side in a row merged; a request of system messages alone becomes the user's turn."""
    merged: list[tuple[str, list[dict[str, Any]]]] = []
    alone = not _turns(request)
    for place, message in enumerate(request.messages):
        if _is_system(message) and not alone:
            continue
        role = "assistant" if message.role == "assistant" else "user"
        blocks = _blocks(message, f"messages[{place}]")
        if blocks and merged and merged[-1][0] == role:
            merged[-1][1].extend(blocks)
        elif blocks:
            merged.append((role, blocks))
    if not merged:
        raise InvalidRequest("`messages` needs at least one with content.", param="messages")
    if merged[-1][0] == "assistant":
        _trim(merged[-1][1])
    return [{"role": role, "content": _content(blocks)} for role, blocks in merged]


def _trim(blocks: list[dict[str, Any]]) -> None:
    """An answer that is to be continued may not end in white space there."""
    last = blocks[-1]
    if last["type"] == "text" and last["text"].strip():
        last["text"] = last["text"].rstrip()


def _content(blocks: list[dict[str, Any]]) -> str | list[dict[str, Any]]:
    plain = len(blocks) == 1 and blocks[0].keys() == {"type", "text"}
    return blocks[0]["text"] if plain else blocks


def _blocks(message: Message, path: str) -> list[dict[str, Any]]:
    blocks = []
    calls = 0
    for part in message.parts:
        block = _block(part, path, calls)
        calls += isinstance(part, ToolCall)
        if block is not None:
            blocks.append(block)
    return blocks


def _block(part: Part, path: str, call: int) -> dict[str, Any] | None:
    """None for what has nothing in it, and for thinking without the signature that makes it valid there."""
    match part:
        case Text(text, cache):
            return _cached({"type": "text", "text": text}, cache) if text else None
        case Refusal(text):
            return {"type": "text", "text": text} if text else None
        case Image():
            return _image(part, path)
        case Document():
            return write_document(part, path)
        case Thinking(text, signature):
            return {"type": "thinking", "thinking": text, "signature": signature} if signature else None
        case RedactedThinking(data):
            return {"type": "redacted_thinking", "data": data}
        case ToolCall():
            return _call(part, f"{path}.tool_calls[{call}].function.arguments")
        case ToolResult():
            return _result(part, path)


def _cached(block: dict[str, Any], cache: dict[str, Any] | None) -> dict[str, Any]:
    return {**block, "cache_control": cache} if cache else block


def _image(image: Image, path: str) -> dict[str, Any]:
    if image.url is not None:
        return _cached({"type": "image", "source": {"type": "url", "url": image.url}}, image.cache)
    media = "image/jpeg" if image.media_type == "image/jpg" else image.media_type
    if media not in _MEDIA:
        message = f"The provider of this model takes images of the types {', '.join(_MEDIA)}."
        raise InvalidRequest(message, param=f"{path}.content")
    source = {"type": "base64", "media_type": media, "data": image.data}
    return _cached({"type": "image", "source": source}, image.cache)


def _call(call: ToolCall, path: str) -> dict[str, Any]:
    try:
        arguments = msgspec.json.decode(call.arguments, type=dict[str, Any]) if call.arguments.strip() else {}
    except (msgspec.DecodeError, UnicodeEncodeError, RecursionError):
        raise InvalidRequest(f"`{path}` has to be the JSON text of an object.", param=path) from None
    block = {"type": "tool_use", "id": _id(call.id), "name": call.name, "input": arguments}
    return _cached(block, call.cache)


def _id(call_id: str) -> str:
    """Ids of other makers hold characters that are refused there; call and result are changed alike."""
    return _NOT_IN_ID.sub("_", call_id)


def _result(result: ToolResult, path: str) -> dict[str, Any]:
    blocks = [block for part in result.content if (block := _block(part, path, 0)) is not None]
    made: dict[str, Any] = {"type": "tool_result", "tool_use_id": _id(result.call_id)}
    if blocks:
        made["content"] = _content(blocks)
    if result.is_error:
        made["is_error"] = True
    return _cached(made, result.cache)


def _tool(tool: Tool) -> dict[str, Any]:
    schema = tool.parameters or {"type": "object", "properties": {}}
    made: dict[str, Any] = {"name": tool.name, "input_schema": schema}
    if tool.description is not None:
        made["description"] = tool.description
    if tool.strict:
        made["strict"] = True
    return _cached(made, tool.cache)


def _choice(request: ChatRequest) -> dict[str, Any] | None:
    choice, one = request.tool_choice, request.parallel_tool_calls is False
    if not request.tools or (choice is None and not one):
        return None
    made: dict[str, Any] = {"type": _CHOICES[choice.mode] if choice else "auto"}
    if choice and choice.mode == "tool":
        made["name"] = choice.name
    if one and made["type"] != "none":
        made["disable_parallel_tool_use"] = True
    return made


def _output_config(request: ChatRequest) -> dict[str, Any] | None:
    made: dict[str, Any] = {}
    form = request.response_format
    if form is not None and form.kind == "json_object":
        message = "The provider of this model takes `json_schema`, not `json_object`."
        raise InvalidRequest(message, param="response_format.type")
    if form is not None and form.kind == "json_schema":
        made["format"] = {"type": "json_schema", "schema": form.schema}
    effort = _EFFORTS.get(request.effort, request.effort) if request.effort else None
    if effort:
        made["effort"] = effort
    return made or None


def _thinking(request: ChatRequest, max_tokens: int, dropped: list[str]) -> dict[str, Any] | None:
    """Fit the thinking budget into a `max_tokens` that was lowered; None where no budget fits."""
    thinking = request.thinking
    budget = thinking.get("budget_tokens") if thinking else None
    if thinking is None or type(budget) is not int or "max_tokens" not in dropped or budget < max_tokens:
        return thinking
    dropped.append("thinking.budget_tokens")
    fitting = max(MIN_BUDGET, max_tokens // 2)
    return {**thinking, "budget_tokens": fitting} if fitting < max_tokens else None
