"""Chats: what is asked becomes a request, answers become results. The same dialects as in the gateway; no sockets.

A server is the gateway (dialect `openai`), or a provider itself, for pipelines that go to it directly.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from svc.client.http import Answer
from svc.client.session import Session, of_code
from svc.dialects.base import Dialect, StreamReader, Target
from svc.dialects.openai import dialect as OPENAI
from svc.errors import GatewayFailed, InvalidRequest, ProviderFailed, SvcError
from svc.wire.chat import (
    Delta,
    Finish,
    Quirks,
    RefusalDelta,
    Start,
    StreamFailed,
    Text,
    TextDelta,
    Thinking,
    ThinkingDelta,
    UsageSeen,
)
from svc.wire.sse import Splitter, split
from svc.wire.usage import Usage as Tokens

Messages = str | Sequence[Mapping[str, Any]]
DEFAULT_MODEL = "gpt-4o-mini"


class Usage(msgspec.Struct, frozen=True):
    """Tokens."""

    prompt_tokens: int = 0
    completion_tokens: int = 0
    total_tokens: int = 0


class ChatResult(msgspec.Struct, frozen=True):
    """A whole answer. `raw` is the server's own JSON."""

    text: str
    usage: Usage | None
    raw: dict[str, Any]
    model: str = ""
    finish_reason: str | None = None
    reasoning: str = ""
    request_id: str | None = None


class Piece(msgspec.Struct, frozen=True):
    """A piece of a streamed answer; `finish_reason` comes with the last text, `usage` after it."""

    text: str = ""
    reasoning: str = ""
    finish_reason: str | None = None
    usage: Usage | None = None


class Server(msgspec.Struct, frozen=True):
    """How whoever answers speaks, and what model is meant."""

    dialect: Dialect
    target: Target


def gateway(model: str | None) -> Server:
    """The gateway, for a model of its list."""
    return Server(OPENAI, Target(model=model or DEFAULT_MODEL))


class Asked(msgspec.Struct, frozen=True):
    """A request, ready to be sent."""

    path: str
    body: bytes
    headers: dict[str, str]


def ask(server: Server, messages: Messages, parameters: Mapping[str, Any], *, stream: bool) -> Asked:
    """The request in the server's dialect. Raises InvalidRequest that names what is wrong."""
    target = server.target
    turns = [{"role": "user", "content": messages}] if isinstance(messages, str) else list(messages)
    fields = {name: value for name, value in parameters.items() if value is not None}
    body: dict[str, Any] = {"model": target.model, "messages": turns, **fields}
    if stream:
        body = {**body, "stream": True, "stream_options": fields.get("stream_options", {"include_usage": True})}
    try:
        raw = msgspec.json.encode(body)
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidRequest(f"The request cannot be written as JSON: {error}.") from None
    accept = "text/event-stream" if stream else "application/json"
    headers = {"content-type": "application/json", "accept": accept}
    return Asked(server.dialect.chat_path, _said(raw, server), headers)


def _said(raw: bytes, server: Server) -> bytes:
    """The gateway gets what was asked as it is, and says itself what is wrong with it; a provider what it can take."""
    if server.dialect is OPENAI and server.target.quirks == Quirks():
        return raw
    head = OPENAI.head(raw)
    if server.dialect is OPENAI:
        return OPENAI.pass_request(raw, head, server.target).body
    return server.dialect.write_request(OPENAI.read_request(raw), server.target).body


def usage_of(tokens: Tokens | None) -> Usage | None:
    """As people read it."""
    if tokens is None:
        return None
    total = tokens.prompt_tokens + tokens.completion_tokens
    return Usage(tokens.prompt_tokens, tokens.completion_tokens, total)


def result(server: Server, answer: Answer, body: bytes) -> ChatResult:
    """Reads a whole answer. Raises GatewayFailed for what is none."""
    try:
        read = server.dialect.read_answer(body)
        raw = msgspec.json.decode(body)
    except (SvcError, msgspec.DecodeError, UnicodeDecodeError) as error:
        raise GatewayFailed("What came is no chat completion; is the address that of a gateway?") from error
    return ChatResult(
        text="".join(part.text for part in read.parts if isinstance(part, Text)),
        usage=usage_of(read.usage),
        raw=raw,
        model=read.model,
        finish_reason=read.finish,
        reasoning="".join(part.text for part in read.parts if isinstance(part, Thinking)),
        request_id=answer.headers.get("x-request-id"),
    )


class Stream:
    """A streamed answer on its way; `next` gives pieces, then None. A stream that breaks off raises."""

    def __init__(self, session: Session, answer: Answer, deadline: float, server: Server) -> None:
        self._session, self._answer, self._deadline = session, answer, deadline
        self._splitter = Splitter()
        self._reader: StreamReader = server.dialect.reader()
        self._pieces: deque[Piece] = deque()
        self._finished = self._closed = False
        self.text = ""
        """All text so far."""
        self.usage: Usage | None = None
        self.model = ""
        self.request_id = answer.headers.get("x-request-id")

    async def next(self) -> Piece | None:
        """The next piece with something in it. Raises SvcError when the stream broke."""
        try:
            while not self._pieces and not self._closed:
                await self._more()
        except BaseException:
            self.close()
            raise
        return self._pieces.popleft() if self._pieces else None

    async def _more(self) -> None:
        data = await self._session.piece(self._answer, self._deadline)
        for event in split(self._splitter.take(data) if data else self._splitter.flush()):
            for delta in self._reader.read(event):
                self._note(delta)
        if self._reader.complete or not data:
            if not self._finished:
                raise ProviderFailed("The answer broke off before its end.")
            while data and not self._answer.ended:  # the end of the HTTP answer, so that the connection is kept
                data = await self._session.piece(self._answer, self._deadline)
            self.close()

    def _note(self, delta: Delta) -> None:
        match delta:
            case TextDelta(text) | RefusalDelta(text):
                self.text += text
                self._pieces.append(Piece(text=text))
            case ThinkingDelta(text):
                self._pieces.append(Piece(reasoning=text))
            case Finish(reason):
                self._finished = True
                self._pieces.append(Piece(finish_reason=reason))
            case UsageSeen(usage):
                self._count(usage)
            case Start():
                self.model = delta.model
                if delta.usage is not None:
                    self._count(delta.usage)
            case StreamFailed():
                raise _failure(delta)
            case _:
                pass

    def _count(self, tokens: Tokens) -> None:
        self.usage = usage_of(tokens)
        if self._finished:
            self._pieces.append(Piece(usage=self.usage))

    def close(self) -> None:
        """Stops the answer; what it still costs is over. Safe to call twice."""
        if not self._closed:
            self._closed = True
            self._session.release(self._answer)


def _failure(said: StreamFailed) -> SvcError:
    return of_code(None, said.message, said.status) if said.status < 500 else ProviderFailed(said.message)
