"""`POST /v1/messages` of the Anthropic API, for all models of the kind `chat`."""

from __future__ import annotations

from collections.abc import Mapping

from svc.dialects import anthropic
from svc.dialects.anthropic.errors import decode_upstream_error, encode_error
from svc.dialects.anthropic.response_codec import pass_through_response
from svc.dialects.anthropic.routing_info import decode_routing_info
from svc.dialects.anthropic.stream_passthrough import AnthropicPassthrough
from svc.dialects.anthropic.unsigned_thinking import drop_unsigned_thinking
from svc.dialects.base import EncodedRequest, EncodedResponse, ModelProfile, RequestBody
from svc.dialects.chat_codec import ChatCodec, ChatEndpoint
from svc.dialects.endpoint import Endpoint, RequestDecoder
from svc.dialects.request_passthrough import pass_through_request
from svc.dialects.routing_info import RoutingInfo
from svc.dialects.stream_transform import StreamTransform
from svc.errors import SvcError, UpstreamError


class _AnthropicUpstream(ChatCodec):
    """Forwards requests, responses and errors unchanged, if they are unambiguous JSON."""

    __slots__ = ()

    def encode_request(
        self, body: RequestBody, routing_info: RoutingInfo, profile: ModelProfile, decode: RequestDecoder
    ) -> EncodedRequest:
        encoded = pass_through_request(body, routing_info, profile, ask_usage=False)
        return drop_unsigned_thinking(encoded, body)

    def decode_response(self, raw: bytes) -> EncodedResponse:
        return pass_through_response(raw)

    def create_stream_transform(self, routing_info: RoutingInfo, profile: ModelProfile) -> StreamTransform:
        return AnthropicPassthrough()

    def decode_upstream_error(self, status: int, headers: Mapping[bytes, bytes], raw: bytes) -> UpstreamError | None:
        return decode_upstream_error(status, headers, raw)


class Messages(ChatEndpoint):
    """The endpoint for clients of the Anthropic messages API."""

    __slots__ = ()

    def decode_routing_info(self, body: RequestBody) -> RoutingInfo:
        return decode_routing_info(body)

    def encode_error(self, error: SvcError, request_id: str) -> bytes:
        return encode_error(error, request_id)


endpoint: Endpoint = Messages(
    "/v1/messages",
    anthropic.dialect,
    _AnthropicUpstream(anthropic.dialect, anthropic.dialect, forwards_head=True),
    forwarded_headers=frozenset((b"anthropic-beta", b"anthropic-version")),
    request_id_header="request-id",
    client_header=b"anthropic-version",
    keep_alive_event=b'event: ping\ndata: {"type": "ping"}\n\n',
)
