"""Decodes events of an OpenAI upstream to canonical deltas. It reads the first choice; others are never requested."""

from __future__ import annotations

from typing import Any, ClassVar, Final

import msgspec

from svc.dialects.coerce import arguments_to_json, new_id, nonempty_text_or, timestamp_or_now
from svc.dialects.openai.normalize import MAX_TOOL_CALLS, ChoiceState, ToolCallState, too_many_tool_calls_error
from svc.dialects.openai.response_codec import CUSTOM_INPUT_PREFIX, CUSTOM_INPUT_SUFFIX, escape_json_text
from svc.dialects.openai.response_passthrough import flatten_content
from svc.dialects.openai.schema import UsagePayload, normalize_usage, to_finish_reason
from svc.dialects.openai.usage import to_usage
from svc.dialects.upstream_errors import map_upstream_error, to_stream_error
from svc.dialects.validation import decode_upstream_json
from svc.errors import ProviderFailed
from svc.wire.chat import (
    RefusalDelta,
    StreamDelta,
    StreamFinish,
    StreamStart,
    TextDelta,
    ThinkingDelta,
    ToolCallArguments,
    ToolCallStart,
    UsageUpdate,
)
from svc.wire.sse import event_data, event_name


class _LenientChoice(msgspec.Struct):
    index: Any = 0
    delta: dict[str, Any] | None = None
    finish_reason: Any = None


class _LenientChunk(msgspec.Struct):
    id: Any = None
    model: Any = None
    created: Any = None
    object: Any = None
    message: Any = None
    choices: list[_LenientChoice] | None = None
    usage: Any = None
    x_groq: Any = None
    error: Any = None


MAX_PENDING_ARGUMENT_CHARS: Final = 1024 * 1024

_LENIENT_CHUNK_DECODER: Final = msgspec.json.Decoder(_LenientChunk)


class OpenAIStreamDecoder:
    """A StreamDecoder of chat completion chunks."""

    text_field: ClassVar[bytes] = b"content"
    arguments_field: ClassVar[bytes] = b""

    def __init__(self) -> None:
        self._has_started = False
        self._is_complete = False
        self._choice_state = ChoiceState()
        self._pending_arguments: dict[int, str] = {}
        """Arguments of calls whose name was not yet received, by index."""
        self._pending_chars = 0
        """Total characters of all pending arguments."""
        self._custom_calls: set[int] = set()
        """Indexes of custom tool calls, whose text becomes the argument `input`."""
        self._is_function_call = False
        """True if the upstream sent the call as a `function_call`."""

    @property
    def is_complete(self) -> bool:
        return self._is_complete

    def decode(self, event: bytes) -> list[StreamDelta]:
        data = event_data(event)
        name = event_name(event)
        if data is None or name == b"ping" or not data.strip():
            return []
        if data.strip() == b"[DONE]":
            self._is_complete = True
            return []
        chunk = decode_upstream_json(_LENIENT_CHUNK_DECODER, data)
        if chunk.error or name == b"error" or chunk.object == "error":
            return [to_stream_error(map_upstream_error(chunk.error or {"message": chunk.message}))]
        return self._decode_chunk(chunk)

    def _decode_chunk(self, chunk: _LenientChunk) -> list[StreamDelta]:
        deltas: list[StreamDelta] = []
        if chunk.choices and not self._has_started:
            self._has_started = True
            start = StreamStart(
                nonempty_text_or(chunk.id, new_id("chatcmpl-")),
                nonempty_text_or(chunk.model, "unknown"),
                timestamp_or_now(chunk.created),
            )
            deltas.append(start)
        for position, choice in enumerate(chunk.choices or []):
            if (choice.index or 0) == 0 and position == 0 and self._choice_state.finish_reason is None:
                self._decode_choice(choice, deltas)
        vendor_usage = chunk.x_groq.get("usage") if isinstance(chunk.x_groq, dict) else None
        usage = normalize_usage(chunk.usage) or normalize_usage(vendor_usage)
        if usage is not None:
            deltas.append(UsageUpdate(to_usage(msgspec.convert(usage, UsagePayload))))
        if not deltas and not self._has_started and chunk.choices is None:
            raise ProviderFailed("The provider sent an invalid response.")
        return deltas

    def _decode_choice(self, choice: _LenientChoice, deltas: list[StreamDelta]) -> None:
        delta = choice.delta or {}
        if len(delta) == 1 and type(content := delta.get("content")) is str:  # the most frequent chunk
            if content:
                deltas.append(TextDelta(content))
        else:
            self._decode_delta(delta, deltas)
        if choice.finish_reason:
            finish_reason = self._choice_state.finish_reason = to_finish_reason(choice.finish_reason)
            if any(not call.has_name for call in self._choice_state.calls.values()):
                raise ProviderFailed("The provider sent a tool call without a name.")
            deltas.extend(ToolCallArguments(index, CUSTOM_INPUT_SUFFIX) for index in sorted(self._custom_calls))
            deltas.append(StreamFinish(finish_reason))

    def _decode_delta(self, delta: dict[str, Any], deltas: list[StreamDelta]) -> None:
        content = flatten_content(delta.get("content"))
        for name in ("reasoning_content", "reasoning"):
            thinking = content.get(name) or delta.get(name)
            if isinstance(thinking, str) and thinking:
                deltas.append(ThinkingDelta(thinking))
                break
        if content["content"]:
            deltas.append(TextDelta(content["content"]))
        refusal = delta.get("refusal")
        if isinstance(refusal, str) and refusal:
            deltas.append(RefusalDelta(refusal))
        calls = delta.get("tool_calls")
        for tool_delta in calls if isinstance(calls, list) else []:
            self._decode_tool_call(tool_delta, deltas)
        legacy = delta.get("function_call")
        if isinstance(legacy, dict) and (
            self._is_function_call or not self._choice_state.calls
        ):  # otherwise it repeats a tool call
            self._is_function_call = True
            self._decode_tool_call({"function": legacy}, deltas)

    def _decode_tool_call(self, tool_delta: Any, deltas: list[StreamDelta]) -> None:
        if not isinstance(tool_delta, dict):
            raise ProviderFailed("The provider sent a tool call that is not an object.")
        call_id = nonempty_text_or(tool_delta.get("id"), "")
        index = self._choice_state.resolve_index(tool_delta.get("index"), call_id)
        call = self._choice_state.calls.setdefault(index, ToolCallState())
        if len(self._choice_state.calls) > MAX_TOOL_CALLS:
            raise too_many_tool_calls_error()
        call.id = call.id or call_id
        name, text = self._decode_payload(tool_delta, index)
        arguments = self._pending_arguments.pop(index, "") + text
        if name and not call.has_name:
            call.has_name = True
            call.id = call.id or new_id("call_")
            deltas.append(ToolCallStart(index, call.id, name))
        if not call.has_name:
            self._pending_arguments[index] = arguments
            self._pending_chars += len(text)
            if self._pending_chars > MAX_PENDING_ARGUMENT_CHARS:
                raise ProviderFailed("The provider sent too many arguments of tool calls without a name.")
        elif arguments:
            deltas.append(ToolCallArguments(index, arguments))

    def _decode_payload(self, tool_delta: dict[str, Any], index: int) -> tuple[str, str]:
        """Return the name and arguments of a tool call delta. Missing ones are empty."""
        function, custom = tool_delta.get("function"), tool_delta.get("custom")
        if isinstance(custom, dict):
            text = escape_json_text(arguments_to_json(custom.get("input")))
            begin = "" if index in self._custom_calls else CUSTOM_INPUT_PREFIX
            self._custom_calls.add(index)
            return nonempty_text_or(custom.get("name"), ""), begin + text
        function = function if isinstance(function, dict) else {}
        return nonempty_text_or(function.get("name"), ""), arguments_to_json(function.get("arguments"))
