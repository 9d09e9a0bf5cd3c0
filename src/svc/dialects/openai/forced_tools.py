"""Forced tool calls at upstreams that do not enforce `tool_choice`, such as llama.cpp's server.

The request asks for JSON by a schema of the tools, with the name first. The text of the response is the call:

    {"name": "get_weather", "arguments": {"city": "Paris"}}
"""

from __future__ import annotations

import re
from typing import Any, ClassVar, Final

import msgspec

from svc.dialects.base import Dialect, EncodedRequest, ModelProfile, StreamDecoder, StreamEncoder
from svc.dialects.coerce import new_id
from svc.errors import InvalidRequest, ProviderFailed
from svc.wire.chat import (
    ChatMessage,
    ChatRequest,
    ChatResponse,
    ContentPart,
    FinishReason,
    ResponseFormat,
    StreamDelta,
    StreamFinish,
    TextDelta,
    TextPart,
    ToolCall,
    ToolCallArguments,
    ToolCallStart,
    ToolDefinition,
)

_CALL_HEAD: Final = re.compile(r'\s*\{\s*"name"\s*:\s*("(?:[^"\\]|\\.)*")\s*,\s*"arguments"\s*:')
_CALL_END_CHARS: Final = " \t\r\n}"
MAX_CALL_HEAD_CHARS: Final = 4096
"""Maximum characters before the arguments. An upstream that sends more does not follow the schema."""
MAX_TOOL_SCHEMA_DEPTH: Final = 128
"""Maximum depth of the parameters of a tool. Compiled code has no recursion limit of its own."""
INSTRUCTIONS: Final = (
    "You have these functions:\n{tools}\nCall the one that helps with the request of the user. "
    'Answer with JSON only: {{"name": "the function", "arguments": {{the values from the request}}}}'
)


class ForcedToolDialect(Dialect):
    """A dialect whose responses are texts that its upstream writes by the schema of the tools."""

    __slots__ = ("_base",)

    def __init__(self, base: Dialect) -> None:
        super().__init__(
            base.name,
            chat_path=base.chat_path,
            models_path=base.models_path,
            request_id_header=base.request_id_header,
        )
        self._base = base

    def decode_request(self, raw: bytes) -> ChatRequest:
        return self._base.decode_request(raw)

    def encode_response(self, response: ChatResponse) -> bytes:
        return self._base.encode_response(response)

    def create_stream_encoder(self, *, include_usage: bool) -> StreamEncoder:
        return self._base.create_stream_encoder(include_usage=include_usage)

    def auth_headers(self, api_key: str) -> tuple[tuple[str, str], ...]:
        return self._base.auth_headers(api_key)

    def encode_request(self, request: ChatRequest, profile: ModelProfile) -> EncodedRequest:
        return self._base.encode_request(_constrain(request), profile)

    def decode_response(self, raw: bytes) -> ChatResponse:
        response = self._base.decode_response(raw)
        text = "".join([part.text for part in response.parts if isinstance(part, TextPart)])
        parts: list[ContentPart] = [part for part in response.parts if not isinstance(part, TextPart)]
        parser = CallParser()
        deltas = parser.feed(text) + parser.finish(response.finish)
        start = next((delta for delta in deltas if isinstance(delta, ToolCallStart)), None)
        if start is not None:
            arguments = "".join([delta.text for delta in deltas if isinstance(delta, ToolCallArguments)])
            parts.append(ToolCall(start.id, start.name, arguments))
        return msgspec.structs.replace(response, parts=parts, finish=_to_call_finish(response.finish))

    def create_stream_decoder(self) -> StreamDecoder:
        return ForcedToolStreamDecoder(self._base.create_stream_decoder())

    def decode_error_message(self, raw: bytes) -> str | None:
        return self._base.decode_error_message(raw)


class ForcedToolStreamDecoder:
    """A StreamDecoder that turns the text of a stream into a tool call."""

    text_field: ClassVar[bytes] = b"content"
    arguments_field: ClassVar[bytes] = b""

    def __init__(self, decoder: StreamDecoder) -> None:
        self._decoder = decoder
        self._parser = CallParser()

    @property
    def is_complete(self) -> bool:
        return self._decoder.is_complete

    def decode(self, event: bytes) -> list[StreamDelta]:
        deltas: list[StreamDelta] = []
        for delta in self._decoder.decode(event):
            if isinstance(delta, TextDelta):
                deltas += self._parser.feed(delta.text)
            elif isinstance(delta, StreamFinish):
                deltas += self._parser.finish(delta.reason)
                deltas.append(StreamFinish(_to_call_finish(delta.reason)))
            else:
                deltas.append(delta)
        return deltas


class CallParser:
    """Reads a call from its text as it arrives. The arguments are forwarded without the brace that ends the call."""

    def __init__(self) -> None:
        self._pending = ""
        self._has_started = False
        self._has_arguments = False

    def feed(self, text: str) -> list[StreamDelta]:
        """Return the deltas of the next text. Raises ProviderFailed if it cannot be a call."""
        self._pending += text
        deltas: list[StreamDelta] = []
        if not self._has_started:
            head = _CALL_HEAD.match(self._pending)
            if head is None:
                if len(self._pending) > MAX_CALL_HEAD_CHARS:
                    raise _no_call_error()
                return deltas
            self._has_started = True
            self._pending = self._pending[head.end() :]
            deltas.append(ToolCallStart(0, new_id("call_"), msgspec.json.decode(head.group(1), type=str)))
        if not self._has_arguments:
            self._pending = self._pending.lstrip()
        arguments = self._pending.rstrip(_CALL_END_CHARS)
        if arguments:
            self._has_arguments = True
            self._pending = self._pending[len(arguments) :]
            deltas.append(ToolCallArguments(0, arguments))
        return deltas

    def finish(self, reason: FinishReason) -> list[StreamDelta]:
        """Return the rest of the arguments. Raises ProviderFailed if a complete text has no call."""
        rest, self._pending = self._pending.rstrip(), ""
        if reason == "stop":
            if not self._has_started or not rest.endswith("}"):
                raise _no_call_error()
            rest = rest[:-1].rstrip()
        return [ToolCallArguments(0, rest)] if rest and self._has_started else []


def _to_call_finish(reason: FinishReason) -> FinishReason:
    return "tool_calls" if reason == "stop" else reason


def _no_call_error() -> ProviderFailed:
    return ProviderFailed("The model did not call a tool, which `tool_choice` demands.")


def _constrain(request: ChatRequest) -> ChatRequest:
    """Return the request with a schema in place of its tools.

    Raises InvalidRequest if it has no such tool, or if the parameters of a tool are nested too deeply.
    """
    tools = _choose_tools(request)
    schema = _build_schema(tools)  # first, because it limits the depth
    listed = "\n".join([_describe(tool) for tool in tools])
    return msgspec.structs.replace(
        request,
        messages=_add_instructions(request.messages, INSTRUCTIONS.format(tools=listed)),
        tools=[],
        tool_choice=None,
        parallel_tool_calls=None,
        response_format=ResponseFormat("json_schema", "tool_call", schema, None),
    )


def _choose_tools(request: ChatRequest) -> list[ToolDefinition]:
    choice = request.tool_choice
    if choice is None or choice.mode != "tool":
        if not request.tools:
            raise InvalidRequest("`tool_choice` demands a tool, but `tools` is empty.", param="tool_choice")
        return request.tools
    named = [tool for tool in request.tools if tool.name == choice.name]
    if not named:
        raise InvalidRequest("`tool_choice` names a function that is not in `tools`.", param="tool_choice")
    return named[:1]


def _describe(tool: ToolDefinition) -> str:
    fields = {"name": tool.name, "description": tool.description, "parameters": tool.parameters}
    return msgspec.json.encode({name: value for name, value in fields.items() if value is not None}).decode()


def _add_instructions(messages: list[ChatMessage], text: str) -> list[ChatMessage]:
    """Add a text to the system message, which many chat templates accept only at the start."""
    part = TextPart(text)
    if messages and messages[0].role in ("system", "developer"):
        texts = [known.text for known in messages[0].parts if isinstance(known, TextPart)]
        system = ChatMessage(messages[0].role, [TextPart("\n\n".join([*texts, text]))], messages[0].name)
        return [system, *messages[1:]]
    return [ChatMessage("system", [part]), *messages]


def _build_schema(tools: list[ToolDefinition]) -> dict[str, Any]:
    """Return a schema with an alternative for each tool. Parameters stand in `$defs`, so that their `$ref` resolve."""
    definitions, calls = {}, []
    for number, tool in enumerate(tools):
        name = f"tool{number}"
        parameters = {"type": "object", **(tool.parameters or {})}
        definitions[name] = _move_references(parameters, f"#/$defs/{name}", MAX_TOOL_SCHEMA_DEPTH)
        calls.append(
            {
                "type": "object",
                "properties": {"name": {"const": tool.name}, "arguments": {"$ref": f"#/$defs/{name}"}},
                "required": ["name", "arguments"],
                "additionalProperties": False,
            }
        )
    return {"$defs": definitions, **(calls[0] if len(calls) == 1 else {"anyOf": calls})}


def _move_references(schema: Any, root: str, max_depth: int) -> Any:
    """Return a schema whose references to its own root point to its new place. Raises InvalidRequest."""
    if not isinstance(schema, (dict, list)):
        return schema
    if max_depth == 0:
        message = f"The parameters of a tool are nested more than {MAX_TOOL_SCHEMA_DEPTH} deep."
        raise InvalidRequest(message, param="tools")
    if isinstance(schema, list):
        return [_move_references(item, root, max_depth - 1) for item in schema]
    moved = {name: _move_references(value, root, max_depth - 1) for name, value in schema.items()}
    reference = schema.get("$ref")
    if isinstance(reference, str) and (reference == "#" or reference.startswith("#/")):
        moved["$ref"] = root + reference[1:]
    return moved
