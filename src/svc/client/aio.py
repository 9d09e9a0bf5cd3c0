"""The SDK's face for programs on an event loop. `client`, for those that wait, is made from it: `make faces`."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, Self, overload

from svc.client.async_transport import AsyncTransport
from svc.client.base_client import BaseClient, record_chunk
from svc.wire.speech import Final, Partial

if TYPE_CHECKING:
    from svc.client.bundles import Bundle
    from svc.client.chat import ChatChunk, ChatResponseStream, ChatResult, Messages
    from svc.client.core import ModelInfo, Transcript
    from svc.client.live import LiveSession


class AsyncClient(BaseClient):
    """A gateway, for programs on an event loop; one loop for its life. Use it as a context, or call `close`."""

    _transport_type = AsyncTransport

    @overload
    async def chat(
        self,
        messages: Messages,
        *,
        model: str | None = None,
        stream: Literal[False] = False,
        timeout_s: float | None = None,
        **parameters: Any,
    ) -> ChatResult: ...

    @overload
    async def chat(
        self,
        messages: Messages,
        *,
        model: str | None = None,
        stream: Literal[True],
        timeout_s: float | None = None,
        **parameters: Any,
    ) -> AsyncChatStream: ...

    async def chat(
        self,
        messages: Messages,
        *,
        model: str | None = None,
        stream: bool = False,
        timeout_s: float | None = None,
        **parameters: Any,
    ) -> ChatResult | AsyncChatStream:
        """Asks a model; a text is one message of the user. `parameters` are fields of the request (`max_tokens`, …).

        `timeout_s` bounds the whole call. Raises SvcError.
        """
        if stream:
            return AsyncChatStream(await self._core.stream(messages, model, timeout_s, parameters))
        return await self._core.chat(messages, model, timeout_s, parameters)

    async def models(self) -> list[ModelInfo]:
        """What the gateway offers to this key. Raises SvcError."""
        return await self._core.models()

    async def transcribe(
        self, audio: str | os.PathLike[str] | bytes, *, model: str | None = None, language: str | None = None
    ) -> Transcript:
        """What is said in a WAV file, given by its path or as its bytes. Raises SvcError."""
        return await self._core.transcribe(audio, model, language)

    async def live(
        self,
        *,
        model: str | None = None,
        language: str | None = None,
        vad: bool | None = None,
        model_dir: str | None = None,
    ) -> AsyncLive:
        """A live session, ready to be fed. Use it as a context. Raises SvcError."""
        config = {"model": model, "language": language, "vad": vad, "model_dir": model_dir}
        return AsyncLive(await self._core.live(config))

    async def bundle(self, reference: str) -> Bundle:
        """A model on this machine, downloaded if need be: `.path`, `.metadata`, `.reference`. Raises SvcError."""
        bundle: Bundle = await self._core.bundle(reference)
        return bundle

    async def close(self) -> None:
        """Closes unused connections."""
        self._core.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._core.close()


class AsyncChatStream(AsyncIterator["ChatChunk"]):
    """Pieces of an answer as they come; raises SvcError when it breaks off. `.text` and `.usage` are of all so far."""

    def __init__(self, stream: ChatResponseStream) -> None:
        self._stream = stream
        self.text = ""
        self.usage = stream.usage
        self.request_id = stream.request_id

    async def __anext__(self) -> ChatChunk:
        return record_chunk(self, self._stream, await self._stream.next(), StopAsyncIteration)

    async def close(self) -> None:
        """Stops the answer."""
        self._stream.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stream.close()


class AsyncLive(AsyncIterator[Partial | Final]):
    """Live speech: `feed` audio, iterate over partials and finals until the session is closed."""

    def __init__(self, session: LiveSession) -> None:
        self._session = session
        self.session_id, self.model = session.session_id, session.model

    @property
    def closed(self) -> str | None:
        """Why the server closed the session."""
        return self._session.close_reason

    async def feed(self, pcm: bytes) -> None:
        """16-bit little-endian samples, 16000 per second, mono; any length. Raises GatewayFailed."""
        await self._session.feed(pcm)

    async def flush(self) -> None:
        """Asks for the final, which comes when iterating."""
        await self._session.flush()

    async def reset(self) -> None:
        """Forgets the utterance."""
        await self._session.reset()

    async def finish(self) -> Final:
        """Flushes and waits for the final. Raises SvcError."""
        return await self._session.finish()

    async def __anext__(self) -> Partial | Final:
        event = await self._session.next()
        if event is None:
            raise StopAsyncIteration
        return event

    async def close(self) -> None:
        """Ends the session."""
        await self._session.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()
