"""What a dialect is: a wire format, as clients speak it to us and as upstreams speak it with us. No I/O.

    client ── head/read_request ──> hub form ── write_request ──> upstream
    client <── write_answer ── hub form <── read_answer ── upstream            (JSON)
    client <── writer ── deltas <── reader ── events ── upstream               (stream)

The same dialect on both sides does not go through the hub: `pass_request`, `pass_answer` and `pass_stream` look at
the few fields that matter and hand the bytes on.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Protocol

from svc.dialects.fastpath.chunk_cache import ChunkTemplateCache
from svc.dialects.stream_transform import StreamTransform
from svc.errors import SvcError, UpstreamError
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


class RoutingInfo:
    """What routing needs of a request, read without looking at the rest."""

    __slots__ = (
        "choice_count",
        "include_usage",
        "max_tokens",
        "min_reserved_tokens",
        "model",
        "passthrough_check",
        "skeleton",
        "stream",
        "unbounded_field",
    )

    def __init__(
        self,
        model: str,
        *,
        stream: bool,
        include_usage: bool,
        max_tokens: int | None,
        choice_count: int = 1,
        skeleton: bytes = b"",
        min_reserved_tokens: int = 0,
        unbounded_field: str = "",
    ) -> None:
        self.model = model
        self.stream = stream
        self.include_usage = include_usage
        """The client asked for usage in the stream."""
        self.max_tokens = max_tokens
        """`max_tokens`, or what replaced it."""
        self.choice_count = choice_count
        """How many of these are asked for (`n`)."""
        self.min_reserved_tokens = min_reserved_tokens
        """The largest number of tokens under a name that only some upstreams know (`min_tokens`, …)."""
        self.unbounded_field = unbounded_field
        """The field that asks for an answer without an end (`n_predict: -1`), if there is one."""
        self.skeleton = skeleton
        """The body, without the insides of long strings (`dialects.outline`)."""
        self.passthrough_check: PassthroughCheck | None = None
        """What `passing` has found out about the body, once it had to."""

    def copy_for_body(self, skeleton: bytes) -> RoutingInfo:
        """Of another body, in which routing reads the same."""
        routing_info = RoutingInfo(
            self.model,
            stream=self.stream,
            include_usage=self.include_usage,
            max_tokens=self.max_tokens,
            choice_count=self.choice_count,
            skeleton=skeleton,
            min_reserved_tokens=self.min_reserved_tokens,
            unbounded_field=self.unbounded_field,
        )
        routing_info.passthrough_check = self.passthrough_check
        return routing_info


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

    __slots__ = ("chat_path", "endpoint", "forwarded_headers", "models_path", "name", "request_id_header")

    def __init__(
        self,
        name: str,
        *,
        endpoint: str,
        chat_path: str,
        models_path: str,
        forwarded_headers: frozenset[bytes] = frozenset(),
        request_id_header: str = "",
    ) -> None:
        self.name = name
        self.forwarded_headers = forwarded_headers
        """Names of request headers that the gateway forwards, with the query, within the dialect; lower case."""
        self.request_id_header = request_id_header
        """The response header, beside `x-request-id`, in which clients of this dialect look for the request's id."""
        self.endpoint = endpoint
        """Where clients ask here."""
        self.chat_path = chat_path
        """What follows a provider's base address."""
        self.models_path = models_path

    # spoken by a client
    @abstractmethod
    def decode_routing_info(self, raw: bytes) -> RoutingInfo:
        """Check a request as far as every upstream would refuse it, and read the few fields; raises InvalidRequest."""

    @abstractmethod
    def decode_request(self, raw: bytes) -> ChatRequest:
        """The whole request in the hub form; raises InvalidRequest that names the field."""

    @abstractmethod
    def encode_response(self, response: ChatResponse) -> bytes:
        """Of the hub form, as a client of this dialect reads it."""

    @abstractmethod
    def create_stream_encoder(self, *, include_usage: bool) -> StreamEncoder:
        """Of a stream for a client; `include_usage`: it has asked to be told."""

    @abstractmethod
    def encode_error(self, error: SvcError, request_id: str) -> bytes:
        """The JSON body of an error answer."""

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

    def decode_upstream_error(self, status: int, headers: Mapping[bytes, bytes], raw: bytes) -> UpstreamError | None:
        """What a client of the same dialect gets of an upstream's error; None for the gateway's own error."""
        return None

    # both sides the same
    @abstractmethod
    def pass_through_request(self, raw: bytes, routing_info: RoutingInfo, profile: ModelProfile) -> EncodedRequest:
        """The client's own bytes where they can be read in one way only, else rebuilt."""

    @abstractmethod
    def pass_through_response(self, raw: bytes) -> EncodedResponse:
        """Raises ProviderFailed when it is not understandable."""

    @abstractmethod
    def create_stream_passthrough(self, *, include_usage: bool, profile: ModelProfile | None = None) -> StreamTransform:
        """Of a stream whose client and upstream both speak it; `include_usage` as above."""
