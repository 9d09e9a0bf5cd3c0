"""The words of Anthropic's answers and events, typed as far as they are read. Data only."""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec import Meta

from svc.wire.chat import FinishReason
from svc.wire.usage import MOST_TOKENS, Usage

Number = Annotated[int, Meta(ge=0, le=MOST_TOKENS)]

_FINISH: Final[dict[str, FinishReason]] = {
    "end_turn": "stop",
    "stop_sequence": "stop",
    "pause_turn": "stop",
    "max_tokens": "length",
    "model_context_window_exceeded": "length",
    "tool_use": "tool_calls",
    "refusal": "content_filter",
}
_STOP: Final[dict[FinishReason, str]] = {
    "stop": "end_turn",
    "length": "max_tokens",
    "tool_calls": "tool_use",
    "content_filter": "refusal",
}


def finish_reason(stop_reason: str | None) -> FinishReason:
    """One of the four."""
    return _FINISH.get(stop_reason or "", "stop")


def stop_reason(finish: FinishReason, *, tools: bool, refused: bool) -> str:
    """Anthropic's word; OpenAI and its vendors say `stop` also of a refusal and of calls of tools."""
    if finish == "stop" and (tools or refused):
        return "tool_use" if tools else "refusal"
    return _STOP[finish]


class OutputDetails(msgspec.Struct):
    thinking_tokens: Number | None = None


class UsageShape(msgspec.Struct):
    """`usage`; what a later event leaves out holds on from an earlier one."""

    input_tokens: Number | None = None
    cache_creation_input_tokens: Number | None = None
    cache_read_input_tokens: Number | None = None
    output_tokens: Number | None = None
    output_tokens_details: OutputDetails | None = None

    def replaced_by(self, later: UsageShape) -> UsageShape:
        """Usage is cumulative: what is said again replaces, and is never added."""
        fields = {name: value for name in later.__struct_fields__ if (value := getattr(later, name)) is not None}
        return msgspec.structs.replace(self, **fields)

    def usage(self) -> Usage:
        written = self.cache_creation_input_tokens or 0
        read = self.cache_read_input_tokens or 0
        details = self.output_tokens_details
        return Usage(
            prompt_tokens=(self.input_tokens or 0) + written + read,
            completion_tokens=self.output_tokens or 0,
            cached_tokens=read,
            cache_write_tokens=written,
            reasoning_tokens=(details and details.thinking_tokens) or 0,
        )


def usage_object(usage: Usage | None) -> dict[str, int]:
    """`usage` as Anthropic publishes it: input without what was cached."""
    usage = usage or Usage()
    return {
        "input_tokens": max(0, usage.prompt_tokens - usage.cached_tokens - usage.cache_write_tokens),
        "cache_creation_input_tokens": usage.cache_write_tokens,
        "cache_read_input_tokens": usage.cached_tokens,
        "output_tokens": usage.completion_tokens,
    }


class Block(msgspec.Struct):
    """A content block of an answer, as far as it is read."""

    type: str
    text: Any = None
    thinking: Any = None
    signature: Any = None
    data: Any = None
    id: Any = None
    name: Any = None
    input: Any = None


class AnswerShape(msgspec.Struct):
    """A whole answer."""

    id: Annotated[str, Meta(min_length=1)]
    type: Literal["message"]
    model: Annotated[str, Meta(min_length=1)]
    content: list[Block]
    usage: UsageShape
    stop_reason: str | None = None


class StartShape(msgspec.Struct):
    """`message` of `message_start`."""

    id: str | None = None
    model: str | None = None
    usage: UsageShape | None = None


class DeltaShape(msgspec.Struct):
    """`delta` of `content_block_delta` and of `message_delta`."""

    type: str = ""
    text: str | None = None
    thinking: str | None = None
    signature: str | None = None
    partial_json: str | None = None
    stop_reason: str | None = None


class Event(msgspec.Struct):
    """Any event of a stream."""

    type: str = ""
    index: int = 0
    delta: DeltaShape | None = None
    content_block: Block | None = None
    message: StartShape | None = None
    usage: UsageShape | None = None
    error: Any = None


EVENT: Final = msgspec.json.Decoder(Event)
ANSWER: Final = msgspec.json.Decoder(AnswerShape)
