"""Events of an OpenAI upstream -> deltas of the hub form. Only the first choice is read: others are never asked for."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from svc.dialects.failures import failure_of, stream_failed
from svc.dialects.openai.answer import split_content
from svc.dialects.openai.mending import MAX_CALLS, Call, Choice, too_many_calls
from svc.dialects.openai.shapes import UsageShape, finish_reason, mend_usage
from svc.dialects.openai.usage import usage_of
from svc.dialects.openai.whole import CUSTOM_BEGIN, CUSTOM_END, escaped
from svc.dialects.reading import decode_upstream
from svc.dialects.values import arguments_text, new_id, text_or, whole_or_now
from svc.errors import ProviderFailed
from svc.wire.chat import (
    Delta,
    Finish,
    RefusalDelta,
    Start,
    TextDelta,
    ThinkingDelta,
    ToolArguments,
    ToolStart,
    UsageSeen,
)
from svc.wire.sse import event_data, event_name


class _Choice(msgspec.Struct):
    index: Any = 0
    delta: dict[str, Any] | None = None
    finish_reason: str | None = None


class _Chunk(msgspec.Struct):
    id: Any = None
    model: Any = None
    created: Any = None
    object: Any = None
    message: Any = None
    choices: list[_Choice] | None = None
    usage: Any = None
    x_groq: Any = None
    error: Any = None


MAX_WAITING: Final = 1024 * 1024

_CHUNK: Final = msgspec.json.Decoder(_Chunk)


class OpenAIReader:
    """`StreamReader` of chat completion chunks."""

    def __init__(self) -> None:
        self._started = False
        self._complete = False
        self._choice = Choice()
        self._waiting: dict[int, str] = {}
        """Arguments of calls whose name has not come yet."""
        self._waited = 0
        """Characters of all such arguments so far."""
        self._custom: set[int] = set()
        """Places of calls of custom tools, whose text becomes the argument `input`."""
        self._legacy = False
        """The call came as a `function_call`."""

    @property
    def complete(self) -> bool:
        return self._complete

    def read(self, event: bytes) -> list[Delta]:
        data = event_data(event)
        name = event_name(event)
        if data is None or name == b"ping" or not data.strip():
            return []
        if data.strip() == b"[DONE]":
            self._complete = True
            return []
        chunk = decode_upstream(_CHUNK, data)
        if chunk.error or name == b"error" or chunk.object == "error":
            return [stream_failed(failure_of(chunk.error or {"message": chunk.message}))]
        return self._deltas(chunk)

    def _deltas(self, chunk: _Chunk) -> list[Delta]:
        deltas: list[Delta] = []
        if chunk.choices and not self._started:
            self._started = True
            start = Start(
                text_or(chunk.id, new_id("chatcmpl-")), text_or(chunk.model, "unknown"), whole_or_now(chunk.created)
            )
            deltas.append(start)
        for position, choice in enumerate(chunk.choices or []):
            if (choice.index or 0) == 0 and position == 0 and self._choice.finish is None:
                self._read_choice(choice, deltas)
        vendor = chunk.x_groq.get("usage") if isinstance(chunk.x_groq, dict) else None
        usage = mend_usage(chunk.usage) or mend_usage(vendor)
        if usage is not None:
            deltas.append(UsageSeen(usage_of(msgspec.convert(usage, UsageShape))))
        if not deltas and not self._started and chunk.choices is None:
            raise ProviderFailed("The provider's answer was not understandable.")
        return deltas

    def _read_choice(self, choice: _Choice, deltas: list[Delta]) -> None:
        delta = choice.delta or {}
        if len(delta) == 1 and type(content := delta.get("content")) is str:  # the ordinary chunk
            if content:
                deltas.append(TextDelta(content))
        else:
            self._read_delta(delta, deltas)
        if choice.finish_reason:
            reason = self._choice.finish = finish_reason(choice.finish_reason)
            if any(not call.named for call in self._choice.calls.values()):
                raise ProviderFailed("The provider sent a tool call without a name.")
            deltas.extend(ToolArguments(place, CUSTOM_END) for place in sorted(self._custom))
            deltas.append(Finish(reason))

    def _read_delta(self, delta: dict[str, Any], deltas: list[Delta]) -> None:
        said = split_content(delta.get("content"))
        for name in ("reasoning_content", "reasoning"):
            thinking = said.get(name) or delta.get(name)
            if isinstance(thinking, str) and thinking:
                deltas.append(ThinkingDelta(thinking))
                break
        if said["content"]:
            deltas.append(TextDelta(said["content"]))
        refusal = delta.get("refusal")
        if isinstance(refusal, str) and refusal:
            deltas.append(RefusalDelta(refusal))
        calls = delta.get("tool_calls")
        for piece in calls if isinstance(calls, list) else []:
            self._read_call(piece, deltas)
        legacy = delta.get("function_call")
        if isinstance(legacy, dict) and (self._legacy or not self._choice.calls):  # else it repeats a tool call
            self._legacy = True
            self._read_call({"function": legacy}, deltas)

    def _read_call(self, piece: Any, deltas: list[Delta]) -> None:
        if not isinstance(piece, dict):
            raise ProviderFailed("The provider sent a tool call that is not an object.")
        call_id = text_or(piece.get("id"), "")
        place = self._choice.place(piece.get("index"), call_id)
        call = self._choice.calls.setdefault(place, Call())
        if len(self._choice.calls) > MAX_CALLS:
            raise too_many_calls()
        call.id = call.id or call_id
        name, text = self._payload(piece, place)
        arguments = self._waiting.pop(place, "") + text
        if name and not call.named:
            call.named = True
            call.id = call.id or new_id("call_")
            deltas.append(ToolStart(place, call.id, name))
        if not call.named:
            self._waiting[place] = arguments
            self._waited += len(text)
            if self._waited > MAX_WAITING:
                raise ProviderFailed("The provider sent too many arguments of tool calls without a name.")
        elif arguments:
            deltas.append(ToolArguments(place, arguments))

    def _payload(self, piece: dict[str, Any], place: int) -> tuple[str, str]:
        """Name and arguments, as far as the piece has them."""
        function, custom = piece.get("function"), piece.get("custom")
        if isinstance(custom, dict):
            text = escaped(arguments_text(custom.get("input")))
            begin = "" if place in self._custom else CUSTOM_BEGIN
            self._custom.add(place)
            return text_or(custom.get("name"), ""), begin + text
        function = function if isinstance(function, dict) else {}
        return text_or(function.get("name"), ""), arguments_text(function.get("arguments"))
