"""The implementation of the client library: coroutines over a transport. `Client` and `AsyncClient` wrap it."""

from __future__ import annotations

import os
import time
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import msgspec

from svc import plugins
from svc.client.address import resolve_gateway_url
from svc.client.config import SDK_DEFAULT_MODEL, current_config, normalize_api_key
from svc.client.discovery import find_gateway, read_local_api_key, state_folder
from svc.client.http_session import HttpSession, SessionTimeouts, add_request_id
from svc.client.structured_output import JsonSchema, add_schema
from svc.client.transcripts import TRANSCRIPTIONS_PATH, Transcript, read_transcript
from svc.client.transport import ClientResponse, ClientTransport
from svc.errors import GatewayFailed, InvalidRequest, ModelNotFound, UsageError
from svc.wire.production_gateway import PRODUCTION_GATEWAY
from svc.wire.synthesis import complete_wav_sizes

if TYPE_CHECKING:
    from svc.client.chat import ChatBackend, ChatResponseStream, ChatResult, Messages
    from svc.client.embeddings import EmbeddingInput, EmbeddingResult
    from svc.client.responses import ResponseEventStream, ResponseInput, ResponseResult
    from svc.client.speech import SpeechResponseStream

T = TypeVar("T")

SDK_MAX_AUDIO_FILE_BYTES = 512 << 20


class TransportFactory(Protocol):
    """Creates the transport of a client. `direct` ignores the proxies of the environment."""

    def __call__(self, base_url: str, *, direct: bool) -> ClientTransport: ...


class ModelInfo(msgspec.Struct, frozen=True):
    """A model that the key may use."""

    id: str
    owned_by: str = ""
    created: int = 0
    context_window: int | None = None
    use_case: str | None = None
    kind: str | None = None
    """The purpose of the model. None means chats."""


class _ModelList(msgspec.Struct):
    data: list[ModelInfo]


class DirectProvider(msgspec.Struct, frozen=True):
    """A provider that is called without a gateway."""

    base_url: str
    headers: dict[str, str]
    """The request headers, including the key."""
    backend: ChatBackend

    def __repr__(self) -> str:
        return f"Direct({self.base_url!r})"  # never the key


class ClientCore:
    """The calls of a client. Reads addresses and keys from the configuration and environment when it is created."""

    def __init__(
        self,
        create_transport: TransportFactory,
        *,
        gateway_url: str | None,
        api_key: str | None,
        registry: str | None,
        retries: int,
        timeouts: SessionTimeouts,
        direct: DirectProvider | None = None,
    ) -> None:
        config, environ = current_config(), os.environ
        self._speech_model: str | None = None
        """The model of `speak` without one, once it is known."""
        self.direct = direct
        local_gateway = None
        self.registry = registry or config.registry or environ.get("SVC_REGISTRY_URL") or None
        self.api_key = normalize_api_key(api_key) or config.api_key or normalize_api_key(environ.get("SVC_API_KEY"))
        if direct:
            base_url, headers = direct.base_url.rstrip("/"), direct.headers
        else:
            home = state_folder(environ)
            local_gateway = find_gateway(home)
            base_url = resolve_gateway_url(
                gateway_url, config.gateway, environ, default=local_gateway or PRODUCTION_GATEWAY
            )
            # Not `self.api_key`, which registries receive.
            key = self.api_key or (read_local_api_key(home) if base_url == local_gateway else None)
            headers = {"authorization": f"Bearer {key}"} if key else {}
        server_kind = "provider" if direct else "gateway"
        # No proxy can reach the gateway of this machine.
        self.transport = create_transport(base_url, direct=base_url == local_gateway)
        self.session = HttpSession(
            self.transport, base_url, headers, retries=retries, timeouts=timeouts, server_kind=server_kind
        )

    # chat

    async def chat(
        self,
        messages: Messages,
        model: str | None,
        timeout_s: float | None,
        schema: JsonSchema | None,
        parameters: Mapping[str, Any],
    ) -> ChatResult:
        """Return a complete response."""
        chat_module, fields = _load_chat_module(), add_schema(parameters, schema)

        async def send(chosen_model: str | None, timeout: float | None) -> ChatResult:
            backend = self._backend(chosen_model)
            request = chat_module.build_request(backend, messages, fields, stream=False)
            response, body = await self.session.fetch("POST", request.path, request.body, request.headers, timeout)
            with add_request_id(response):
                result: ChatResult = chat_module.decode_result(backend, response, body, schema)
            return result

        return await self._with_offered_model(send, model, None, timeout_s)

    async def stream(
        self,
        messages: Messages,
        model: str | None,
        timeout_s: float | None,
        schema: JsonSchema | None,
        parameters: Mapping[str, Any],
    ) -> ChatResponseStream:
        """Return a streamed response."""
        chat_module, fields = _load_chat_module(), add_schema(parameters, schema)

        async def send(chosen_model: str | None, timeout: float | None) -> ChatResponseStream:
            backend = self._backend(chosen_model)
            request = chat_module.build_request(backend, messages, fields, stream=True)
            response = await self.session.open("POST", request.path, request.body, request.headers, timeout)
            response_stream: ChatResponseStream = chat_module.ChatResponseStream(
                self.session, response, backend, schema
            )
            return response_stream

        return await self._with_offered_model(send, model, None, timeout_s)

    def _backend(self, model: str | None) -> ChatBackend:
        if self.direct:
            return self.direct.backend
        backend: ChatBackend = _load_chat_module().gateway_backend(model)
        return backend

    async def _with_offered_model(
        self,
        send: Callable[[str | None, float | None], Awaitable[T]],
        model: str | None,
        kind: str | None,
        timeout_s: float | None,
    ) -> T:
        """Send a request. If the caller named no model and the default is missing, use the gateway's first one.

        `timeout_s` limits all of it. `send` gets the remaining seconds.
        """
        start = time.monotonic()
        try:
            return await send(model, timeout_s)
        except ModelNotFound:
            if model is not None or self.direct:
                raise
            offered = next(
                (each.id for each in await self.models(_remaining(timeout_s, start)) if each.kind == kind), None
            )
            if offered is None:
                raise
            return await send(offered, _remaining(timeout_s, start))

    # embeddings, Responses API

    async def embed(
        self, texts: EmbeddingInput, model: str | None, dimensions: int | None, timeout_s: float | None
    ) -> EmbeddingResult:
        """Return the vectors of texts."""
        embeddings = plugins.load("client", "embeddings")
        headers = {"content-type": "application/json", "accept": "application/json"}

        async def send(chosen_model: str | None, timeout: float | None) -> EmbeddingResult:
            name = self._model_name(chosen_model, embeddings.SDK_DEFAULT_EMBEDDING_MODEL)
            request_body = embeddings.build_embedding_request(name, texts, dimensions)
            response, body = await self.session.fetch(
                "POST", embeddings.EMBEDDINGS_PATH, request_body, headers, timeout
            )
            with add_request_id(response):
                result: EmbeddingResult = await self.transport.run_blocking(
                    lambda: embeddings.decode_embeddings(texts, response, body)
                )
            return result

        return await self._with_offered_model(send, model, "embedding", timeout_s)

    async def responses(
        self, items: ResponseInput, model: str | None, timeout_s: float | None, parameters: Mapping[str, Any]
    ) -> ResponseResult:
        """Return a complete response of the Responses API."""
        responses = plugins.load("client", "responses")

        async def send(chosen_model: str | None, timeout: float | None) -> ResponseResult:
            name = self._model_name(chosen_model, SDK_DEFAULT_MODEL)
            request_body, headers = responses.build_responses_request(name, items, parameters, stream=False)
            response, body = await self.session.fetch("POST", responses.RESPONSES_PATH, request_body, headers, timeout)
            with add_request_id(response):
                result: ResponseResult = responses.decode_response_result(body, response.headers.get("x-request-id"))
            return result

        return await self._with_offered_model(send, model, None, timeout_s)

    async def stream_responses(
        self, items: ResponseInput, model: str | None, timeout_s: float | None, parameters: Mapping[str, Any]
    ) -> ResponseEventStream:
        """Return a streamed response of the Responses API."""
        responses = plugins.load("client", "responses")

        async def send(chosen_model: str | None, timeout: float | None) -> ResponseEventStream:
            name = self._model_name(chosen_model, SDK_DEFAULT_MODEL)
            request_body, headers = responses.build_responses_request(name, items, parameters, stream=True)
            response = await self.session.open("POST", responses.RESPONSES_PATH, request_body, headers, timeout)
            event_stream: ResponseEventStream = responses.ResponseEventStream(self.session, response)
            return event_stream

        return await self._with_offered_model(send, model, None, timeout_s)

    def _model_name(self, model: str | None, default: str) -> str:
        """Return the model for an API of OpenAI's dialect. Raises InvalidRequest if the provider has another one."""
        if self.direct is None:
            return model or default
        if self.direct.backend.dialect.name != "openai":
            raise InvalidRequest("The provider does not have this API.", param="model")
        return model or self.direct.backend.profile.model

    # models, audio files

    async def models(self, timeout_s: float | None = None) -> list[ModelInfo]:
        """Return the models that the key may use."""
        response, body = await self.session.fetch("GET", "/models", total_timeout=timeout_s)
        with add_request_id(response):
            return decode_models(body)

    async def transcribe(
        self, audio: str | os.PathLike[str] | bytes, model: str | None, language: str | None, timeout_s: float | None
    ) -> Transcript:
        """Transcribe an audio file."""
        if isinstance(audio, bytes | bytearray | memoryview):
            data = bytes(audio)
        elif isinstance(audio, str | os.PathLike):
            data = await self.transport.run_blocking(lambda: _read_audio_file(Path(audio)))
        else:
            raise InvalidRequest(f"audio is neither a path nor bytes, but {type(audio).__name__}.", param="audio")
        boundary = os.urandom(16).hex()
        fields = {"model": model, "language": language, "response_format": "json", "stream": "true"}
        body = _encode_multipart({name: value for name, value in fields.items() if value}, data, boundary)
        headers = {"content-type": f"multipart/form-data; boundary={boundary}", "accept": "text/event-stream"}
        response = await self.session.open("POST", TRANSCRIPTIONS_PATH, body, headers, timeout_s)
        return await read_transcript(self.session, response)

    async def speak(
        self,
        text: str,
        model: str | None,
        voice: str | None,
        response_format: str,
        timeout_s: float | None,
        parameters: Mapping[str, Any],
    ) -> bytes:
        """Return the audio of a text."""
        response = await self._open_speech(text, model, voice, response_format, timeout_s, parameters)
        try:
            with add_request_id(response):
                return complete_wav_sizes(await self.session.read_body(response))
        finally:
            await response.close()

    async def speak_stream(
        self,
        text: str,
        model: str | None,
        voice: str | None,
        response_format: str,
        timeout_s: float | None,
        parameters: Mapping[str, Any],
    ) -> SpeechResponseStream:
        """Return the audio of a text in chunks."""
        response = await self._open_speech(text, model, voice, response_format, timeout_s, parameters)
        stream: SpeechResponseStream = _load_speech_module().SpeechResponseStream(self.session, response)
        return stream

    async def _open_speech(
        self,
        text: str,
        model: str | None,
        voice: str | None,
        response_format: str,
        timeout_s: float | None,
        parameters: Mapping[str, Any],
    ) -> ClientResponse:
        speech, model, start = _load_speech_module(), model or self._speech_model, time.monotonic()
        if model is None:
            model = self._speech_model = speech.choose_speech_model(await self.models(timeout_s))
            timeout_s = _remaining(timeout_s, start)
        body: bytes = speech.build_speech_request(text, model, voice, response_format, parameters)
        headers = {"content-type": "application/json", "accept": "*/*"}
        return await self.session.open("POST", "/audio/speech", body, headers, timeout_s)

    async def live(self, config: Mapping[str, Any], connection_options: Mapping[str, Any] | None) -> Any:
        """Open a live session and wait until it is ready. Raises SvcError."""
        return await plugins.load("client", "live").open_live(self.session, config, connection_options or {})

    async def bundle(self, reference: str) -> Any:
        """Resolve a reference to a bundle. Blocking. Raises SvcError."""
        bundles = plugins.load("client", "bundles")
        options = bundles.ResolveOptions(
            root=_registry_root(),
            registry=self.registry,
            key=os.environ.get("SVC_REGISTRY_KEY") or self.api_key,
            trusted_keys=bundles.read_trusted_keys(os.environ),
        )
        work: Callable[[], Any] = lambda: bundles.resolve_bundle(reference, options)  # noqa: E731 typed as a variable
        return await self.transport.run_blocking(work)

    async def close(self) -> None:
        """Close the connections."""
        await self.session.close()


def decode_models(body: bytes) -> list[ModelInfo]:
    """Decode a model list. Raises GatewayFailed."""
    try:
        return msgspec.json.decode(body, type=_ModelList).data
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise GatewayFailed("The response is not a model list. Check that the address is a gateway's.") from error


def _remaining(timeout_s: float | None, start: float) -> float | None:
    """Return what is left of a timeout, given its start (`time.monotonic`)."""
    return None if timeout_s is None else timeout_s - (time.monotonic() - start)


def _load_chat_module() -> Any:
    """Import the chat module at the first chat: the dialects are slow to import."""
    return plugins.load("client", "chat")


def _load_speech_module() -> Any:
    return plugins.load("client", "speech")


def _registry_root() -> Path:
    root = os.environ.get("SVC_REGISTRY_ROOT") or Path(os.environ.get("SVC_HOME") or "~/.svc") / "registry"
    return Path(root).expanduser()


def _read_audio_file(path: Path) -> bytes:
    try:
        if path.stat().st_size > SDK_MAX_AUDIO_FILE_BYTES:
            raise InvalidRequest(f"{path} is larger than {SDK_MAX_AUDIO_FILE_BYTES >> 20} MiB.")
        return path.read_bytes()
    except FileNotFoundError:
        raise UsageError(f"There is no file {path}.") from None
    except (OSError, ValueError) as error:  # ValueError: a null character in the name
        reason = error.strerror if isinstance(error, OSError) else error
        raise UsageError(f"{str(path)!r} cannot be read: {reason}.") from None


def _encode_multipart(fields: Mapping[str, str], data: bytes, boundary: str) -> bytes:
    parts = [
        f'--{boundary}\r\ncontent-disposition: form-data; name="{name}"\r\n\r\n{value}\r\n'
        for name, value in fields.items()
    ]
    file_part_head = (
        f'--{boundary}\r\ncontent-disposition: form-data; name="file"; filename="audio.wav"\r\n'
        "content-type: audio/wav\r\n\r\n"
    )
    return "".join([*parts, file_part_head]).encode() + data + f"\r\n--{boundary}--\r\n".encode()
