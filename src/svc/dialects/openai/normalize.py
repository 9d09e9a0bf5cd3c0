"""Normalizes chunks: one role, one id and name per tool call, integer indexes, one chunk id, four finish reasons.

ChoiceState has what the client received of a choice. `is_clean` checks a typed chunk without changes. `normalize`
corrects any other chunk as a dictionary, which preserves unknown fields.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import msgspec
from msgspec import UNSET

from svc.dialects.coerce import arguments_to_json, new_id, nonempty_text_or
from svc.dialects.openai.response_passthrough import TOOL_TEXT_FIELDS, flatten_content
from svc.dialects.openai.schema import ChunkChoicePayload, OpenAIFinishReason, to_openai_finish_reason
from svc.errors import ProviderFailed

MAX_TOOL_CALLS: Final = 4096
"""Maximum number of tool calls of one response. Each uses memory until the stream ends."""


class ToolCallState:
    """The part of one tool call that the client has received."""

    __slots__ = ("has_name", "id", "type")

    def __init__(self) -> None:
        self.id = ""
        self.has_name = False
        self.type = "function"


class ChoiceState:
    """The part of one choice that the client has received."""

    __slots__ = ("calls", "finish_reason", "has_remapped_index", "indexes_by_id", "last_index", "remapped_indexes")

    def __init__(self) -> None:
        self.finish_reason: OpenAIFinishReason | None = None
        self.calls: dict[int, ToolCallState] = {}
        self.indexes_by_id: dict[str, int] = {}
        """Maps the upstream's id of a call to the client's index. If an id occurs twice, the first index is used."""
        self.remapped_indexes: dict[int, int] = {}
        """Maps the upstream's index to the client's, if the upstream uses one index for several calls."""
        self.has_remapped_index = False
        """Whether any index of the upstream is another one for the client."""
        self.last_index = 0

    def resolve_index(self, index: Any, call_id: str) -> int:
        """Return the client's index of a tool call delta, for any index from the upstream."""
        if isinstance(index, str) and index.isdecimal() and len(index) < 10:
            index = int(index)
        resolved = (
            self._resolve_by_index(index, call_id)
            if type(index) is int and index >= 0
            else self._resolve_by_id(call_id)
        )
        if call_id:
            self.indexes_by_id.setdefault(call_id, resolved)
        self.last_index = resolved
        return resolved

    def _resolve_by_index(self, index: int, call_id: str) -> int:
        resolved = self.remapped_indexes.get(index, index)
        existing = self.calls.get(resolved)
        if existing is not None and call_id and existing.id != call_id:
            resolved = self._resolve_by_id(call_id)  # the upstream reuses the index of an earlier call
        self.remapped_indexes[index] = resolved
        self.has_remapped_index = self.has_remapped_index or resolved != index
        return resolved

    def _resolve_by_id(self, call_id: str) -> int:
        if not call_id:
            return self.last_index
        resolved = self.indexes_by_id.get(call_id)
        return self._next_index() if resolved is None else resolved

    def _next_index(self) -> int:
        return max(self.calls, default=-1) + 1

    def is_clean(self, choice: ChunkChoicePayload) -> bool:
        """Return whether the choice repeats nothing and does not follow the finish."""
        if self.finish_reason is not None or choice.delta.role is not UNSET:
            return False
        if self.has_remapped_index and choice.delta.tool_calls is not UNSET:
            return False
        return are_tool_calls_clean(choice, self.calls)

    def record(self, choice: ChunkChoicePayload) -> None:
        """Record a choice that was sent to the client."""
        if choice.delta.tool_calls is not UNSET:
            for tool_delta in choice.delta.tool_calls:
                call = self.calls.setdefault(tool_delta.index, ToolCallState())
                if tool_delta.id:
                    call.id = tool_delta.id
                    self.indexes_by_id.setdefault(tool_delta.id, tool_delta.index)
                call.type = tool_delta.type or call.type
                if tool_delta.function is not UNSET and tool_delta.function.name:
                    call.has_name = True
                if tool_delta.custom is not UNSET and tool_delta.custom.name:
                    call.has_name = True
                self.last_index = tool_delta.index
            if len(self.calls) > MAX_TOOL_CALLS:
                raise too_many_tool_calls_error()
        self.finish_reason = choice.finish_reason

    def normalize(self, choice: dict[str, Any], *, is_first: bool) -> dict[str, Any] | None:
        """Return the choice without what the client has already received, or None if nothing is left."""
        if self.finish_reason is not None:
            return None
        delta = choice.get("delta")
        delta = dict(delta) if isinstance(delta, dict) else {}
        delta.pop("role", None)
        if is_first:
            delta = {"role": "assistant", **delta}
        if "content" in delta:
            delta |= flatten_content(delta["content"])
        if delta.get("reasoning_content", UNSET) is not None and not isinstance(
            delta.get("reasoning_content", ""), str
        ):
            del delta["reasoning_content"]
        calls = delta.pop("tool_calls", None)
        if isinstance(calls, list) and calls:
            delta["tool_calls"] = list(self._normalize_tool_calls(calls))
        reason = choice.get("finish_reason")
        return {**choice, "delta": delta, "finish_reason": to_openai_finish_reason(reason) if reason else None}

    def _normalize_tool_calls(self, calls: list[Any]) -> Iterator[dict[str, Any]]:
        for tool_delta in calls:
            if not isinstance(tool_delta, dict):
                raise ProviderFailed("The provider sent a tool call that is not an object.")
            index = self.resolve_index(tool_delta.get("index"), nonempty_text_or(tool_delta.get("id"), ""))
            call = self.calls.setdefault(index, ToolCallState())
            if len(self.calls) > MAX_TOOL_CALLS:
                raise too_many_tool_calls_error()
            yield _normalize_tool_call(tool_delta, index, call)


def _normalize_tool_call(tool_delta: dict[str, Any], index: int, call: ToolCallState) -> dict[str, Any]:
    normalized = {name: value for name, value in tool_delta.items() if value is not None} | {"index": index}
    payload_field = next((name for name in TOOL_TEXT_FIELDS if isinstance(tool_delta.get(name), dict)), "")
    if call.id:
        normalized.pop("id", None)
        normalized.pop("type", None)
    else:
        call.id = normalized["id"] = nonempty_text_or(tool_delta.get("id"), "") or new_id("call_")
        call.type = normalized["type"] = nonempty_text_or(tool_delta.get("type"), payload_field or "function")
    if payload_field:
        normalized[payload_field] = _normalize_payload(tool_delta[payload_field], TOOL_TEXT_FIELDS[payload_field], call)
    elif call.type == "function":
        normalized["function"] = {}  # clients access it unconditionally
    return normalized


def _normalize_payload(payload: dict[str, Any], field: str, call: ToolCallState) -> dict[str, Any]:
    normalized = {**payload}
    if call.has_name or not nonempty_text_or(payload.get("name"), ""):
        normalized.pop("name", None)
    else:
        call.has_name = True
    if field in normalized:
        normalized[field] = arguments_to_json(normalized[field])
    return normalized


def too_many_tool_calls_error() -> ProviderFailed:
    """Return the error for a stream of more than MAX_TOOL_CALLS calls."""
    return ProviderFailed("The provider sent more tool calls than one response may have.")


def are_tool_calls_clean(choice: ChunkChoicePayload, seen_calls: dict[int, ToolCallState]) -> bool:
    """Return whether each new tool call has id and name, and each known one has neither."""
    tool_deltas = choice.delta.tool_calls
    if tool_deltas is UNSET:
        return True
    if len(tool_deltas) > 1 and len({tool_delta.index for tool_delta in tool_deltas}) < len(tool_deltas):
        return False
    for tool_delta in tool_deltas:
        name = tool_delta.function.name if tool_delta.function is not UNSET else None
        if tool_delta.custom is not UNSET:
            name = tool_delta.custom.name
        presence = bool(tool_delta.id), bool(name)
        if tool_delta.index not in seen_calls:
            if presence != (True, True):
                return False
        elif tool_delta.id not in (UNSET, None) or name not in (UNSET, None):
            return False
    return True


def is_first_chunk_clean(choice: ChunkChoicePayload) -> bool:
    """Return whether the first chunk of a choice has the role."""
    return choice.delta.role is not UNSET and are_tool_calls_clean(choice, {})


def to_chunk_choice(choice: dict[str, Any]) -> ChunkChoicePayload:
    """Convert a normalized choice to its type. Raises ProviderFailed."""
    try:
        return msgspec.convert(choice, ChunkChoicePayload)
    except (msgspec.ValidationError, RecursionError):
        raise ProviderFailed("The provider sent an invalid event.") from None
