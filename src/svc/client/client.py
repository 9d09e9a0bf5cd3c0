"""The blocking client. `aio` has the same methods as coroutines: change both."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, Self, overload

from svc import plugins
from svc.client.base_client import (
    DEFAULT_CLIENT_RETRIES,
    DEFAULT_CLIENT_TIMEOUT_SECONDS,
    BaseClient,
    record_chunk,
    record_event,
)
from svc.client.structured_output import JsonSchema, parse_structured_stream
from svc.client.tool_calls import assistant_message
from svc.client.transport import run_sync
from svc.wire.speech import Final, Partial

if TYPE_CHECKING:
    import httpx2

    from svc.client.bundles import Bundle
    from svc.client.chat import ChatChunk, ChatResponseStream, ChatResult, Messages
    from svc.client.core import DirectProvider, ModelInfo
    from svc.client.embeddings import EmbeddingInput, EmbeddingResult
    from svc.client.live import LiveIteration, LiveSession
    from svc.client.pipelines import PipelineDefinition, PipelineInput, PipelineResult, PipelineRuns
    from svc.client.responses import ResponseEventStream, ResponseInput, ResponseResult, ResponseStreamEvent
    from svc.client.speech import SpeechResponseStream
    from svc.client.transcripts import Transcript


class Client(BaseClient):
    """A blocking client. Thread-safe. Use it as a context manager, or call `close`.

    Arguments take precedence over `svc.init`, and that over the environment. `timeout` is the longest wait for a byte
    from the gateway, in seconds. `http_client` sends the requests to the gateway, and stays open at `close`. Raises
    InvalidRequest for an invalid address or key, and UsageError for an invalid proxy or certificate file.
    """

    def __init__(
        self,
        *,
        gateway_url: str | None = None,
        api_key: str | None = None,
        registry: str | None = None,
        retries: int = DEFAULT_CLIENT_RETRIES,
        timeout: float = DEFAULT_CLIENT_TIMEOUT_SECONDS,
        http_client: httpx2.Client | None = None,
        direct: DirectProvider | None = None,
    ) -> None:
        super().__init__(
            partial(plugins.load("client", "blocking_transport").BlockingTransport, http_client=http_client),
            gateway_url=gateway_url,
            api_key=api_key,
            registry=registry,
            retries=retries,
            timeout=timeout,
            direct=direct,
        )

    @overload
    def chat(
        self,
        messages: Messages,
        *,
        model: str | None = None,
        stream: Literal[False] = False,
        timeout_s: float | None = None,
        schema: JsonSchema | None = None,
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
        schema: JsonSchema | None = None,
        **parameters: Any,
    ) -> ChatStream: ...

    @overload
    def chat(
        self,
        messages: Messages,
        *,
        model: str | None = None,
        stream: bool,
        timeout_s: float | None = None,
        schema: JsonSchema | None = None,
        **parameters: Any,
    ) -> ChatResult | ChatStream: ...

    def chat(
        self,
        messages: Messages,
        *,
        model: str | None = None,
        stream: bool = False,
        timeout_s: float | None = None,
        schema: JsonSchema | None = None,
        **parameters: Any,
    ) -> ChatResult | ChatStream:
        """Send a chat request. A string is one user message. `parameters` are request fields such as `max_tokens`.

        `timeout_s` limits the whole call, in seconds. `schema` is the JSON schema of the response, and `parsed` of the
        result then has the value. Raises SvcError.
        """
        if stream:
            return ChatStream(run_sync(self._core.stream(messages, model, timeout_s, schema, parameters)))
        return run_sync(self._core.chat(messages, model, timeout_s, schema, parameters))

    def embed(
        self,
        input: EmbeddingInput,
        *,
        model: str | None = None,
        dimensions: int | None = None,
        timeout_s: float | None = None,
    ) -> EmbeddingResult:
        """Return a vector for each text. `dimensions` shortens the vectors, if the model supports it.

        `timeout_s` limits the whole call, in seconds. Raises SvcError.
        """
        return run_sync(self._core.embed(input, model, dimensions, timeout_s))

    @overload
    def responses(
        self,
        input: ResponseInput,
        *,
        model: str | None = None,
        stream: Literal[False] = False,
        timeout_s: float | None = None,
        **parameters: Any,
    ) -> ResponseResult: ...

    @overload
    def responses(
        self,
        input: ResponseInput,
        *,
        model: str | None = None,
        stream: Literal[True],
        timeout_s: float | None = None,
        **parameters: Any,
    ) -> ResponseStream: ...

    @overload
    def responses(
        self,
        input: ResponseInput,
        *,
        model: str | None = None,
        stream: bool,
        timeout_s: float | None = None,
        **parameters: Any,
    ) -> ResponseResult | ResponseStream: ...

    def responses(
        self,
        input: ResponseInput,
        *,
        model: str | None = None,
        stream: bool = False,
        timeout_s: float | None = None,
        **parameters: Any,
    ) -> ResponseResult | ResponseStream:
        """Send a request of the Responses API. A string is one user message.

        `parameters` are request fields such as `max_output_tokens`. `timeout_s` limits the whole call, in seconds.
        Raises SvcError, also if the response failed.
        """
        if stream:
            return ResponseStream(run_sync(self._core.stream_responses(input, model, timeout_s, parameters)))
        return run_sync(self._core.responses(input, model, timeout_s, parameters))

    def models(self, *, timeout_s: float | None = None) -> list[ModelInfo]:
        """Return the models that the key may use. `timeout_s` limits the whole call, in seconds. Raises SvcError."""
        return run_sync(self._core.models(timeout_s))

    def transcribe(
        self,
        audio: str | os.PathLike[str] | bytes,
        *,
        model: str | None = None,
        language: str | None = None,
        timeout_s: float | None = None,
    ) -> Transcript:
        """Transcribe an audio file, given as a path or as bytes: WAV, MP3, FLAC or Ogg.

        With the extra `whisper` at the gateway, it may also be M4A, MP4, WebM or AAC. `timeout_s` limits the whole
        call, in seconds. Raises SvcError.
        """
        return run_sync(self._core.transcribe(audio, model, language, timeout_s))

    @overload
    def speak(
        self,
        text: str,
        *,
        model: str | None = None,
        voice: str | None = None,
        format: str = "wav",
        speed: float | None = None,
        stream: Literal[False] = False,
        timeout_s: float | None = None,
        **parameters: Any,
    ) -> bytes: ...

    @overload
    def speak(
        self,
        text: str,
        *,
        model: str | None = None,
        voice: str | None = None,
        format: str = "wav",
        speed: float | None = None,
        stream: Literal[True],
        timeout_s: float | None = None,
        **parameters: Any,
    ) -> SpeechStream: ...

    @overload
    def speak(
        self,
        text: str,
        *,
        model: str | None = None,
        voice: str | None = None,
        format: str = "wav",
        speed: float | None = None,
        stream: bool,
        timeout_s: float | None = None,
        **parameters: Any,
    ) -> bytes | SpeechStream: ...

    def speak(
        self,
        text: str,
        *,
        model: str | None = None,
        voice: str | None = None,
        format: str = "wav",
        speed: float | None = None,
        stream: bool = False,
        timeout_s: float | None = None,
        **parameters: Any,
    ) -> bytes | SpeechStream:
        """Speak a text, and return the audio. With `stream`, return its chunks while it is made.

        Without `model`, a voice of the gateway's machine speaks, else the first speech model. `format` is `wav`, `mp3`,
        `opus`, `flac` or `pcm` (16-bit mono samples at 24 kHz). `speed` is a factor. `parameters` are further request
        fields. A streamed WAV does not state its length. `timeout_s` limits the whole call, in seconds. Raises
        SvcError, also if the audio is interrupted.
        """
        fields = parameters if speed is None else {"speed": speed, **parameters}
        if stream:
            return SpeechStream(run_sync(self._core.speak_stream(text, model, voice, format, timeout_s, fields)))
        return run_sync(self._core.speak(text, model, voice, format, timeout_s, fields))

    def live(
        self,
        *,
        model: str | None = None,
        language: str | None = None,
        vad: bool | None = None,
        model_dir: str | None = None,
        websocket_connection_options: Mapping[str, Any] | None = None,
    ) -> Live:
        """Open a live session and wait until it is ready. Use it as a context manager. Raises SvcError.

        `websocket_connection_options` are keyword arguments for `websockets.connect`, such as a TLS context or a proxy.
        """
        config = {"model": model, "language": language, "vad": vad, "model_dir": model_dir}
        return Live(run_sync(self._core.live(config, websocket_connection_options)))

    def bundle(self, reference: str) -> Bundle:
        """Return a bundle on this machine. Downloads it if necessary. Raises SvcError."""
        bundle: Bundle = run_sync(self._core.bundle(reference))
        return bundle

    def pipeline(self, definition: PipelineDefinition) -> ClientPipeline:
        """Return the pipeline of a definition: YAML, an object, or the path of a file as a `pathlib.Path`.

        Provider stages call this client's gateway, unless they have a `gateway_url`. Raises UsageError with the line
        and column.
        """
        return ClientPipeline(plugins.load("client", "pipelines").PipelineRuns(self._core, definition, self))

    def close(self) -> None:
        """Close the connections."""
        run_sync(self._core.close())

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        run_sync(self._core.close())


class ChatStream(Iterator["ChatChunk"]):
    """The chunks of a streamed response. Raises SvcError if it is interrupted.

    `text`, `reasoning` and `usage` are totals. `model` and `provider` are those of the response. `finish_reason` and
    the complete `tool_calls` follow at the end.
    """

    def __init__(self, stream: ChatResponseStream) -> None:
        self._stream = stream
        self.text = self.reasoning = ""
        self.model = stream.model
        self.finish_reason: str | None = None
        self.usage = stream.usage
        self.tool_calls = stream.tool_calls
        self.request_id = stream.request_id
        self.provider = stream.provider
        self._schema = stream.schema

    @property
    def message(self) -> dict[str, Any]:
        """Return the response as a message, for the messages of the next request. Use it after the end."""
        return assistant_message(self.text, self.tool_calls)

    @property
    def parsed(self) -> Any:
        """Return the value of a response with a schema, after the end. Raises SvcError as `ChatResult.parsed` does."""
        return parse_structured_stream(self.text, self._schema, self.finish_reason)

    def __next__(self) -> ChatChunk:
        return record_chunk(self, self._stream, run_sync(self._stream.next()), StopIteration)

    def close(self) -> None:
        """Cancel the response."""
        run_sync(self._stream.close())

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        run_sync(self._stream.close())


class ResponseStream(Iterator["ResponseStreamEvent"]):
    """The events of a streamed response. Raises SvcError if it fails or is interrupted.

    `text` is the text so far. `result` is the response, once it is complete.
    """

    def __init__(self, stream: ResponseEventStream) -> None:
        self._stream = stream
        self.text = ""
        self.result = stream.result
        self.request_id = stream.request_id

    def __next__(self) -> ResponseStreamEvent:
        return record_event(self, self._stream, run_sync(self._stream.next()), StopIteration)

    def close(self) -> None:
        """Cancel the response."""
        run_sync(self._stream.close())

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        run_sync(self._stream.close())


class SpeechStream(Iterator[bytes]):
    """The chunks of streamed audio. Raises SvcError if it is interrupted. `close` cancels the speech."""

    def __init__(self, stream: SpeechResponseStream) -> None:
        self._stream = stream
        self.request_id = stream.request_id

    def __next__(self) -> bytes:
        chunk = run_sync(self._stream.next())
        if chunk is None:
            raise StopIteration
        return chunk

    def close(self) -> None:
        """Cancel the response."""
        run_sync(self._stream.close())

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        run_sync(self._stream.close())


class ClientPipeline:
    """A pipeline. `run` may be called repeatedly, and from several threads. Use it as a context manager."""

    def __init__(self, runs: PipelineRuns) -> None:
        self._runs = runs
        self.name = runs.name

    def run(self, input: PipelineInput) -> PipelineResult:
        """Run all stages. The input is a text, the bytes of a WAV or image file, or the path of a file.

        The first run downloads bundles that are missing. A path is a `pathlib.Path`, and a string is always a text.
        Raises PipelineFailed that names the stage, and UsageError for an input of another kind.
        """
        return self._runs.run(input)

    def close(self) -> None:
        """Release the models of the stages. The client stays open."""
        self._runs.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._runs.close()


class Live(Iterator[Partial | Final]):
    """Live speech: `feed` audio, and iterate over partials and finals until the session is closed.

    Raises SvcError for an error of the gateway, and if the connection ends before the gateway closes the session.
    """

    def __init__(self, session: LiveSession) -> None:
        self._session = session
        self.session_id, self.model = (session.session_id, session.model)

    @property
    def closed(self) -> str | None:
        """The reason for which the server closed the session."""
        return self._session.close_reason

    def feed(self, pcm: bytes) -> None:
        """Send 16-bit little-endian mono samples at 16 kHz, of any length. Raises SvcError if the session has ended."""
        run_sync(self._session.feed(pcm))

    def flush(self) -> None:
        """End the utterance. The iteration yields the final. Raises SvcError."""
        run_sync(self._session.flush())

    def reset(self) -> None:
        """Discard the utterance. Raises SvcError."""
        run_sync(self._session.reset())

    def finish(self) -> Final:
        """End the utterance and wait for its final. Raises SvcError.

        If another thread or task iterates, its iteration yields the final, too.
        """
        return run_sync(self._session.finish())

    def __iter__(self) -> Iterator[Partial | Final]:
        return _LiveIterator(self._session.iterate())

    def __next__(self) -> Partial | Final:
        event = run_sync(self._session.next())
        if event is None:
            raise StopIteration
        return event

    def close(self) -> None:
        """Close the session, and wait for the gateway for up to 10 seconds. An iteration yields all events first."""
        run_sync(self._session.close())

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class _LiveIterator(Iterator[Partial | Final]):
    """A loop over a live session."""

    def __init__(self, iteration: LiveIteration) -> None:
        self._iteration = iteration

    def __next__(self) -> Partial | Final:
        event = run_sync(self._iteration.next())
        if event is None:
            raise StopIteration
        return event
