"""Tool calls of a response, and their assembly from the deltas of a stream."""

from __future__ import annotations

from typing import Any

import msgspec

from svc.errors import ProviderFailed


class ChatToolCall(msgspec.Struct, frozen=True):
    """A tool call. `arguments_json` is the text that the model wrote, and `arguments` is its JSON object."""

    id: str
    name: str
    arguments_json: str = ""

    @property
    def arguments(self) -> dict[str, Any]:
        """Return the arguments. Raises ProviderFailed if the model did not write a complete JSON object."""
        if not self.arguments_json.strip():
            return {}
        try:
            decoded = msgspec.json.decode(self.arguments_json)
        except (msgspec.DecodeError, UnicodeError, RecursionError):
            decoded = None
        if not isinstance(decoded, dict):
            raise ProviderFailed(
                f"The arguments of the tool call {self.name!r} are not a complete JSON object. See `arguments_json`."
            )
        return decoded

    def to_message_item(self) -> dict[str, Any]:
        """Return the call as an item of `tool_calls` in an assistant message."""
        return {
            "id": self.id,
            "type": "function",
            "function": {"name": self.name, "arguments": self.arguments_json or "{}"},
        }


class ChatToolCallDelta(msgspec.Struct, frozen=True):
    """A part of a tool call in a stream. `arguments_json` is the next part of the text, which may be empty."""

    index: int
    """The position in `tool_calls`."""
    id: str
    name: str
    arguments_json: str = ""


class _OpenCall(msgspec.Struct):
    id: str
    name: str
    parts: list[str]


class ToolCallAssembler:
    """Joins the deltas of the tool calls of one stream."""

    def __init__(self) -> None:
        self._calls: dict[int, _OpenCall] = {}

    def start(self, index: int, call_id: str, name: str) -> ChatToolCallDelta:
        """Begin a call. Return its first delta."""
        self._calls[index] = _OpenCall(call_id, name, [])
        return ChatToolCallDelta(index, call_id, name)

    def append(self, index: int, text: str) -> ChatToolCallDelta:
        """Add text to the arguments of a call. Return the delta. Raises ProviderFailed if the call has not begun."""
        call = self._calls.get(index)
        if call is None:
            raise ProviderFailed("The provider sent arguments of a tool call that has not begun.")
        call.parts.append(text)
        return ChatToolCallDelta(index, call.id, call.name, text)

    def calls(self) -> tuple[ChatToolCall, ...]:
        """Return the calls in their order."""
        return tuple(ChatToolCall(call.id, call.name, "".join(call.parts)) for _, call in sorted(self._calls.items()))


def assistant_message(text: str, tool_calls: tuple[ChatToolCall, ...]) -> dict[str, Any]:
    """Return a response as the message that the next request repeats."""
    message: dict[str, Any] = {"role": "assistant", "content": text or None}
    if tool_calls:
        message["tool_calls"] = [call.to_message_item() for call in tool_calls]
    elif not text:
        message["content"] = ""
    return message
