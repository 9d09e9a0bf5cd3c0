"""`POST /v1/responses` of the OpenAI API, for all models of the kind `chat`.

Upstreams with the Responses API get requests in their own form. For others, the gateway translates.
"""

from __future__ import annotations

from svc.dialects.base import Dialect, EncodedRequest, EncodedResponse, ModelProfile, RequestBody
from svc.dialects.endpoint import Codec, Endpoint, RequestDecoder
from svc.dialects.responses.codec import ResponsesCodec, to_responses_field
from svc.dialects.responses.request_decoder import ResponsesRequest, decode_request
from svc.dialects.responses.request_passthrough import pass_through_responses_request
from svc.dialects.responses.response_passthrough import pass_through_response
from svc.dialects.responses.routing_info import decode_routing_info
from svc.dialects.responses.stored import describe_response
from svc.dialects.responses.stream_encoder import encode_interruption
from svc.dialects.responses.stream_passthrough import ResponsesPassthrough
from svc.dialects.routing_info import RoutingInfo
from svc.dialects.stream_transform import StreamTransform
from svc.dialects.upstream_errors import decode_error_param
from svc.errors import SvcError
from svc.wire.chat import ChatRequest
from svc.wire.stored_response import ResponseParts


class _NativeCodec(Codec):
    """Forwards requests and responses unchanged, if they are unambiguous JSON."""

    __slots__ = ()

    def encode_request(
        self, body: RequestBody, routing_info: RoutingInfo, profile: ModelProfile, decode: RequestDecoder
    ) -> EncodedRequest:
        return pass_through_responses_request(body, routing_info, profile)

    def decode_response(self, raw: bytes) -> EncodedResponse:
        return pass_through_response(raw)

    def create_stream_transform(self, routing_info: RoutingInfo, profile: ModelProfile) -> StreamTransform:
        return ResponsesPassthrough()

    def decode_error_param(self, raw: bytes) -> str | None:
        return decode_error_param(raw)

    def map_field_name(self, name: str) -> str:
        return to_responses_field(name)


class Responses(Endpoint):
    """The endpoint for clients of the OpenAI Responses API."""

    __slots__ = ("_native",)

    def __init__(self, path: str, native: Codec) -> None:
        super().__init__(path, {}, cache_route="responses")
        self._native = native

    def select_codec(self, upstream: Dialect, profile: ModelProfile) -> Codec:
        return self._native if profile.has_responses else super().select_codec(upstream, profile)

    def select_resume_codec(self, upstream: Dialect, profile: ModelProfile) -> Codec:
        """Continue through chat completions: the Responses API does not continue the start of a message."""
        return super().select_codec(upstream, profile)

    def add_codec(self, upstream: Dialect) -> Codec:
        codec = self.codecs[upstream] = ResponsesCodec(upstream)
        return codec

    def decode_routing_info(self, body: RequestBody) -> RoutingInfo:
        return decode_routing_info(body)

    def decode_request(self, body: RequestBody) -> ResponsesRequest:
        return decode_request(body)

    def find_chat(self, decode: RequestDecoder) -> ChatRequest | None:
        request: ResponsesRequest = decode()
        return request.chat

    def describe_response(self, request: bytes, response: bytes) -> ResponseParts:
        return describe_response(request, response)

    def encode_stream_error(self, error: SvcError) -> bytes:
        return encode_interruption(error)


endpoint: Endpoint = Responses("/v1/responses", _NativeCodec("/responses"))
