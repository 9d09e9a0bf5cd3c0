"""The interface of the endpoints that call a model: path, formats, and a codec for each upstream dialect.

    client ── Endpoint ── Codec, one for each dialect of an upstream ── upstream

`svc.gateway.endpoints` has one module per endpoint, with the variable `endpoint`. Server, proxy and routing
name no dialect and no path.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

from svc.dialects.base import Dialect, EncodedRequest, EncodedResponse, ModelProfile, RequestBody
from svc.dialects.resume import ResumableTranslation
from svc.dialects.routing_info import RoutingInfo
from svc.dialects.stream_transform import StreamTransform
from svc.dialects.subclassing import mypyc_attr
from svc.dialects.upstream_errors import decode_error_message
from svc.errors import InvalidRequest, SvcError, UpstreamError
from svc.wire.chat import ChatRequest
from svc.wire.error import encode_error_body
from svc.wire.sse import KEEP_ALIVE_COMMENT
from svc.wire.stored_response import ResponseParts
from svc.wire.usage import TokenUsage

RequestDecoder = Callable[[], Any]
"""Returns the request in the form that the endpoint's codecs translate. Raises InvalidRequest."""


@mypyc_attr(allow_interpreted_subclasses=True)
class Codec(ABC):
    """Converts the requests and responses of one endpoint for upstreams of one dialect."""

    __slots__ = ("forwards_head", "requires_usage", "upstream_path")

    needs_request: ClassVar[bool] = False
    """Whether responses depend on the request: `for_request` returns the codec of one request."""

    def __init__(self, upstream_path: str, *, forwards_head: bool = False) -> None:
        self.upstream_path = upstream_path.encode("ascii")
        """The path after a provider's base URL."""
        self.forwards_head = forwards_head
        """Whether the upstream gets the client's query and the endpoint's `forwarded_headers`."""
        self.requires_usage = False
        """Whether a response has to state its usage, so that a missing one is estimated."""

    def for_request(self, decode: RequestDecoder, profile: ModelProfile) -> Codec:
        """Return the codec of one request to a backend. Required if `needs_request`."""
        raise NotImplementedError

    @abstractmethod
    def encode_request(
        self, body: RequestBody, routing_info: RoutingInfo, profile: ModelProfile, decode: RequestDecoder
    ) -> EncodedRequest:
        """Encode the request for the upstream. Raises InvalidRequest for features that its dialect does not have."""

    @abstractmethod
    def decode_response(self, raw: bytes) -> EncodedResponse:
        """Return the response for the client, and its usage. Raises ProviderFailed if it is malformed."""

    def decode_response_with_usage(self, raw: bytes, usage: TokenUsage) -> EncodedResponse:
        """Return the response for the client with this usage. Required if `requires_usage`."""
        raise NotImplementedError

    def create_stream_transform(self, routing_info: RoutingInfo, profile: ModelProfile) -> StreamTransform:
        """Create the transform for a streamed response. Required if `routing_info.stream` can be set."""
        raise NotImplementedError

    def decode_error_message(self, raw: bytes) -> str | None:
        """Return the upstream's message in an error body, or None."""
        return decode_error_message(raw)

    def decode_error_param(self, raw: bytes) -> str | None:
        """Return the field that an error body of a rejected request names, if it is one of the client's."""
        return None

    def map_field_name(self, name: str) -> str:
        """Return the client's name of a request field of chat completions, for errors of models of this machine."""
        return name

    def decode_upstream_error(self, status: int, headers: Mapping[bytes, bytes], raw: bytes) -> UpstreamError | None:
        """Return the status, type and headers to forward to the client. None for the gateway's own error."""
        return None

    # resuming an interrupted stream at another upstream

    def create_resumable_transform(
        self, routing_info: RoutingInfo, decode: RequestDecoder
    ) -> ResumableTranslation | None:
        """Create a transform whose stream another upstream can continue. Returns None if that is not possible."""
        return None

    def continue_stream(self, interrupted: ResumableTranslation) -> ResumableTranslation:
        """Return the transform for the rest of an interrupted stream. Requires `create_resumable_transform`."""
        raise NotImplementedError

    def encode_resume_request(
        self, interrupted: ResumableTranslation, profile: ModelProfile, decode: RequestDecoder
    ) -> EncodedRequest:
        """Encode the request for the rest of an interrupted stream. Requires `create_resumable_transform`."""
        raise NotImplementedError


@mypyc_attr(allow_interpreted_subclasses=True)
class Endpoint(ABC):
    """One path of the gateway that calls a model."""

    __slots__ = (
        "cache_route",
        "client_header",
        "codecs",
        "forwarded_headers",
        "keep_alive_event",
        "model_kind",
        "path",
        "request_id_header",
        "scope",
    )

    def __init__(
        self,
        path: str,
        codecs: dict[Dialect, Codec],
        *,
        cache_route: str,
        model_kind: str = "chat",
        scope: str = "chat",
        forwarded_headers: frozenset[bytes] = frozenset(),
        request_id_header: str = "",
        client_header: bytes = b"",
        keep_alive_event: bytes = KEEP_ALIVE_COMMENT,
    ) -> None:
        self.path = path
        self.codecs = codecs
        """Codecs by the upstream's dialect. `add_codec` adds missing ones."""
        self.cache_route = cache_route
        """Part of the keys of cached responses. It never changes, because Redis stores these keys."""
        self.model_kind = model_kind
        """The kind of the models that the endpoint serves: one of the values of `ModelSettings.kind`."""
        self.scope = scope
        """The scope that an API key needs."""
        self.forwarded_headers = forwarded_headers
        """Names of request headers that codecs with `forwards_head` forward. Lower case."""
        self.request_id_header = request_id_header
        """A response header with the request id in addition to `x-request-id`, or empty."""
        self.client_header = client_header
        """A header that only clients of this endpoint's API send, in lower case, or empty.

        With it, responses of paths without an endpoint have this endpoint's error format and request id header.
        """
        self.keep_alive_event = keep_alive_event
        """The event that the client of a stream gets while the upstream is silent."""

    def select_codec(self, upstream: Dialect, profile: ModelProfile) -> Codec:
        """Return the codec for a backend. Raises InvalidRequest if it cannot serve the endpoint."""
        try:
            return self.codecs[upstream]
        except KeyError:
            return self.add_codec(upstream)

    def is_served_by(self, upstream: Dialect, profile: ModelProfile) -> bool:
        """Return whether a backend with this dialect and profile can serve the endpoint."""
        try:
            self.select_codec(upstream, profile)
        except InvalidRequest:
            return False
        return True

    def select_resume_codec(self, upstream: Dialect, profile: ModelProfile) -> Codec:
        """Return the codec for a backend that continues an interrupted stream of another one."""
        return self.select_codec(upstream, profile)

    def add_codec(self, upstream: Dialect) -> Codec:
        """Add the codec for a dialect to `codecs`. Raises InvalidRequest if its upstreams cannot serve the endpoint."""
        raise InvalidRequest(f"The provider of this model does not serve {self.path}.", param="model")

    @abstractmethod
    def decode_routing_info(self, body: RequestBody) -> RoutingInfo:
        """Reject a request that every upstream would reject, and decode the routing information.

        Sets `body.skeleton`. Raises InvalidRequest.
        """

    def find_chat(self, decode: RequestDecoder) -> ChatRequest | None:
        """Return the canonical chat of a request, or None if the endpoint is not for chat. Raises InvalidRequest."""
        return None

    def describe_response(self, request: bytes, response: bytes) -> ResponseParts:
        """Return the parts of a response to store. Required if `routing_info.can_store` can be set."""
        raise NotImplementedError

    def decode_request(self, body: RequestBody) -> Any:
        """Decode the complete request for a codec's RequestDecoder. Required if a codec translates.

        Raises InvalidRequest with the field.
        """
        raise NotImplementedError

    def encode_error(self, error: SvcError, request_id: str) -> bytes:
        """Return the JSON body of an error response."""
        return encode_error_body(error)

    def encode_stream_error(self, error: SvcError) -> bytes:
        """Return the last event of an interrupted stream."""
        return b"data: " + encode_error_body(error) + b"\n\n"
