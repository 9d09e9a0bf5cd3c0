"""`POST /v1/messages/count_tokens` of the Anthropic API, for all models of the kind `chat`. It costs no tokens."""

from __future__ import annotations

from collections.abc import Mapping

from svc.dialects import anthropic
from svc.dialects.anthropic.errors import decode_upstream_error, encode_error
from svc.dialects.anthropic.routing_info import decode_count_routing_info
from svc.dialects.anthropic.token_count import encode_count, pass_through_count
from svc.dialects.anthropic.unsigned_thinking import drop_unsigned_thinking
from svc.dialects.base import Dialect, EncodedRequest, EncodedResponse, ModelProfile, RequestBody
from svc.dialects.endpoint import Codec, Endpoint, RequestDecoder
from svc.dialects.request_passthrough import pass_through_request
from svc.dialects.routing_info import RoutingInfo
from svc.dialects.token_count import LocalTokenCount
from svc.errors import SvcError, UpstreamError


class _CountTokensUpstream(Codec):
    """Forwards requests, counts and errors of Anthropic upstreams unchanged, except the model name."""

    __slots__ = ()

    def encode_request(
        self, body: RequestBody, routing_info: RoutingInfo, profile: ModelProfile, decode: RequestDecoder
    ) -> EncodedRequest:
        encoded = pass_through_request(body, routing_info, profile, ask_usage=False)
        return drop_unsigned_thinking(encoded, body)

    def decode_response(self, raw: bytes) -> EncodedResponse:
        return pass_through_count(raw)

    def decode_upstream_error(self, status: int, headers: Mapping[bytes, bytes], raw: bytes) -> UpstreamError | None:
        return decode_upstream_error(status, headers, raw)


class CountTokens(Endpoint):
    """The endpoint for clients of the Anthropic API. Upstreams of other dialects get no request."""

    __slots__ = ()

    def add_codec(self, upstream: Dialect) -> Codec:
        codec = self.codecs[upstream] = LocalTokenCount(encode_count)
        return codec

    def decode_routing_info(self, body: RequestBody) -> RoutingInfo:
        return decode_count_routing_info(body)

    def encode_error(self, error: SvcError, request_id: str) -> bytes:
        return encode_error(error, request_id)


endpoint: Endpoint = CountTokens(
    "/v1/messages/count_tokens",
    {anthropic.dialect: _CountTokensUpstream("/v1/messages/count_tokens", forwards_head=True)},
    cache_route="count_tokens",
    forwarded_headers=frozenset((b"anthropic-beta", b"anthropic-version")),
    request_id_header="request-id",
)
