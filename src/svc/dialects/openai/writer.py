"""Deltas of the hub form -> chunks for an OpenAI client, in the order that OpenAI publishes."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from svc.dialects.openai.whole import thinking_block, usage_object
from svc.errors import SvcError
from svc.wire.chat import (
    Delta,
    Finish,
    FinishReason,
    RedactedDelta,
    RedactedThinking,
    RefusalDelta,
    SignatureDelta,
    Start,
    TextDelta,
    Thinking,
    ThinkingDelta,
    ToolArguments,
    ToolStart,
    UsageSeen,
)
from svc.wire.problem import encode_problem
from svc.wire.usage import Usage

_encode: Final = msgspec.json.Encoder().encode


class OpenAIWriter:
    """`StreamWriter` of chat completion chunks."""

    def __init__(self, *, include_usage: bool) -> None:
        self._asked = include_usage
        self._frame = b""
        self._before = b""
        self._after = b""
        self._finish: FinishReason = "stop"
        self._usage: Usage | None = None
        self._thinking: list[str] = []
        self._blocks = 0

    def write(self, delta: Delta) -> bytes:
        if type(delta) is TextDelta:
            return self._before + b'{"content":' + _encode(delta.text) + b"}" + self._after
        if type(delta) is ToolArguments:
            call: Any = {"index": delta.index, "function": {"arguments": delta.text}}
            return self._chunk({"tool_calls": [call]})
        return self._rare(delta)

    def _rare(self, delta: Delta) -> bytes:
        match delta:
            case Start():
                return self._start(delta)
            case ToolStart(index, call_id, name):
                function = {"name": name, "arguments": ""}
                call = {"index": index, "id": call_id, "type": "function", "function": function}
                return self._chunk({"tool_calls": [call]})
            case ThinkingDelta(text):
                self._thinking.append(text)
                return self._chunk({"reasoning_content": text})
            case SignatureDelta(signature):
                thought = Thinking("".join(self._thinking), signature)
                self._thinking.clear()
                return self._block(thought)
            case RedactedDelta(data):
                return self._block(RedactedThinking(data))
            case RefusalDelta(text):
                return self._chunk({"refusal": text})
            case Finish(reason):
                self._finish = reason
            case UsageSeen(usage):
                self._usage = usage
        return b""

    def _start(self, start: Start) -> bytes:
        frame = {"id": start.id, "object": "chat.completion.chunk", "created": start.created, "model": start.model}
        self._frame = b"data: " + _encode(frame)[:-1] + b',"choices":['
        self._before = self._frame + b'{"index":0,"delta":'
        self._after = b',"finish_reason":null}]' + self._tail()
        self._usage = start.usage or self._usage
        return self._chunk({"role": "assistant", "content": ""})

    def _tail(self) -> bytes:
        return b',"usage":null}\n\n' if self._asked else b"}\n\n"

    def _chunk(self, delta: dict[str, Any]) -> bytes:
        return self._before + _encode(delta) + self._after

    def _block(self, thought: Thinking | RedactedThinking) -> bytes:
        """The whole block at once: a client has to send it back unchanged."""
        self._blocks += 1
        return self._chunk({"thinking_blocks": [thinking_block(thought, self._blocks - 1)]})

    def end(self) -> bytes:
        finish = self._before + b'{},"finish_reason":' + _encode(self._finish) + b"}]" + self._tail()
        usage = b""
        if self._asked and self._usage is not None:
            usage = self._frame + b'],"usage":' + _encode(usage_object(self._usage)) + b"}\n\n"
        return finish + usage + b"data: [DONE]\n\n"

    def fail(self, error: SvcError) -> bytes:
        return b"data: " + encode_problem(error) + b"\n\n"
