"""What a dialect is: the wire format of a chat, as clients and upstreams speak it. No I/O.

    client ── decode_request ──> canonical form ── encode_request ──> upstream
    client <── encode_response ── canonical form <── decode_response ── upstream         (JSON)
    client <── stream encoder ── deltas <── stream decoder ── events ── upstream         (stream)

Which endpoint serves which clients, and reaches which upstreams, is in `svc.dialects.endpoint`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Protocol

from svc.dialects.fastpath.chunk_cache import ChunkTemplateCache
from svc.errors import SvcError
from svc.wire.chat import (
    ChatRequest,
    ChatResponse,
    FinishReason,
    StreamDelta,
    UpstreamOverrides,
)
from svc.wire.usage import TokenUsage


class ModelProfile:
    """What a dialect must know of the place a request goes to; `model` is the model's name at the upstream."""

    __slots__ = ("chunk_caches", "max_output_tokens", "model", "needs_rewrite", "overrides", "stream_usage")

    def __init__(
        self, model: str, *, max_output_tokens: int | None = None, overrides: UpstreamOverrides | None = None
    ) -> None:
        overrides = overrides or UpstreamOverrides()
        self.model = model
        self.max_output_tokens = max_output_tokens
        """Tokens of the longest answer that the model gives; None if that is not known."""
        self.overrides = overrides
        self.stream_usage: bool = overrides.stream_usage
        """It takes `stream_options.include_usage`."""
        self.needs_rewrite = bool(overrides.rejects or overrides.renames or overrides.min_temperature)
        """It has other quirks than that."""
        self.chunk_caches: dict[bool, ChunkTemplateCache] = {}
        """What its streams have in common; those with usage for the client, and those without."""


class RequestBody:
    """The bytes of a client's request, and what reading them has found out about their form."""

    __slots__ = ("passthrough_check", "raw", "skeleton")

    def __init__(self, raw: bytes) -> None:
        self.raw = raw
        self.skeleton = b""
        """The body without the insides of long strings (`dialects.json_skeleton`), once routing has read it."""
        self.passthrough_check: PassthroughCheck | None = None
        """Set by the first attempt to forward the body as it is."""


class PassthroughCheck:
    """Whether a body can be handed on as it is."""

    __slots__ = ("has_stream_options", "is_ambiguous")

    def __init__(self, *, is_ambiguous: bool, has_stream_options: bool) -> None:
        self.is_ambiguous = is_ambiguous
        """It could be read in several ways."""
        self.has_stream_options = has_stream_options
        """It has `stream_options`."""


class EncodedRequest:
    """A request as the upstream takes it."""

    __slots__ = ("body", "dropped_fields", "header_lines")

    def __init__(self, body: bytes, dropped_fields: tuple[str, ...] = (), header_lines: tuple[bytes, ...] = ()) -> None:
        self.body = body
        self.dropped_fields = dropped_fields
        """Names of the client's fields that the upstream did not get as they were."""
        self.header_lines = header_lines
        """Header lines that the upstream needs for this request, without line ends."""


class EncodedResponse:
    """An answer for the client, and what the ledger wants to know of it."""

    __slots__ = ("body", "finish_reason", "model", "usage")

    def __init__(self, body: bytes, usage: TokenUsage | None, finish_reason: FinishReason, model: str) -> None:
        self.body = body
        self.usage = usage
        self.finish_reason = finish_reason
        self.model = model


class StreamDecoder(Protocol):
    """Events of an upstream -> deltas."""

    def decode(self, event: bytes) -> list[StreamDelta]:
        """Deltas of one server-sent event; raises ProviderFailed for what cannot be understood."""

    @property
    def is_complete(self) -> bool:
        """The upstream's own end mark has been seen."""


class StreamEncoder(Protocol):
    """Deltas -> events for a client."""

    def encode(self, delta: StreamDelta) -> bytes:
        """The events of one delta (perhaps none); Finish is held back until `end`, since usage may follow it."""

    def encode_end(self) -> bytes:
        """The closing events of a complete answer."""

    def encode_failure(self, error: SvcError) -> bytes:
        """The closing events of an answer that broke."""


class Dialect(ABC):
    """One wire format, as clients speak it to us and as upstreams speak it with us."""

    __slots__ = ("chat_path", "models_path", "name")

    def __init__(self, name: str, *, chat_path: str, models_path: str) -> None:
        self.name = name
        self.chat_path = chat_path
        """What follows a provider's base address."""
        self.models_path = models_path

    # spoken by a client
    @abstractmethod
    def decode_request(self, raw: bytes) -> ChatRequest:
        """The whole request in the hub form; raises InvalidRequest that names the field."""

    @abstractmethod
    def encode_response(self, response: ChatResponse) -> bytes:
        """Of the hub form, as a client of this dialect reads it."""

    @abstractmethod
    def create_stream_encoder(self, *, include_usage: bool) -> StreamEncoder:
        """Of a stream for a client; `include_usage`: it has asked to be told."""

    # spoken by an upstream
    @abstractmethod
    def auth_headers(self, api_key: str) -> tuple[tuple[str, str], ...]:
        """Request headers that carry the provider's key and what else the dialect demands."""

    def model_overrides(self, model: str, overrides: UpstreamOverrides) -> UpstreamOverrides:
        """Add the quirks of a model, known by its name at the provider, to those of the provider."""
        return overrides

    @abstractmethod
    def encode_request(self, request: ChatRequest, profile: ModelProfile) -> EncodedRequest:
        """Raises InvalidRequest for a field whose loss would change the answer's form."""

    @abstractmethod
    def decode_response(self, raw: bytes) -> ChatResponse:
        """Raises ProviderFailed when it is not understandable."""

    @abstractmethod
    def create_stream_decoder(self) -> StreamDecoder:
        """Of a stream of an upstream's."""

    @abstractmethod
    def decode_error_message(self, raw: bytes) -> str | None:
        """The upstream's own message in an error body, if one can be found."""
