"""Chats: what is asked becomes a request, answers become results. The same dialects as in the gateway; no sockets.

A server is the gateway (dialect `openai`), or a provider itself, for pipelines that go to it directly.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from svc.client.http_response import HttpResponse
from svc.client.http_session import HttpSession, error_from_code
from svc.dialects.base import Dialect, ModelProfile, StreamDecoder
from svc.dialects.openai import dialect as OPENAI
from svc.errors import GatewayFailed, InvalidRequest, ProviderFailed, SvcError
from svc.wire.chat import (
    RefusalDelta,
    StreamDelta,
    StreamError,
    StreamFinish,
    StreamStart,
    TextDelta,
    TextPart,
    ThinkingDelta,
    ThinkingPart,
    UpstreamOverrides,
    UsageUpdate,
)
from svc.wire.sse import EventSplitter, split_events
from svc.wire.usage import TokenUsage as Tokens

Messages = str | Sequence[Mapping[str, Any]]
SDK_DEFAULT_MODEL = "gpt-4o-mini"


class ChatUsage(msgspec.Struct, frozen=True):
    """Tokens."""

    prompt_tokens: int = 0
    completion_tokens: int = 0
    total_tokens: int = 0


class ChatResult(msgspec.Struct, frozen=True):
    """A whole answer. `raw` is the server's own JSON."""

    text: str
    usage: ChatUsage | None
    raw: dict[str, Any]
    model: str = ""
    finish_reason: str | None = None
    reasoning: str = ""
    request_id: str | None = None


class ChatChunk(msgspec.Struct, frozen=True):
    """A piece of a streamed answer; `finish_reason` comes with the last text, `usage` after it."""

    text: str = ""
    reasoning: str = ""
    finish_reason: str | None = None
    usage: ChatUsage | None = None


class ChatBackend(msgspec.Struct, frozen=True):
    """How whoever answers speaks, and what model is meant."""

    dialect: Dialect
    profile: ModelProfile


def gateway_backend(model: str | None) -> ChatBackend:
    """The gateway, for a model of its list."""
    return ChatBackend(OPENAI, ModelProfile(model=model or SDK_DEFAULT_MODEL))


class ChatHttpRequest(msgspec.Struct, frozen=True):
    """A request, ready to be sent."""

    path: str
    body: bytes
    headers: dict[str, str]


def build_request(
    backend: ChatBackend, messages: Messages, parameters: Mapping[str, Any], *, stream: bool
) -> ChatHttpRequest:
    """The request in the server's dialect. Raises InvalidRequest that names what is wrong."""
    profile = backend.profile
    message_list = [{"role": "user", "content": messages}] if isinstance(messages, str) else list(messages)
    fields = {name: value for name, value in parameters.items() if value is not None}
    body: dict[str, Any] = {"model": profile.model, "messages": message_list, **fields}
    if stream:
        body = {**body, "stream": True, "stream_options": fields.get("stream_options", {"include_usage": True})}
    try:
        encoded = msgspec.json.encode(body)
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidRequest(f"The request cannot be written as JSON: {error}.") from None
    accept = "text/event-stream" if stream else "application/json"
    headers = {"content-type": "application/json", "accept": accept}
    return ChatHttpRequest(backend.dialect.chat_path, _encode_for_backend(encoded, backend), headers)


def _encode_for_backend(raw: bytes, backend: ChatBackend) -> bytes:
    """The gateway gets what was asked as it is, and says itself what is wrong with it; a provider what it can take."""
    if backend.dialect is OPENAI and backend.profile.overrides == UpstreamOverrides():
        return raw
    routing_info = OPENAI.decode_routing_info(raw)
    if backend.dialect is OPENAI:
        return OPENAI.pass_through_request(raw, routing_info, backend.profile).body
    return backend.dialect.encode_request(OPENAI.decode_request(raw), backend.profile).body


def to_chat_usage(token_usage: Tokens | None) -> ChatUsage | None:
    """As people read it."""
    if token_usage is None:
        return None
    total = token_usage.prompt_tokens + token_usage.completion_tokens
    return ChatUsage(token_usage.prompt_tokens, token_usage.completion_tokens, total)


def decode_result(backend: ChatBackend, response: HttpResponse, body: bytes) -> ChatResult:
    """Reads a whole answer. Raises GatewayFailed for what is none."""
    try:
        decoded = backend.dialect.decode_response(body)
        raw = msgspec.json.decode(body)
    except (SvcError, msgspec.DecodeError, UnicodeDecodeError) as error:
        raise GatewayFailed("What came is no chat completion; is the address that of a gateway?") from error
    return ChatResult(
        text="".join(part.text for part in decoded.parts if isinstance(part, TextPart)),
        usage=to_chat_usage(decoded.usage),
        raw=raw,
        model=decoded.model,
        finish_reason=decoded.finish,
        reasoning="".join(part.text for part in decoded.parts if isinstance(part, ThinkingPart)),
        request_id=response.headers.get("x-request-id"),
    )


class ChatResponseStream:
    """A streamed answer on its way; `next` gives pieces, then None. A stream that breaks off raises."""

    def __init__(self, session: HttpSession, response: HttpResponse, deadline: float, backend: ChatBackend) -> None:
        self._session, self._response, self._deadline = session, response, deadline
        self._splitter = EventSplitter()
        self._decoder: StreamDecoder = backend.dialect.create_stream_decoder()
        self._chunks: deque[ChatChunk] = deque()
        self._has_finish_reason = self._closed = False
        self.text = ""
        """All text so far."""
        self.usage: ChatUsage | None = None
        self.model = ""
        self.request_id = response.headers.get("x-request-id")

    async def next(self) -> ChatChunk | None:
        """The next piece with something in it. Raises SvcError when the stream broke."""
        try:
            while not self._chunks and not self._closed:
                await self._read_more()
        except BaseException:
            self.close()
            raise
        return self._chunks.popleft() if self._chunks else None

    async def _read_more(self) -> None:
        data = await self._session.read_chunk(self._response, self._deadline)
        for event in split_events(self._splitter.feed_block(data) if data else self._splitter.flush()):
            for delta in self._decoder.decode(event):
                self._handle_delta(delta)
        if self._decoder.is_complete or not data:
            if not self._has_finish_reason:
                raise ProviderFailed("The answer broke off before its end.")
            while data and not self._response.is_complete:  # the end of the HTTP answer, so that the connection is kept
                data = await self._session.read_chunk(self._response, self._deadline)
            self.close()

    def _handle_delta(self, delta: StreamDelta) -> None:
        match delta:
            case TextDelta(text) | RefusalDelta(text):
                self.text += text
                self._chunks.append(ChatChunk(text=text))
            case ThinkingDelta(text):
                self._chunks.append(ChatChunk(reasoning=text))
            case StreamFinish(reason):
                self._has_finish_reason = True
                self._chunks.append(ChatChunk(finish_reason=reason))
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

    def _record_usage(self, token_usage: Tokens) -> None:
        self.usage = to_chat_usage(token_usage)
        if self._has_finish_reason:
            self._chunks.append(ChatChunk(usage=self.usage))

    def close(self) -> None:
        """Stops the answer; what it still costs is over. Safe to call twice."""
        if not self._closed:
            self._closed = True
            self._session.release(self._response)


def _to_exception(failure: StreamError) -> SvcError:
    return (
        error_from_code(None, failure.message, failure.status)
        if failure.status < 500
        else ProviderFailed(failure.message)
    )
