"""The interface of a dialect, which is the wire format of a chat API. No I/O.

    client ── decode_request ──> canonical chat ── encode_request ──> upstream
    client <── encode_response ── canonical chat <── decode_response ── upstream         (JSON)
    client <── stream encoder ── deltas <── stream decoder ── events ── upstream         (stream)

`svc.dialects.endpoint` has the endpoints, with the dialects of their clients and upstreams.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar, Protocol

from svc.dialects.subclassing import mypyc_attr
from svc.errors import SvcError
from svc.wire.chat import (
    ChatRequest,
    ChatResponse,
    FinishReason,
    StreamDelta,
    UpstreamOverrides,
)
from svc.wire.stored_response import EarlierItems
from svc.wire.usage import TokenUsage


class ModelProfile:
    """The properties of a backend that a dialect needs. `model` is the model's name at the upstream."""

    __slots__ = (
        "has_responses",
        "input_window",
        "lacks_features",
        "max_output_tokens",
        "model",
        "needs_rewrite",
        "overrides",
        "stream_usage",
    )

    def __init__(
        self,
        model: str,
        *,
        max_output_tokens: int | None = None,
        overrides: UpstreamOverrides | None = None,
        has_responses: bool = False,
        input_window: int = 0,
    ) -> None:
        overrides = overrides or UpstreamOverrides()
        self.model = model
        self.max_output_tokens = max_output_tokens
        """Tokens of the longest response. None is unknown."""
        self.overrides = overrides
        self.has_responses = has_responses
        """Whether the upstream also serves the Responses API."""
        self.input_window = input_window
        """Tokens of the longest input of a model of this machine, or 0 for a provider's model.

        Requests to such a model are divided into parts, and its errors get messages of the gateway.
        """
        self.stream_usage: bool = overrides.stream_usage
        """Whether the upstream supports `stream_options.include_usage`."""
        self.lacks_features = not (overrides.image_input and overrides.forced_tools)
        """Whether `dialects.upstream_features` has to check requests for features that the upstream lacks."""
        self.needs_rewrite = bool(
            overrides.rejects
            or overrides.renames
            or overrides.min_temperature
            or overrides.thought_signature
            or overrides.short_call_ids
        )
        """Whether a request body has to be changed for the upstream, for reasons other than `stream_usage`."""


class RequestBody:
    """The body of a client's request, with the results of its inspection."""

    skeleton: bytes = b""
    """The body, or a long one without the content of its long strings. `decode_routing_info` sets it."""
    field_names: set[str] | None = None
    """The names of the top-level fields. Empty if parsers could disagree about the fields, None if not read.

    `decode_routing_info` or the first attempt at a backend of the client's own dialect sets it.
    """
    model_start: int = 0
    """The index of the first byte of the value of `model`, once the names are read."""
    model_end: int = 0
    """The index of the byte after the value of `model`, or 0 if it is not known."""

    has_only_text: bool = False
    """True if each `content` of a chat is known to be text. The routing information of OpenAI and Anthropic sets it."""
    earlier_items: EarlierItems | None = None
    """Stored items that the request refers to."""
    earlier_tokens: int = 0
    """Estimated tokens of `earlier_items`."""
    is_stored: bool = False
    """Whether the gateway keeps the response for later requests."""

    def __init__(self, raw: bytes) -> None:
        self.raw = raw


class RequestParts(ABC):
    """A request to a model of this machine in parts, which the model processes one after the other.

    Between the parts, the model serves other requests.
    """

    __slots__ = ()

    @property
    @abstractmethod
    def count(self) -> int:
        """The number of parts."""

    @abstractmethod
    def encode_part(self, number: int) -> bytes:
        """Return the body of a part. Numbers start at 0."""

    @abstractmethod
    def add_response(self, number: int, raw: bytes) -> None:
        """Keep the response to a part. Raises ProviderFailed if it is malformed."""

    @abstractmethod
    def join_responses(self) -> bytes:
        """Return the response to the whole request, once each part has one."""

    @abstractmethod
    def name_input(self, number: int, raw: bytes) -> bytes:
        """Return the body of an error response to a part, with the field of the whole request as its `param`."""


class EncodedRequest:
    """A request in the dialect of the upstream."""

    __slots__ = ("body", "dropped_fields", "header_lines", "local_response", "parts")

    dropped_fields: tuple[str, ...]
    """Names of the client's fields that were dropped or changed."""
    header_lines: tuple[bytes, ...]
    """Header lines that the upstream needs for this request, without line ends."""

    local_response: EncodedResponse | None
    """The response, if the gateway makes it itself. The request is then not sent."""

    parts: RequestParts | None
    """The parts that are sent instead of `body`, to a backend with a queue."""

    def __init__(
        self,
        body: bytes,
        dropped_fields: tuple[str, ...] = (),
        header_lines: tuple[bytes, ...] = (),
        local_response: EncodedResponse | None = None,
        parts: RequestParts | None = None,
    ) -> None:
        self.body = body
        self.dropped_fields = dropped_fields
        self.header_lines = header_lines
        self.local_response = local_response
        self.parts = parts


class EncodedResponse:
    """A response in the dialect of the client, with the fields of its ledger entry."""

    __slots__ = ("body", "finish_reason", "headers", "model", "native_id", "usage")

    def __init__(
        self,
        body: bytes,
        usage: TokenUsage | None,
        finish_reason: FinishReason,
        model: str,
        headers: str = "",
        native_id: str = "",
    ) -> None:
        self.body = body
        self.usage = usage
        self.finish_reason = finish_reason
        self.model = model
        self.headers = headers
        """Further header lines for the client. Each ends in CRLF."""
        self.native_id = native_id
        """The id by which the provider knows the response in later requests, or an empty string."""


class StreamDecoder(Protocol):
    """Decodes the events of one upstream stream. An event with text only, which follows another one, has no effect."""

    text_field: ClassVar[bytes]
    """The name of the field with the text of a TextDelta."""
    arguments_field: ClassVar[bytes]
    """The name of the field with the text of ToolCallArguments. Empty if each such event has an effect."""

    def decode(self, event: bytes) -> list[StreamDelta]:
        """Return the deltas of one server-sent event. Raises ProviderFailed if it is malformed."""

    @property
    def is_complete(self) -> bool:
        """Whether the upstream has sent the last event of its dialect."""


class StreamEncoder(Protocol):
    """Encodes the events of one stream for a client. A TextDelta that follows another one has no effect."""

    text_field: ClassVar[bytes]
    """The name of the field with the text of a TextDelta."""
    arguments_field: ClassVar[bytes]
    """The name of the field with the text of ToolCallArguments. Empty if each such delta has an effect."""

    final_response: bytes
    """The last response object of the stream as JSON, for stored responses. Empty before the end."""

    def encode(self, delta: StreamDelta) -> bytes:
        """Return the events of a delta, which may be empty.

        StreamFinish is buffered until `encode_end`, because usage may follow it.
        """

    def encode_end(self) -> bytes:
        """Return the last events of a complete response."""

    def encode_failure(self, error: SvcError) -> bytes:
        """Return the last events of an interrupted response."""


@mypyc_attr(allow_interpreted_subclasses=True)
class Dialect(ABC):
    """One wire format, for clients and for upstreams."""

    __slots__ = ("chat_path", "forced_tool_variant", "models_path", "name", "request_id_header", "requires_usage")

    def __init__(
        self,
        name: str,
        *,
        chat_path: str,
        models_path: str,
        request_id_header: bytes = b"x-request-id",
        requires_usage: bool = False,
    ) -> None:
        self.name = name
        self.chat_path = chat_path
        """The path of the chat endpoint after a provider's base URL."""
        self.models_path = models_path
        """The path of the model list after a provider's base URL."""
        self.request_id_header = request_id_header
        """The response header with the provider's id of the request, in lower case."""
        self.requires_usage = requires_usage
        """Whether each response for a client has numbers of tokens, so that missing ones are estimated."""
        self.forced_tool_variant: Dialect | None = None
        """The dialect of requests that force a tool call, for upstreams without `UpstreamOverrides.forced_tools`."""

    # clients
    @abstractmethod
    def decode_request(self, raw: bytes) -> ChatRequest:
        """Return the request as canonical chat. Raises InvalidRequest with the field."""

    @abstractmethod
    def encode_response(self, response: ChatResponse) -> bytes:
        """Return the response body for a client."""

    @abstractmethod
    def create_stream_encoder(self, *, include_usage: bool) -> StreamEncoder:
        """Create the encoder of a stream. `include_usage`: the client has requested the usage."""

    def map_field_name(self, name: str) -> str:
        """Return this dialect's name of a request field of chat completions."""
        return name

    # upstreams
    @abstractmethod
    def auth_headers(self, api_key: str) -> tuple[tuple[str, str], ...]:
        """Return the request headers with the provider's key, and others that the dialect requires."""

    def model_overrides(self, model: str, overrides: UpstreamOverrides) -> UpstreamOverrides:
        """Return the provider's overrides with those of a model added. `model` is its name at the provider."""
        return overrides

    @abstractmethod
    def encode_request(self, request: ChatRequest, profile: ModelProfile) -> EncodedRequest:
        """Encode a request for an upstream. Fields that the dialect lacks are dropped.

        Raises InvalidRequest if dropping a field would change the form of the response.
        """

    @abstractmethod
    def decode_response(self, raw: bytes) -> ChatResponse:
        """Return the response as canonical chat. Raises ProviderFailed if it is malformed."""

    @abstractmethod
    def create_stream_decoder(self) -> StreamDecoder:
        """Create the decoder of an upstream's stream."""

    @abstractmethod
    def decode_error_message(self, raw: bytes) -> str | None:
        """Return the upstream's message in an error body, or None."""
