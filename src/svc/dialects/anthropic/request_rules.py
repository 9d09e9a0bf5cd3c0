"""Rules of the Messages API that an upstream of another dialect does not check, since it never gets the fields.

Public documents: platform.claude.com/docs/en/api/messages, "Thinking", "Prompt caching" and "Tool use".
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from svc.dialects.anthropic.translation_schema import HintFields, OpenAIHints, ThinkingSettings
from svc.dialects.request_values import MAX_INTEGER, check_cache_control, check_metadata
from svc.dialects.validation import convert_client_value
from svc.errors import InvalidRequest
from svc.wire.chat import ChatMessage, ChatRequest, ToolCall, ToolDefinition, ToolResult

MIN_THINKING_BUDGET_TOKENS: Final = 1024
"""Minimum of `thinking.budget_tokens`, which must also be less than `max_tokens`."""
UNLIMITED_TOP_K: Final = -1
"""Some servers of the OpenAI dialect take this `top_k` as no limit, which is the default."""


def check_hints(fields: dict[str, Any]) -> None:
    """Check the fields that are left out because no other dialect has them. Raises InvalidRequest."""
    check_cache_control(convert_client_value(fields, HintFields, "").cache_control, "")


def reject_thread(thread: Any) -> None:
    """Raise InvalidRequest if the conversation is kept by the provider. A request then lacks its earlier messages.

    The details make Anthropic's SDKs send the whole conversation (`lib/threads` of anthropic-sdk-python, 2.14).
    """
    if thread is not None:
        message = "The provider of this model keeps no threads: send the whole conversation in `messages`."
        details = {"error_code": "thread_unsupported_request", "unsupported": ["model"]}
        raise InvalidRequest(message, param="thread", details=details)


def check_thinking(thinking: dict[str, Any] | None, max_tokens: int, *, has_tools: bool) -> None:
    """Check `thinking`. Raises InvalidRequest.

    With tools, the budget may exceed `max_tokens`: it is that of a whole turn if thinking is interleaved.
    """
    if thinking is None:
        return
    settings = convert_client_value(thinking, ThinkingSettings, "thinking")
    if settings.type != "enabled":
        return
    budget, path = settings.budget_tokens, "thinking.budget_tokens"
    if budget is None:
        raise InvalidRequest(f"`{path}` is required.", param=path)
    if budget < MIN_THINKING_BUDGET_TOKENS:
        raise InvalidRequest(f"`{path}` must be at least {MIN_THINKING_BUDGET_TOKENS}.", param=path)
    if budget >= max_tokens and not has_tools:
        raise InvalidRequest(f"`{path}` must be less than `max_tokens`.", param=path)


def check_tool_names(tools: Sequence[ToolDefinition], name_field: str = "name") -> None:
    """Raise InvalidRequest if two tools have the same name. `name_field` is the path of the name in a tool."""
    names: set[str] = set()
    for index, tool in enumerate(tools):
        if tool.name in names:
            path = f"tools[{index}].{name_field}"
            raise InvalidRequest(f"`{path}`: another tool has the name {tool.name[:64]!r}.", param=path)
        names.add(tool.name)


def check_openai_request(request: ChatRequest, max_tokens: int) -> None:
    """Check what an Anthropic upstream rejects in an OpenAI client's request. Raises InvalidRequest with the field.

    An upstream of the client's own dialect may accept it, so that the request's decoder does not check it.
    """
    check_metadata(convert_client_value(request.extra, OpenAIHints, "").metadata)
    check_tool_names(request.tools, "function.name")
    check_thinking(request.thinking, max_tokens, has_tools=bool(request.tools))
    if request.top_k is not None and not UNLIMITED_TOP_K <= request.top_k <= MAX_INTEGER:
        raise InvalidRequest(f"`top_k` must be from 0 to {MAX_INTEGER}.", param="top_k")
    choice = request.tool_choice
    if choice is not None and choice.mode == "tool" and all(tool.name != choice.name for tool in request.tools):
        path = "tool_choice.function.name"
        raise InvalidRequest(f"`{path}` is {(choice.name or '')[:64]!r}, which is not in `tools`.", param=path)
    if choice is not None and choice.mode == "required" and not request.tools:
        raise InvalidRequest("`tool_choice` is `required`, but `tools` has none.", param="tool_choice")
    _check_call_ids(request.messages)


def _check_call_ids(messages: Sequence[ChatMessage]) -> None:
    called: set[str] = set()
    for index, message in enumerate(messages):
        for part in message.parts:
            if isinstance(part, ToolCall):
                called.add(part.id)
            elif isinstance(part, ToolResult) and part.call_id not in called:
                path = f"messages[{index}].tool_call_id"
                raise InvalidRequest(f"`{path}` is not the id of an earlier tool call.", param=path)
