"""`POST /v1/chat/completions` of the OpenAI API, for all models of the kind `chat`."""

from __future__ import annotations

from svc.dialects import openai
from svc.dialects.base import EncodedRequest, EncodedResponse, ModelProfile, RequestBody
from svc.dialects.chat_codec import ChatCodec, ChatEndpoint
from svc.dialects.endpoint import Endpoint, RequestDecoder
from svc.dialects.openai.response_passthrough import pass_through_response
from svc.dialects.openai.routing_info import decode_routing_info
from svc.dialects.openai.stream_passthrough import OpenAIPassthrough
from svc.dialects.request_passthrough import pass_through_request
from svc.dialects.routing_info import RoutingInfo
from svc.dialects.stream_transform import StreamTransform
from svc.dialects.upstream_errors import decode_error_param


class _OpenAIUpstream(ChatCodec):
    """Forwards requests and responses unchanged, if they are unambiguous JSON."""

    __slots__ = ()

    def encode_request(
        self, body: RequestBody, routing_info: RoutingInfo, profile: ModelProfile, decode: RequestDecoder
    ) -> EncodedRequest:
        return pass_through_request(body, routing_info, profile, ask_usage=True)

    def decode_response(self, raw: bytes) -> EncodedResponse:
        return pass_through_response(raw)

    def create_stream_transform(self, routing_info: RoutingInfo, profile: ModelProfile) -> StreamTransform:
        return OpenAIPassthrough(include_usage=routing_info.include_usage)

    def decode_error_param(self, raw: bytes) -> str | None:
        return decode_error_param(raw)


class ChatCompletions(ChatEndpoint):
    """The endpoint for clients of the OpenAI chat completions API."""

    __slots__ = ()

    def decode_routing_info(self, body: RequestBody) -> RoutingInfo:
        return decode_routing_info(body)


endpoint: Endpoint = ChatCompletions(
    "/v1/chat/completions", openai.dialect, _OpenAIUpstream(openai.dialect, openai.dialect)
)
