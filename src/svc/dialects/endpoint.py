"""What differs between the endpoints that reach for a model: their paths, their formats, and the way to each upstream.

    client ── Endpoint ── Codec, one for each dialect of an upstream ── upstream

`svc.gateway.endpoints` has one module per endpoint. Server, proxy and routing know nothing but these two classes.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any

from svc.dialects.base import Dialect, EncodedRequest, EncodedResponse, ModelProfile, RequestBody
from svc.dialects.resume import ResumableTranslation
from svc.dialects.routing_info import RoutingInfo
from svc.dialects.stream_transform import StreamTransform
from svc.dialects.upstream_errors import decode_error_message
from svc.errors import InvalidRequest, SvcError, UpstreamError
from svc.wire.error import encode_error_body

RequestDecoder = Callable[[], Any]
"""Returns the whole request in the form that an endpoint's codecs translate; raises InvalidRequest."""


class Codec(ABC):
    """How one endpoint reaches upstreams of one dialect."""

    __slots__ = ("forwards_head", "upstream_path")

    def __init__(self, upstream_path: str, *, forwards_head: bool = False) -> None:
        self.upstream_path = upstream_path.encode("ascii")
        """What follows a provider's base address."""
        self.forwards_head = forwards_head
        """The upstream gets the client's query and the endpoint's `forwarded_headers`."""

    @abstractmethod
    def encode_request(
        self, body: RequestBody, routing_info: RoutingInfo, profile: ModelProfile, decode: RequestDecoder
    ) -> EncodedRequest:
        """The request as the upstream takes it; raises InvalidRequest for what its dialect cannot say."""

    @abstractmethod
    def decode_response(self, raw: bytes) -> EncodedResponse:
        """The response for the client, and its usage. Raises ProviderFailed when it is not understandable."""

    def create_stream_transform(self, routing_info: RoutingInfo, profile: ModelProfile) -> StreamTransform:
        """The transform for a streamed response. Needed where `routing_info.stream` can be set."""
        raise NotImplementedError

    def decode_error_message(self, raw: bytes) -> str | None:
        """The upstream's own message in an error body, if it has one."""
        return decode_error_message(raw)

    def decode_upstream_error(self, status: int, headers: Mapping[bytes, bytes], raw: bytes) -> UpstreamError | None:
        """The upstream's error where the client gets it unchanged; None for the gateway's own error."""
        return None

    # a stream that breaks and continues at another upstream

    def create_resumable_transform(
        self, routing_info: RoutingInfo, decode: RequestDecoder
    ) -> ResumableTranslation | None:
        """A transform whose stream another upstream can continue; None if that is not possible."""
        return None

    def continue_stream(self, interrupted: ResumableTranslation) -> ResumableTranslation:
        """The transform for the rest of an interrupted stream. Needs `create_resumable_transform`."""
        raise NotImplementedError

    def encode_resume_request(
        self, interrupted: ResumableTranslation, profile: ModelProfile, decode: RequestDecoder
    ) -> EncodedRequest:
        """The request for the rest of an interrupted stream. Needs `create_resumable_transform`."""
        raise NotImplementedError


class Endpoint(ABC):
    """One path of the gateway that reaches for a model."""

    __slots__ = (
        "cache_route",
        "codecs",
        "forwarded_headers",
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
    ) -> None:
        self.path = path
        self.codecs = codecs
        """By the upstream's dialect; what is missing here comes from `add_codec`."""
        self.cache_route = cache_route
        """Part of the keys of cached responses, in Redis too, so it never changes."""
        self.model_kind = model_kind
        """The `kind` of the models that it serves."""
        self.scope = scope
        """The scope that a key needs."""
        self.forwarded_headers = forwarded_headers
        """Names of request headers that codecs with `forwards_head` forward; lower case."""
        self.request_id_header = request_id_header
        """The response header, beside `x-request-id`, in which clients of this endpoint look for the request's id."""

    def add_codec(self, upstream: Dialect) -> Codec:
        """Add the codec for a dialect to `codecs`. Raises InvalidRequest if its upstreams cannot serve the endpoint."""
        raise InvalidRequest(f"The provider of this model does not serve {self.path}.", param="model")

    @abstractmethod
    def decode_routing_info(self, body: RequestBody) -> RoutingInfo:
        """Check a request as far as every upstream would refuse it, and read what routing needs.

        Sets `body.skeleton`. Raises InvalidRequest.
        """

    def decode_request(self, raw: bytes) -> Any:
        """The whole request, as a codec gets it from its RequestDecoder. Needed where a codec translates.

        Raises InvalidRequest that names the field.
        """
        raise NotImplementedError

    def encode_error(self, error: SvcError, request_id: str) -> bytes:
        """The JSON body of an error response."""
        return encode_error_body(error)

    def encode_stream_error(self, error: SvcError) -> bytes:
        """The last event of a stream that broke."""
        return b"data: " + encode_error_body(error) + b"\n\n"
