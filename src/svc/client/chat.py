"""Encodes chat requests and decodes responses with the gateway's dialects. No sockets.

The server is a gateway (dialect `openai`), or a provider that a pipeline calls directly.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from svc.client.config import SDK_DEFAULT_MODEL
from svc.client.event_stream import SdkEventStream
from svc.client.http_session import HttpSession, error_from_code, raise_stream_error
from svc.client.request_fields import encode_request_body, select_fields, to_items
from svc.client.structured_output import JsonSchema, parse_structured
from svc.client.tool_calls import ChatToolCall, ChatToolCallDelta, ToolCallAssembler, assistant_message
from svc.client.transport import ClientResponse
from svc.dialects.base import Dialect, ModelProfile, RequestBody, StreamDecoder
from svc.dialects.openai import dialect as openai_dialect
from svc.dialects.openai.routing_info import decode_routing_info
from svc.dialects.request_passthrough import pass_through_request
from svc.errors import GatewayFailed, ProviderFailed, SvcError
from svc.wire.chat import (
    RefusalDelta,
    RefusalPart,
    StreamDelta,
    StreamError,
    StreamFinish,
    StreamStart,
    TextDelta,
    TextPart,
    ThinkingDelta,
    ThinkingPart,
    ToolCall,
    ToolCallArguments,
    ToolCallStart,
    UpstreamOverrides,
    UsageUpdate,
)
from svc.wire.sse import event_data
from svc.wire.usage import TokenUsage

Messages = str | Sequence[Mapping[str, Any]]


class ChatUsage(msgspec.Struct, frozen=True):
    """Token counts."""

    prompt_tokens: int = 0
    completion_tokens: int = 0
    total_tokens: int = 0


class ChatResult(msgspec.Struct, frozen=True):
    """A complete response. `raw` is the JSON of the server."""

    text: str
    usage: ChatUsage | None
    raw: dict[str, Any]
    model: str = ""
    finish_reason: str | None = None
    reasoning: str = ""
    request_id: str | None = None
    tool_calls: tuple[ChatToolCall, ...] = ()
    schema: JsonSchema | None = None
    """The schema of the request."""

    @property
    def message(self) -> dict[str, Any]:
        """Return the response as a message, for the messages of the next request."""
        return assistant_message(self.text, self.tool_calls)

    @property
    def parsed(self) -> Any:
        """Return the value of a response with a schema. Raises ProviderFailed if the model did not follow it."""
        return parse_structured(self.text, self.schema, self.finish_reason)


class ChatChunk(msgspec.Struct, frozen=True):
    """A chunk of a streamed response. `finish_reason` follows the last text, and `usage` follows it."""

    text: str = ""
    reasoning: str = ""
    finish_reason: str | None = None
    usage: ChatUsage | None = None
    tool_call: ChatToolCallDelta | None = None


class ChatBackend(msgspec.Struct, frozen=True):
    """The dialect of the server and the model."""

    dialect: Dialect
    profile: ModelProfile


def gateway_backend(model: str | None) -> ChatBackend:
    """Return the backend for a model of the gateway."""
    return ChatBackend(openai_dialect, ModelProfile(model=model or SDK_DEFAULT_MODEL))


class ChatHttpRequest(msgspec.Struct, frozen=True):
    """An encoded request."""

    path: str
    body: bytes
    headers: dict[str, str]


def build_request(
    backend: ChatBackend, messages: Messages, parameters: Mapping[str, Any], *, stream: bool
) -> ChatHttpRequest:
    """Encode the request in the server's dialect. Raises InvalidRequest that names the invalid field."""
    profile = backend.profile
    if isinstance(messages, str):
        messages = [{"role": "user", "content": messages}]
    fields = select_fields(parameters)
    body: dict[str, Any] = {"model": profile.model, "messages": to_items(messages, "messages"), **fields}
    if stream:
        body = {**body, "stream": True, "stream_options": fields.get("stream_options", {"include_usage": True})}
    encoded = encode_request_body(body)
    accept = "text/event-stream" if stream else "application/json"
    headers = {"content-type": "application/json", "accept": accept}
    return ChatHttpRequest(backend.dialect.chat_path, _encode_for_backend(encoded, backend), headers)


def _encode_for_backend(raw: bytes, backend: ChatBackend) -> bytes:
    """Translate the request for a provider. The gateway gets it unchanged, because it validates requests itself."""
    if backend.dialect is openai_dialect and backend.profile.overrides == UpstreamOverrides():
        return raw
    request_body = RequestBody(raw)
    routing_info = decode_routing_info(request_body)
    if backend.dialect is openai_dialect:
        return pass_through_request(request_body, routing_info, backend.profile, ask_usage=True).body
    return backend.dialect.encode_request(openai_dialect.decode_request(raw), backend.profile).body


def to_chat_usage(token_usage: TokenUsage | None) -> ChatUsage | None:
    """Convert the gateway's usage to the client's."""
    if token_usage is None:
        return None
    total = token_usage.prompt_tokens + token_usage.completion_tokens
    return ChatUsage(token_usage.prompt_tokens, token_usage.completion_tokens, total)


def decode_result(
    backend: ChatBackend, response: ClientResponse, body: bytes, schema: JsonSchema | None = None
) -> ChatResult:
    """Decode a complete response. Raises GatewayFailed if it is not a chat completion."""
    try:
        decoded = backend.dialect.decode_response(body)
        raw = msgspec.json.decode(body)
    except (SvcError, msgspec.DecodeError, UnicodeDecodeError) as error:
        raise GatewayFailed("The response is not a chat completion. Check that the address is a gateway's.") from error
    return ChatResult(
        text="".join(part.text for part in decoded.parts if isinstance(part, TextPart | RefusalPart)),
        usage=to_chat_usage(decoded.usage),
        raw=raw,
        model=decoded.model,
        finish_reason=decoded.finish,
        reasoning="".join(part.text for part in decoded.parts if isinstance(part, ThinkingPart)),
        request_id=response.headers.get("x-request-id"),
        tool_calls=tuple(
            ChatToolCall(part.id, part.name, part.arguments) for part in decoded.parts if isinstance(part, ToolCall)
        ),
        schema=schema,
    )


class ChatResponseStream(SdkEventStream[ChatChunk]):
    """A streamed response. `next` returns the chunks that are not empty."""

    def __init__(
        self,
        session: HttpSession,
        response: ClientResponse,
        backend: ChatBackend,
        schema: JsonSchema | None = None,
    ) -> None:
        super().__init__(session, response)
        self.schema = schema
        self._decoder: StreamDecoder = backend.dialect.create_stream_decoder()
        self._has_finish_reason = False
        self._tool_calls = ToolCallAssembler()
        self.tool_calls: tuple[ChatToolCall, ...] = ()
        """The tool calls, once the finish reason was returned. Empty before."""
        self.usage: ChatUsage | None = None
        self.model = ""
        self.provider = response.headers.get("x-svc-provider")

    async def next(self) -> ChatChunk | None:
        chunk = await super().next()
        if chunk is not None and chunk.finish_reason is not None:
            self.tool_calls = self._tool_calls.calls()
        if chunk is not None and chunk.usage is not None:
            self.usage = chunk.usage
        return chunk

    @property
    def _is_last_event_read(self) -> bool:
        return self._decoder.is_complete

    @property
    def _has_result(self) -> bool:
        return self._has_finish_reason

    def _handle_event(self, event: bytes) -> None:
        if self._session.is_gateway:  # a dialect would take its errors for those of a provider
            raise_stream_error(event_data(event))
        for delta in self._decoder.decode(event):
            self._handle_delta(delta)

    def _handle_delta(self, delta: StreamDelta) -> None:
        match delta:
            case TextDelta(text) | RefusalDelta(text):
                self._items.append(ChatChunk(text=text))
            case ThinkingDelta(text):
                self._items.append(ChatChunk(reasoning=text))
            case ToolCallStart(index, call_id, name):
                self._items.append(ChatChunk(tool_call=self._tool_calls.start(index, call_id, name)))
            case ToolCallArguments(index, text):
                self._items.append(ChatChunk(tool_call=self._tool_calls.append(index, text)))
            case StreamFinish(reason):
                self._has_finish_reason = True
                self._items.append(ChatChunk(finish_reason=reason))
            case UsageUpdate(usage):
                self._record_usage(usage)
            case StreamStart():
                self.model = delta.model
                if delta.usage is not None:
                    self._record_usage(delta.usage)
            case StreamError():
                raise _to_exception(delta)
            case _:
                pass

    def _record_usage(self, token_usage: TokenUsage) -> None:
        if self._has_finish_reason:
            self._items.append(ChatChunk(usage=to_chat_usage(token_usage)))
        else:
            self.usage = to_chat_usage(token_usage)


def _to_exception(failure: StreamError) -> SvcError:
    return (
        error_from_code(None, failure.message, failure.status)
        if failure.status < 500
        else ProviderFailed(failure.message)
    )
