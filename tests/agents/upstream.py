"""A provider that plays the task with an agent: it reads the conversation, and calls the agent's tools step by step.

`ChatUpstream`, `MessagesUpstream` and `ResponsesUpstream` speak one dialect each. A fault hits the step `edit`.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.agents import responses_wire
from tests.agents.task import ANSWER, FILE, RIGHT, WRONG, Call, Step, Tool, calls_for, next_step
from tests.conformance.upstream import ParsedRequest, matching_value
from tests.fakes import anthropic_wire, openai_wire
from tests.fakes.anthropic_wire import AnthropicWire
from tests.fakes.openai_wire import OpenAIWire
from tests.fakes.provider import Recorded
from tests.fakes.script import Body, Script, answer, body, end, head, pause, reset, sse

SILENCE_SECONDS = 40.0
FAULTS = ("529 twice", "cut in a tool call", "429", "silent before the first event", "silent after the first event")
SIGNATURE = "c2lnbmF0dXJlLW9mLXRoZS1mYWtl"
EDIT_BLOCK = f"{FILE}\n```\n<<<<<<< SEARCH\n{WRONG}\n=======\n{RIGHT}\n>>>>>>> REPLACE\n```\n"


@dataclass
class Play:
    """One run of an agent: the folder of its task, the fault, and how often the fault has occurred."""

    folder: Path
    fault: str = ""
    occurred: int = 0
    steps: list[Step] = field(default_factory=list)
    """The steps of the completed responses."""

    def due(self, step: Step) -> str:
        """Return the fault of this response, or an empty string."""
        limit = 2 if self.fault == "529 twice" else 1
        if step != "edit" or not self.fault or self.occurred >= limit:
            return ""
        self.occurred += 1
        return self.fault


@dataclass(frozen=True)
class Conversation:
    """A request, independent of the dialect."""

    tools: list[Tool]
    answered: set[str]
    """Ids of the calls whose results are in the request."""
    text: str
    """The whole text of the user and the system."""
    schema: dict[str, Any] | None
    parallel: bool
    stream: bool

    def reply(self, play: Play) -> tuple[Step, list[Call], str]:
        """Return the step, its tool calls, and the text of a response without calls."""
        if self.schema is not None:
            parsed = ParsedRequest("'a title'", {}, None, self.schema, answered=False)
            return "answer", [], json.dumps(matching_value(self.schema, parsed))
        if not self.tools:
            edits = "SEARCH/REPLACE" in self.text and RIGHT not in self.text
            return ("edit" if edits else "answer"), [], EDIT_BLOCK if edits else ANSWER
        step = next_step(self.answered)
        if step == "answer":
            return step, [], ANSWER
        return step, calls_for(step, self.tools, play.folder, parallel=self.parallel), ""


def script(
    play: Play, step: Step, whole: dict[str, Any], events: list[bytes], *, stream: bool, overloaded: dict[str, Any]
) -> Script:
    """Return the response with the fault that is due."""
    fault = play.due(step)
    if fault == "529 twice":
        return answer(529, overloaded)
    if fault == "429":
        return answer(429, overloaded, headers={"retry-after": "1"})
    if fault == "cut in a tool call":
        data = json.dumps(whole).encode()
        if not stream:
            return head() + body(data[: len(data) // 2]) + reset()
        return sse(events[: _middle(events)], end=reset())
    play.steps.append(step)
    silent = pause(SILENCE_SECONDS)
    if fault == "silent before the first event":
        return silent + (sse(events) if stream else answer(200, whole))
    if fault == "silent after the first event" and stream:
        rest = Script(tuple(Body(event) for event in events[1:]))
        return sse(events[:1], end=silent) + rest + end()
    if fault:
        data = json.dumps(whole).encode()
        return head() + body(data[:10]) + silent + body(data[10:]) + end()
    return sse(events) if stream else answer(200, whole)


def _middle(events: list[bytes]) -> int:
    """Return the number of events up to the middle of the first tool call, or of the text."""
    marks = (
        b"partial_json",
        b'"tool_calls"',
        b"arguments.delta",
        b"input.delta",
        b"text_delta",
        b'"content":',
        b"text.delta",
    )
    for mark in marks:
        at = [number for number, event in enumerate(events) if mark in event]
        if len(at) > 2:
            return at[len(at) // 2]
    return len(events) // 2


class ChatUpstream(OpenAIWire):
    """A provider with OpenAI's chat completions."""

    def __init__(self, play: Play) -> None:
        super().__init__()
        self.play = play

    def usual(self, seen: Recorded) -> Script:
        if seen.method == "GET":
            return super().usual(seen)
        request = seen.json
        conversation = read_chat(request)
        step, calls, text = conversation.reply(self.play)
        tools = [(one.id, one.tool.name, _arguments(one)) for one in calls]
        usage = bool((request.get("stream_options") or {}).get("include_usage"))
        events = openai_wire.tool_stream(tools, usage=usage) if tools else openai_wire.stream(text, usage=usage)
        whole = openai_wire.chat(text or None, tools=tools, finish="tool_calls" if tools else "stop")
        overloaded = openai_wire.error("Overloaded.", "server_error")
        return script(self.play, step, whole, events, stream=conversation.stream, overloaded=overloaded)


class MessagesUpstream(AnthropicWire):
    """A provider with Anthropic's messages. It thinks if it may, and wants its signatures back."""

    def __init__(self, play: Play) -> None:
        super().__init__()
        self.play = play

    def refusal(self, seen: Recorded, key: str) -> tuple[str, Script] | None:
        if seen.path.split("?")[0] == "/v1/messages/count_tokens":
            return None
        is_enabled = seen.method == "POST" and (seen.json.get("thinking") or {}).get("type") == "enabled"
        if is_enabled and b'"tool_use"' in seen.body and SIGNATURE.encode() not in seen.body:
            complaint = "messages: the thinking blocks before tool calls are missing"
            return complaint, answer(400, anthropic_wire.error(message=complaint))
        return super().refusal(seen, key)

    def usual(self, seen: Recorded) -> Script:
        if seen.method == "GET":
            return super().usual(seen)
        if seen.path.split("?")[0] == "/v1/messages/count_tokens":
            return answer(200, {"input_tokens": 42})
        conversation = read_messages(seen.json)
        step, calls, text = conversation.reply(self.play)
        content = [anthropic_wire.thinking(f"I shall {step}.", SIGNATURE)] if thinks(seen.json) else []
        content += [anthropic_wire.text(text)] if text else []
        content += [anthropic_wire.tool_use(one.id, one.tool.name, _arguments(one)) for one in calls]
        stop = "tool_use" if calls else "end_turn"
        overloaded = anthropic_wire.error("overloaded_error", "Overloaded")
        whole, events = anthropic_wire.message(content, stop=stop), anthropic_wire.stream(content, stop=stop)
        return script(self.play, step, whole, events, stream=conversation.stream, overloaded=overloaded)


def thinks(request: dict[str, Any]) -> bool:
    """Whether the response to this request of Anthropic's API begins with thinking."""
    adaptive = "effort" in (request.get("output_config") or {})
    return adaptive or (request.get("thinking") or {}).get("type") in ("enabled", "adaptive")


class ResponsesUpstream:
    """A provider with OpenAI's responses. Its reasoning is encrypted."""

    def __init__(self, play: Play) -> None:
        self.play = play

    def refusal(self, seen: Recorded, key: str) -> tuple[str, Script] | None:
        if seen.headers.get("authorization") != f"Bearer {key}":
            return "wrong key", answer(
                401, responses_wire.error("invalid_request_error", "Incorrect API key provided.")
            )
        if (seen.method, seen.path.split("?")[0]) != ("POST", "/v1/responses"):
            complaint = f"no such address: {seen.method} {seen.path}"
            return complaint, answer(404, responses_wire.error("invalid_request_error", complaint))
        return None

    def usual(self, seen: Recorded) -> Script:
        conversation = read_responses(seen.json)
        step, calls, text = conversation.reply(self.play)
        output = (
            [responses_wire.reasoning(SIGNATURE)]
            if "reasoning.encrypted_content" in (seen.json.get("include") or ())
            else []
        )
        output += [responses_wire.message(text)] if text else []
        output += [
            responses_wire.call(
                one.id, one.tool.name, _arguments(one), custom=one.tool.custom, namespace=one.tool.namespace
            )
            for one in calls
        ]
        whole, events = responses_wire.response(output), responses_wire.stream(output)
        overloaded = responses_wire.error("server_error", "Overloaded.")
        return script(self.play, step, whole, events, stream=conversation.stream, overloaded=overloaded)


def _arguments(call: Call) -> str:
    return call.arguments if isinstance(call.arguments, str) else json.dumps(call.arguments)


def read_chat(request: dict[str, Any]) -> Conversation:
    messages = request["messages"]
    functions = [tool["function"] for tool in request.get("tools") or [] if tool.get("type") == "function"]
    response_format = request.get("response_format") or {}
    return Conversation(
        tools=[Tool(one["name"], one.get("parameters") or {}) for one in functions],
        answered={one["tool_call_id"] for one in messages if one["role"] == "tool"},
        text=_text([one.get("content") for one in messages]),
        schema=(response_format.get("json_schema") or {}).get("schema"),
        parallel=request.get("parallel_tool_calls", True),
        stream=bool(request.get("stream")),
    )


def read_messages(request: dict[str, Any]) -> Conversation:
    contents = [one["content"] for one in request["messages"]]
    parts = [part for content in contents if isinstance(content, list) for part in content]
    output_format = (request.get("output_config") or {}).get("format") or {}
    return Conversation(
        tools=[Tool(one["name"], one["input_schema"]) for one in request.get("tools") or [] if "input_schema" in one],
        answered={part["tool_use_id"] for part in parts if part["type"] == "tool_result"},
        text=_text([request.get("system"), *contents]),
        schema=output_format.get("schema"),
        parallel=not (request.get("tool_choice") or {}).get("disable_parallel_tool_use", False),
        stream=bool(request.get("stream")),
    )


def read_responses(request: dict[str, Any]) -> Conversation:
    items = request["input"] if isinstance(request["input"], list) else [{"content": request["input"]}]
    text_format = (request.get("text") or {}).get("format") or {}
    tools = []
    for tool in request.get("tools") or []:
        inner = tool["tools"] if tool["type"] == "namespace" else [tool]
        namespace = tool["name"] if tool["type"] == "namespace" else ""
        for one in inner:
            if one["type"] in ("function", "custom"):
                tools.append(Tool(one["name"], one.get("parameters") or {}, one["type"] == "custom", namespace))
    return Conversation(
        tools=tools,
        answered={one["call_id"] for one in items if str(one.get("type")).endswith("_call_output")},
        text=_text([request.get("instructions"), *(one.get("content") for one in items)]),
        schema=text_format.get("schema"),
        parallel=request.get("parallel_tool_calls", True),
        stream=bool(request.get("stream")),
    )


def _text(contents: list[Any]) -> str:
    """Return the text of contents of any form."""
    found = []
    for content in contents:
        parts = [content] if isinstance(content, str) else content or []
        found += [part if isinstance(part, str) else str(part.get("text", "")) for part in parts]
    return re.sub(r"\s+\n", "\n", "\n".join(found))
