"""Features that an upstream lacks: images are refused, and forced tool calls need a variant of its dialect."""

from __future__ import annotations

from typing import Final

from svc.dialects.base import Dialect, ModelProfile, RequestBody
from svc.dialects.endpoint import Endpoint, RequestDecoder
from svc.errors import InvalidRequest
from svc.wire.chat import ChatMessage, ChatRequest, ImagePart, ToolResult

_FORCED_MODES: Final = ("required", "tool")


def select_dialect(
    dialect: Dialect, profile: ModelProfile, endpoint: Endpoint, body: RequestBody, decode: RequestDecoder
) -> Dialect:
    """Return the dialect for a request to an upstream that lacks features.

    The request is decoded only if its bytes mention such a feature. Raises InvalidRequest for an image, and for wrong
    tools: llama.cpp answers them with 500.
    """
    overrides = profile.overrides
    if not overrides.image_input and b"image" in body.raw:
        chat = endpoint.find_chat(decode)
        if chat is not None and (param := _find_image(chat)):
            raise InvalidRequest(f"The model {profile.model} takes no images.", param=param)
    if overrides.forced_tools or dialect.forced_tool_variant is None or b'"tool' not in body.raw:
        return dialect
    chat = endpoint.find_chat(decode)
    if chat is None:
        return dialect
    if chat.restricts_tools and not _forces_tool(chat):  # llama.cpp would offer all tools to the model
        message = f"The model {profile.model} takes `allowed_tools` only with the mode `required`."
        raise InvalidRequest(message, param="tool_choice.allowed_tools.mode")
    return dialect.forced_tool_variant if _forces_tool(chat) else dialect


def _forces_tool(chat: ChatRequest) -> bool:
    return chat.tool_choice is not None and chat.tool_choice.mode in _FORCED_MODES


def _find_image(chat: ChatRequest) -> str:
    """Return the client's field with an image, or an empty string. Items of `input` are not counted as messages."""
    for index, message in enumerate(chat.messages):
        if _has_image(message):
            return "input" if chat.source == "responses" else f"messages[{index}].content"
    return ""


def _has_image(message: ChatMessage) -> bool:
    return any(
        isinstance(part, ImagePart)
        or (isinstance(part, ToolResult) and any(isinstance(nested, ImagePart) for nested in part.content))
        for part in message.parts
    )
