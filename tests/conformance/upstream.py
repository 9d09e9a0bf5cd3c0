"""The provider behind the conformance run. It follows the prompt's orders, and otherwise responds by rules.

[[cut]] [[half]] [[broken]] [[slow]] [[429]]      fails in that way, or is slow
[[think]]                                         thinks first, and later needs its own block back
a schema for the response                         JSON that matches it
tools without results yet                         calls them with matching arguments
anything else                                     a sentence
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tests.fakes import anthropic_wire, openai_wire, responses_wire
from tests.fakes.anthropic_wire import AnthropicWire
from tests.fakes.openai_wire import OpenAIWire
from tests.fakes.provider import Recorded
from tests.fakes.script import Script, answer, reset, sse

WORDS = "The fake answers with, in ünïcode and 🦙, ten words."
SLOW = " ".join(["slow"] * 200)
ORDER = re.compile(r"\[\[(\w+)\]\]")
STATUS = {400: "invalid_request_error", 403: "permission_error", 404: "not_found_error", 429: "rate_limit_error"}
THOUGHT = anthropic_wire.thinking("Let me think.", "c2ln")
Tool = tuple[str, str, str]


@dataclass(frozen=True)
class ParsedRequest:
    """A request, independent of the dialect."""

    prompt: str
    tools: dict[str, dict[str, Any]]
    """Schemas by name. Empty if no tool is to be called."""
    forced: str | None
    schema: dict[str, Any] | None
    answered: bool
    """The request ends with tool results."""

    @property
    def order(self) -> str:
        found = ORDER.search(self.prompt)
        return found.group(1) if found else ""

    def calls(self) -> list[Tool]:
        """The tools to call. There are two if the prompt asks for them."""
        if not self.tools or (self.answered and self.forced is None):
            return []
        names = [self.forced] if self.forced in self.tools else list(self.tools)[: 2 if self.order == "two" else 1]
        return [
            (f"call_{at}", name, json.dumps(matching_value(self.tools[name], self))) for at, name in enumerate(names)
        ]

    def text(self) -> str:
        if self.schema is not None:
            return json.dumps(matching_value(self.schema, self))
        return SLOW if self.order == "slow" else WORDS


def matching_value(schema: dict[str, Any], parsed: ParsedRequest, root: dict[str, Any] | None = None) -> Any:
    """Return a value for the schema, with the first number or quoted word of the prompt in it."""
    root = root or schema
    if "$ref" in schema:
        name = schema["$ref"].rsplit("/", 1)[-1]
        return matching_value({**root.get("$defs", {}), **root.get("definitions", {})}[name], parsed, root)
    for choice in ("anyOf", "oneOf", "allOf"):
        if choice in schema:
            return matching_value(schema[choice][0], parsed, root)
    if "const" in schema or "enum" in schema:
        return schema.get("const", (schema.get("enum") or [None])[0])
    kind = schema.get("type", "object" if "properties" in schema else "string")
    number = re.search(r"\d+", parsed.prompt)
    word = re.search(r"'([^']+)'", parsed.prompt)
    values: dict[str, Any] = {
        "integer": int(number.group()) if number else 1,
        "number": float(number.group()) if number else 1.5,
        "boolean": True,
        "null": None,
        "string": word.group(1) if word else "a word",
    }
    if kind == "object":
        return {name: matching_value(part, parsed, root) for name, part in schema.get("properties", {}).items()}
    if kind == "array":
        return [matching_value(schema.get("items", {}), parsed, root)]
    return values[kind]


class OpenAIUpstream(OpenAIWire):
    """A provider with OpenAI's wire format."""

    def usual(self, seen: Recorded) -> Script:
        if seen.method == "GET" or seen.path == "/v1/embeddings":
            return super().usual(seen)
        request = seen.json
        if seen.path == "/v1/responses":
            return respond(request)
        parsed = parse_openai(request)
        if parsed.order.isdigit():
            status = int(parsed.order)
            said = openai_wire.error(f"status {status}", STATUS.get(status, "server_error"))
            return answer(status, said, headers={"retry-after": "30"} if status == 429 else None)
        calls = parsed.calls()
        if not request.get("stream"):
            return answer(200, openai_wire.chat(None if calls else parsed.text(), tools=calls, finish=finish(calls)))
        usage = bool((request.get("stream_options") or {}).get("include_usage"))
        events = openai_wire.tool_stream(calls) if calls else openai_wire.stream(parsed.text(), usage=usage)
        if calls and not usage:
            events = [one for one in events if b'"choices": []' not in one]
        return stream_script(parsed.order, events, openai_wire.event(openai_wire.error("Overloaded.", "server_error")))


def respond(request: dict[str, Any]) -> Script:
    """Return the response of a provider with the Responses API."""
    parsed = parse_responses(request)
    if parsed.order.isdigit():
        status = int(parsed.order)
        return answer(status, openai_wire.error(f"status {status}", STATUS.get(status, "server_error")))
    calls = parsed.calls()
    if not request.get("stream"):
        return answer(200, responses_wire.response(None if calls else parsed.text(), tools=calls))
    events = responses_wire.tool_stream(calls) if calls else responses_wire.stream(parsed.text())
    return stream_script(parsed.order, events, responses_wire.event(5, "error", **responses_wire.error()))


class AnthropicUpstream(AnthropicWire):
    """A provider with Anthropic's wire format."""

    def usual(self, seen: Recorded) -> Script:
        if seen.method == "GET":
            return super().usual(seen)
        parsed = parse_anthropic(seen.json)
        if parsed.order.isdigit():
            status = int(parsed.order)
            said = anthropic_wire.error(STATUS.get(status, "api_error"), f"status {status}")
            return answer(status, said, headers={"retry-after": "30"} if status == 429 else None)
        calls = [anthropic_wire.tool_use(*call) for call in parsed.calls()]
        if parsed.order == "think":
            if parsed.answered and THOUGHT not in seen.json["messages"][-2]["content"]:
                return answer(400, anthropic_wire.error("invalid_request_error", "the thinking block is missing"))
            calls = [THOUGHT, *calls] if calls else []
        content: Sequence[dict[str, Any]] | str = calls or parsed.text()
        stop = "tool_use" if calls else "end_turn"
        if not seen.json.get("stream"):
            return answer(200, anthropic_wire.message(content, stop=stop))
        return stream_script(parsed.order, anthropic_wire.stream(content, stop=stop), anthropic_wire.error_event())


def finish(calls: list[Tool]) -> str:
    return "tool_calls" if calls else "stop"


def stream_script(order: str, events: list[bytes], broken: bytes) -> Script:
    """Return the stream, complete or as the prompt orders."""
    if order == "cut":
        return sse(events[:5], end=reset())
    if order == "half":
        return sse(events[:5])
    if order == "broken":
        return sse([*events[:5], broken])
    return sse(events, every=0.03 if order == "slow" else 0.0)


def parse_openai(request: dict[str, Any]) -> ParsedRequest:
    messages = request["messages"]
    choice = request.get("tool_choice", "auto")
    tools = {one["function"]["name"]: one["function"].get("parameters") or {} for one in request.get("tools", [])}
    response_format = request.get("response_format") or {}
    prompt = words_of([one.get("content") for one in messages if one["role"] == "user"][-1:])
    keys: dict[str, Any] = {name: {} for name in re.findall(r"'(\w+)'", prompt)}
    named = {
        "json_schema": (response_format.get("json_schema") or {}).get("schema"),
        "json_object": {"properties": keys},
    }
    return ParsedRequest(
        prompt=prompt,
        tools={} if choice == "none" else tools,
        forced=choice["function"]["name"] if isinstance(choice, dict) else None,
        schema=named.get(response_format.get("type", "")),
        answered=messages[-1]["role"] == "tool",
    )


def parse_responses(request: dict[str, Any]) -> ParsedRequest:
    items = request["input"]
    if isinstance(items, str):
        items = [{"role": "user", "content": items}]
    choice = request.get("tool_choice") or "auto"
    text_format = (request.get("text") or {}).get("format") or {}
    return ParsedRequest(
        prompt=words_of([one["content"] for one in items if one.get("role") == "user"][-1:]),
        tools={one["name"]: one["parameters"] for one in request.get("tools") or [] if choice != "none"},
        forced=choice["name"] if isinstance(choice, dict) else None,
        schema=text_format.get("schema"),
        answered=items[-1].get("type") == "function_call_output",
    )


def parse_anthropic(request: dict[str, Any]) -> ParsedRequest:
    turns = request["messages"]
    choice = request.get("tool_choice") or {"type": "auto"}
    said = [one["content"] for one in turns if one["role"] == "user"]
    results = [one for one in said[-1] if isinstance(one, dict) and one["type"] == "tool_result"]
    texts = [one for one in said if isinstance(one, str) or any(part["type"] == "text" for part in one)]
    form = (request.get("output_config") or {}).get("format") or {}
    return ParsedRequest(
        prompt=words_of(texts[-1:]),
        tools={}
        if choice["type"] == "none"
        else {one["name"]: one["input_schema"] for one in request.get("tools", [])},
        forced=choice.get("name"),
        schema=form.get("schema"),
        answered=bool(results),
    )


def words_of(contents: list[Any]) -> str:
    """Return the text of a message's content in any form."""
    found = []
    for content in contents:
        parts = [content] if isinstance(content, str) else content or []
        found += [part if isinstance(part, str) else str(part.get("text", "")) for part in parts]
    return " ".join(found)
