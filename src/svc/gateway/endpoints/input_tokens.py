"""`POST /v1/responses/input_tokens` of the OpenAI API, for all models of the kind `chat`. It costs no tokens."""

from __future__ import annotations

from svc.dialects.base import Dialect, EncodedRequest, EncodedResponse, ModelProfile, RequestBody
from svc.dialects.endpoint import Codec, Endpoint, RequestDecoder
from svc.dialects.responses.request_decoder import ResponsesRequest, decode_request
from svc.dialects.responses.request_passthrough import pass_through_responses_request
from svc.dialects.responses.routing_info import decode_count_info
from svc.dialects.responses.token_count import encode_input_tokens, pass_through_input_tokens
from svc.dialects.routing_info import RoutingInfo
from svc.dialects.token_count import LocalTokenCount


class _InputTokensUpstream(Codec):
    """Forwards requests and counts of upstreams with the Responses API unchanged, except the model name."""

    __slots__ = ()

    def encode_request(
        self, body: RequestBody, routing_info: RoutingInfo, profile: ModelProfile, decode: RequestDecoder
    ) -> EncodedRequest:
        return pass_through_responses_request(body, routing_info, profile)

    def decode_response(self, raw: bytes) -> EncodedResponse:
        return pass_through_input_tokens(raw)


class _CheckedTokenCount(LocalTokenCount):
    """Estimates the tokens of a request that could be translated."""

    __slots__ = ()

    def encode_request(
        self, body: RequestBody, routing_info: RoutingInfo, profile: ModelProfile, decode: RequestDecoder
    ) -> EncodedRequest:
        decode()
        return super().encode_request(body, routing_info, profile, decode)


class InputTokens(Endpoint):
    """The endpoint for clients of the Responses API. Upstreams without that API get no request."""

    __slots__ = ("_native",)

    def __init__(self, path: str, native: Codec) -> None:
        super().__init__(path, {}, cache_route="input_tokens")
        self._native = native

    def select_codec(self, upstream: Dialect, profile: ModelProfile) -> Codec:
        return self._native if profile.has_responses else super().select_codec(upstream, profile)

    def add_codec(self, upstream: Dialect) -> Codec:
        codec = self.codecs[upstream] = _CheckedTokenCount(encode_input_tokens)
        return codec

    def decode_routing_info(self, body: RequestBody) -> RoutingInfo:
        return decode_count_info(body)

    def decode_request(self, body: RequestBody) -> ResponsesRequest:
        return decode_request(body)


endpoint: Endpoint = InputTokens("/v1/responses/input_tokens", _InputTokensUpstream("/responses/input_tokens"))
