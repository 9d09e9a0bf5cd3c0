"""The SDK's face for programs that wait. Made from `aio`, the other face, by `make faces`: change that one."""

from __future__ import annotations

import os
from collections.abc import Iterator
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, Self, overload

from svc.client.base_client import BaseClient, record_chunk
from svc.client.transport import BlockingTransport, run_sync
from svc.wire.speech import Final, Partial

if TYPE_CHECKING:
    from svc.client.bundles import Bundle
    from svc.client.chat import ChatChunk, ChatResponseStream, ChatResult, Messages
    from svc.client.core import ModelInfo, Transcript
    from svc.client.live import LiveSession


class Client(BaseClient):
    """A gateway, for programs that wait. Threads may share it; use it as a context, or call `close`."""

    _transport_type = BlockingTransport

    @overload
    def chat(
        self,
        messages: Messages,
        *,
        model: str | None = None,
        stream: Literal[False] = False,
        timeout_s: float | None = None,
        **parameters: Any,
    ) -> ChatResult: ...

    @overload
    def chat(
        self,
        messages: Messages,
        *,
        model: str | None = None,
        stream: Literal[True],
        timeout_s: float | None = None,
        **parameters: Any,
    ) -> ChatStream: ...

    def chat(
        self,
        messages: Messages,
        *,
        model: str | None = None,
        stream: bool = False,
        timeout_s: float | None = None,
        **parameters: Any,
    ) -> ChatResult | ChatStream:
        """Asks a model; a text is one message of the user. `parameters` are fields of the request (`max_tokens`, …).

        `timeout_s` bounds the whole call. Raises SvcError.
        """
        if stream:
            return ChatStream(run_sync(self._core.stream(messages, model, timeout_s, parameters)))
        return run_sync(self._core.chat(messages, model, timeout_s, parameters))

    def models(self) -> list[ModelInfo]:
        """What the gateway offers to this key. Raises SvcError."""
        return run_sync(self._core.models())

    def transcribe(
        self, audio: str | os.PathLike[str] | bytes, *, model: str | None = None, language: str | None = None
    ) -> Transcript:
        """What is said in a WAV file, given by its path or as its bytes. Raises SvcError."""
        return run_sync(self._core.transcribe(audio, model, language))

    def live(
        self,
        *,
        model: str | None = None,
        language: str | None = None,
        vad: bool | None = None,
        model_dir: str | None = None,
    ) -> Live:
        """A live session, ready to be fed. Use it as a context. Raises SvcError."""
        config = {"model": model, "language": language, "vad": vad, "model_dir": model_dir}
        return Live(run_sync(self._core.live(config)))

    def bundle(self, reference: str) -> Bundle:
        """A model on this machine, downloaded if need be: `.path`, `.metadata`, `.reference`. Raises SvcError."""
        bundle: Bundle = run_sync(self._core.bundle(reference))
        return bundle

    def close(self) -> None:
        """Closes unused connections."""
        self._core.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._core.close()


class ChatStream(Iterator["ChatChunk"]):
    """Pieces of an answer as they come; raises SvcError when it breaks off. `.text` and `.usage` are of all so far."""

    def __init__(self, stream: ChatResponseStream) -> None:
        self._stream = stream
        self.text = ""
        self.usage = stream.usage
        self.request_id = stream.request_id

    def __next__(self) -> ChatChunk:
        return record_chunk(self, self._stream, run_sync(self._stream.next()), StopIteration)

    def close(self) -> None:
        """Stops the answer."""
        self._stream.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stream.close()


class Live(Iterator[Partial | Final]):
    """Live speech: `feed` audio, iterate over partials and finals until the session is closed."""

    def __init__(self, session: LiveSession) -> None:
        self._session = session
        self.session_id, self.model = (session.session_id, session.model)

    @property
    def closed(self) -> str | None:
        """Why the server closed the session."""
        return self._session.close_reason

    def feed(self, pcm: bytes) -> None:
        """16-bit little-endian samples, 16000 per second, mono; any length. Raises GatewayFailed."""
        run_sync(self._session.feed(pcm))

    def flush(self) -> None:
        """Asks for the final, which comes when iterating."""
        run_sync(self._session.flush())

    def reset(self) -> None:
        """Forgets the utterance."""
        run_sync(self._session.reset())

    def finish(self) -> Final:
        """Flushes and waits for the final. Raises SvcError."""
        return run_sync(self._session.finish())

    def __next__(self) -> Partial | Final:
        event = run_sync(self._session.next())
        if event is None:
            raise StopIteration
        return event

    def close(self) -> None:
        """Ends the session."""
        run_sync(self._session.close())

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
